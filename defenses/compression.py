"""Compression: sending fewer coordinates, which is sometimes sold as a defense."""

import dataclasses
from collections.abc import Callable
from typing import ClassVar

import jax
import jax.numpy as jnp

from gradaudit.defenses.clipping import Scope
from gradaudit.defenses.noise import draw_like, in_shapes, unbounded
from gradaudit.defenses.schedules import Constant
from gradaudit.defenses.transforms import (
    Applied,
    Bound,
    Release,
    Round,
    State,
    Stateless,
)
from gradaudit.errors import InputError, at_least, not_negative, positive
from gradaudit.evidence import Evidence
from gradaudit.mechanism import Mechanism, NoiseKind, Point
from gradaudit.types import Key, PyTree


def keep_largest(
    leaves: list[jax.Array], share: Callable[[int], int]
) -> list[jax.Array]:
    """Returns the leaves (units, ...) with only each unit's largest magnitudes.

    Of a unit's n coordinates in all leaves `share(n)` are kept; ties with the smallest
    of them pass as well. Coordinates that are not finite are kept, and nothing is left
    out of a unit with a NaN: a broken gradient stays visible.
    """
    flat = [jnp.abs(leaf.reshape(leaf.shape[0], -1)) for leaf in leaves]
    values = jnp.concatenate([part.astype(jnp.float32) for part in flat], axis=1)
    size = values.shape[1]
    kept = share(size)
    ordered = jnp.sort(values, axis=1)  # NaN to the end
    threshold = ordered[:, size - kept] if kept else jnp.full(len(values), jnp.inf)
    threshold = jnp.where(jnp.any(jnp.isnan(values), axis=1), jnp.nan, threshold)

    def above(leaf: jax.Array) -> jax.Array:
        limit = threshold.reshape((-1,) + (1,) * (leaf.ndim - 1))
        return jnp.where(jnp.abs(leaf) < limit, jnp.zeros((), leaf.dtype), leaf)

    return [above(leaf) for leaf in leaves]


class _KeepsLargest(Stateless):
    """Sends the largest coordinates of a unit as they are, and zeros beside them."""

    independent: ClassVar[bool] = True

    def explain(self, evidence: Evidence, state: State, t: Round) -> Evidence:
        """Returns that zeros were left out, and are smaller than what was sent."""
        return dataclasses.replace(evidence, sparse=True, thresholded=True)

    def release(self, point: Point, bound: Bound | None) -> Release:
        """Releases nothing, and never makes a norm larger."""
        return (), bound


@dataclasses.dataclass(frozen=True)
class Prune(_KeepsLargest):
    """Sets the smallest `ratio` of the coordinates' magnitudes to zero, per unit.

    The share is taken over the unit's whole tree (Scope.GLOBAL) or in each tensor.
    Guarantee: at least (1 - ratio) of the coordinates pass unchanged; ties with the
    smallest kept one pass as well. Wei et al. 2023, section 4.1.
    """

    ratio: float
    scope: Scope = Scope.GLOBAL

    def __post_init__(self) -> None:
        if not 0 <= self.ratio <= 1:
            raise InputError(
                f"ratio must lie in [0, 1] (a share, not percent), got {self.ratio}"
            )

    def apply(self, key: Key, tree: PyTree, state: State, t: Round) -> Applied:
        """Returns the pruned tree."""

        def share(size: int) -> int:
            return size - int(self.ratio * size)

        leaves, structure = jax.tree.flatten(tree)
        if self.scope is Scope.GLOBAL:
            pruned = keep_largest(leaves, share)
        else:
            pruned = [keep_largest([leaf], share)[0] for leaf in leaves]
        return jax.tree.unflatten(structure, pruned), state


@dataclasses.dataclass(frozen=True)
class TopK(_KeepsLargest):
    """Keeps the `count` coordinates with the largest magnitudes of each unit."""

    count: int

    def __post_init__(self) -> None:
        at_least(1, count=self.count)

    def apply(self, key: Key, tree: PyTree, state: State, t: Round) -> Applied:
        """Returns the sparse tree; ties with the smallest kept one pass as well."""
        leaves, structure = jax.tree.flatten(tree)
        kept = keep_largest(leaves, lambda size: min(self.count, size))
        return jax.tree.unflatten(structure, kept), state


@dataclasses.dataclass(frozen=True)
class Sign(Stateless):
    """Replaces each tensor of a unit by its signs times its mean magnitude."""

    loses_scale: ClassVar[bool] = True  # of coordinates beside each other
    independent: ClassVar[bool] = True

    def apply(self, key: Key, tree: PyTree, state: State, t: Round) -> Applied:
        """Returns the signs; the mean magnitude carries NaN and infinity on."""

        def signs(leaf: jax.Array) -> jax.Array:
            axes = tuple(range(1, leaf.ndim))
            size = jnp.mean(jnp.abs(leaf), axis=axes, keepdims=True)
            return (jnp.sign(leaf) * size).astype(leaf.dtype)

        return jax.tree.map(signs, tree), state

    def explain(self, evidence: Evidence, state: State, t: Round) -> Evidence:
        """Returns that signs arrive."""
        return dataclasses.replace(evidence, signs=True)


PER_COORDINATE = (
    "The epsilon counts one coordinate at a time; which coordinates are sent is not "
    "hidden, so there is no guarantee for an example or a client."
)


@dataclasses.dataclass(frozen=True)
class RandomSelection(Stateless):
    """Sends a random `share` of each unit's coordinates, of those above a threshold.

    Guarantee: at most share * coordinates are sent, each with magnitude above
    `threshold`; everything else is zero. Coordinates that are not finite are sent.
    With `noise`, what is sent is bounded and noisy, see `SharedNoise`.
    """

    independent: ClassVar[bool] = True
    share: float
    threshold: float = 0.0
    noise: "SharedNoise | None" = None

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise InputError(f"share must lie in (0, 1], got {self.share}")
        not_negative(threshold=self.threshold)

    def apply(self, key: Key, tree: PyTree, state: State, t: Round) -> Applied:
        """Returns the tree with all but the chosen coordinates set to zero."""
        choice_key, noise_key = jax.random.split(key)
        leaves, structure = jax.tree.flatten(tree)
        masks = self._choose(choice_key, leaves)
        if self.noise is not None:
            leaves = self.noise.add(noise_key, leaves)
        sent = [
            jnp.where(mask, leaf, jnp.zeros((), leaf.dtype))
            for mask, leaf in zip(masks, leaves, strict=True)
        ]
        return jax.tree.unflatten(structure, sent), state

    def _choose(self, key: Key, leaves: list[jax.Array]) -> list[jax.Array]:
        units = leaves[0].shape[0]
        lots = draw_like(key, leaves, jax.random.uniform, units)
        lots = [
            jnp.where(jnp.abs(leaf) > self.threshold, lot, -1.0)
            for leaf, lot in zip(leaves, lots, strict=True)
        ]
        flat = jnp.concatenate([lot.reshape(units, -1) for lot in lots], axis=1)
        count = max(1, int(self.share * flat.shape[1]))
        # By index: equal lots would let more than `count` through a threshold.
        best, index = jax.lax.top_k(flat, count)
        rows = jnp.arange(units)[:, None]
        mask = jnp.zeros(flat.shape, bool).at[rows, index].set(best >= 0)
        chosen = in_shapes(mask, leaves)
        return [c | ~jnp.isfinite(x) for c, x in zip(chosen, leaves, strict=True)]

    def explain(self, evidence: Evidence, state: State, t: Round) -> Evidence:
        """Returns that zeros were left out, whatever they are; noise, if any."""
        if self.noise is not None:
            evidence = self.noise.explain(evidence)
        return dataclasses.replace(evidence, sparse=True)

    def release(self, point: Point, bound: Bound | None) -> Release:
        """Returns the noise's per-coordinate claim; without noise the bound holds."""
        if self.noise is None:
            return (), bound
        return (self.noise.mechanism(point),), None


@dataclasses.dataclass(frozen=True)
class SharedNoise:
    """Bounds each coordinate to [-bound, bound] and adds Laplace(2 bound / epsilon)."""

    epsilon: float
    bound: float

    def __post_init__(self) -> None:
        positive(epsilon=self.epsilon, bound=self.bound)

    def add(self, key: Key, leaves: list[jax.Array]) -> list[jax.Array]:
        """Returns the bounded and noisy coordinates of every unit."""
        noise = draw_like(key, leaves, jax.random.laplace, leaves[0].shape[0])
        scale = 2 * self.bound / self.epsilon
        noisy = []
        for leaf, draw in zip(leaves, noise, strict=True):
            clipped = jnp.clip(leaf, -self.bound, self.bound)
            value = (clipped + scale * draw).astype(leaf.dtype)
            noisy.append(jnp.where(jnp.isfinite(leaf), value, leaf))
        return noisy

    def explain(self, evidence: Evidence) -> Evidence:
        """Returns the guess bounded like the truth, and the noise's variance."""
        bounded = jax.tree.map(
            lambda leaf: jnp.clip(leaf, -self.bound, self.bound), evidence.expected
        )
        count = len(jax.tree.leaves(bounded))
        variance = jnp.asarray(2 * (2 * self.bound / self.epsilon) ** 2)
        told = dataclasses.replace(evidence, expected=bounded)
        return told.noisier([variance] * count, peaked=True)

    def mechanism(self, point: Point) -> Mechanism:
        """Returns the Laplace release of one coordinate; nothing bounds a unit."""
        return Mechanism(
            point=point,
            kind=NoiseKind.LAPLACE,
            multiplier=Constant(self.epsilon),
            sensitivity=Constant(2 * self.bound),
            clip=unbounded,
            norm=1,
            coordinates="the coordinates that are sent",
            caveats=(PER_COORDINATE,),
        )
