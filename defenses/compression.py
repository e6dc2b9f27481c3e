"""Compression: sending fewer coordinates, which is sometimes sold as a defense."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from gradaudit.defenses.clipping import Scope
from gradaudit.defenses.noise import draw_like, unbounded
from gradaudit.defenses.schedules import Constant
from gradaudit.defenses.transforms import Bound, State, Stateless
from gradaudit.errors import InputError, positive
from gradaudit.evidence import Evidence
from gradaudit.mechanism import Mechanism, NoiseKind, Point
from gradaudit.types import Key, PyTree


def magnitudes(leaves: list[jax.Array]) -> jax.Array:
    """Returns |g| of all coordinates of each unit, (units, coordinates)."""
    flat = [jnp.abs(leaf.reshape(leaf.shape[0], -1)) for leaf in leaves]
    return jnp.concatenate([part.astype(jnp.float32) for part in flat], axis=1)


def smallest_kept(values: jax.Array, kept: int) -> jax.Array:
    """Returns each unit's `kept`-th largest magnitude, (units,); NaN if one is NaN.

    jax sorts NaN to the end, so a broken unit must be marked by hand.
    """
    size = values.shape[1]
    ordered = jnp.sort(values, axis=1)
    threshold = ordered[:, size - kept] if kept else jnp.full(len(values), jnp.inf)
    return jnp.where(jnp.any(jnp.isnan(values), axis=1), jnp.nan, threshold)


def keep_above(leaf: jax.Array, threshold: jax.Array) -> jax.Array:
    """Returns the leaf with coordinates below the unit's threshold set to zero.

    Coordinates that are not finite are kept: a broken gradient stays visible.
    """
    limit = threshold.reshape((-1,) + (1,) * (leaf.ndim - 1))
    return jnp.where(jnp.abs(leaf) < limit, jnp.zeros((), leaf.dtype), leaf)


@dataclasses.dataclass(frozen=True)
class Prune(Stateless):
    """Sets the smallest `ratio` of the coordinates' magnitudes to zero, per unit.

    The share is taken over the unit's whole tree (Scope.GLOBAL) or in each tensor.
    Guarantee: at least (1 - ratio) of the coordinates pass unchanged; ties with the
    smallest kept one pass as well. Wei et al. 2023, section 4.1.
    """

    independent: ClassVar[bool] = True
    ratio: float
    scope: Scope = Scope.GLOBAL

    def __post_init__(self) -> None:
        if not 0 <= self.ratio <= 1:
            raise InputError(
                f"ratio must lie in [0, 1] (a share, not percent), got {self.ratio}"
            )

    def apply(
        self, key: Key, tree: PyTree, state: State, t: jax.Array | int
    ) -> tuple[PyTree, State]:
        """Returns the pruned tree."""
        del key, t
        leaves, structure = jax.tree.flatten(tree)
        groups = [leaves] if self.scope is Scope.GLOBAL else [[leaf] for leaf in leaves]
        pruned: list[jax.Array] = []
        for group in groups:
            values = magnitudes(group)
            kept = values.shape[1] - int(self.ratio * values.shape[1])
            threshold = smallest_kept(values, kept)
            pruned.extend(keep_above(leaf, threshold) for leaf in group)
        return jax.tree.unflatten(structure, pruned), state

    def explain(self, evidence: Evidence, state: State, t: jax.Array | int) -> Evidence:
        """Returns that zeros were left out, and are smaller than what was sent."""
        del state, t
        return dataclasses.replace(evidence, sparse=True, thresholded=True)

    def release(
        self, point: Point, bound: Bound | None
    ) -> tuple[tuple[Mechanism, ...], Bound | None]:
        """Releases nothing, and never makes a norm larger."""
        return (), bound


@dataclasses.dataclass(frozen=True)
class TopK(Stateless):
    """Keeps the `count` coordinates with the largest magnitudes of each unit."""

    independent: ClassVar[bool] = True
    count: int

    def __post_init__(self) -> None:
        if not self.count >= 1:
            raise InputError(f"count must be at least 1, got {self.count}")

    def apply(
        self, key: Key, tree: PyTree, state: State, t: jax.Array | int
    ) -> tuple[PyTree, State]:
        """Returns the sparse tree; ties with the smallest kept one pass as well."""
        del key, t
        values = magnitudes(jax.tree.leaves(tree))
        threshold = smallest_kept(values, min(self.count, values.shape[1]))
        return jax.tree.map(lambda leaf: keep_above(leaf, threshold), tree), state

    def explain(self, evidence: Evidence, state: State, t: jax.Array | int) -> Evidence:
        """Returns that zeros were left out, and are smaller than what was sent."""
        del state, t
        return dataclasses.replace(evidence, sparse=True, thresholded=True)

    def release(
        self, point: Point, bound: Bound | None
    ) -> tuple[tuple[Mechanism, ...], Bound | None]:
        """Releases nothing, and never makes a norm larger."""
        return (), bound


@dataclasses.dataclass(frozen=True)
class Sign(Stateless):
    """Replaces each tensor of a unit by its signs times its mean magnitude."""

    loses_scale: ClassVar[bool] = True  # of coordinates beside each other
    independent: ClassVar[bool] = True

    def apply(
        self, key: Key, tree: PyTree, state: State, t: jax.Array | int
    ) -> tuple[PyTree, State]:
        """Returns the signs; the mean magnitude carries NaN and infinity on."""
        del key, t

        def signs(leaf: jax.Array) -> jax.Array:
            axes = tuple(range(1, leaf.ndim))
            size = jnp.mean(jnp.abs(leaf), axis=axes, keepdims=True)
            return (jnp.sign(leaf) * size).astype(leaf.dtype)

        return jax.tree.map(signs, tree), state

    def explain(self, evidence: Evidence, state: State, t: jax.Array | int) -> Evidence:
        """Returns that signs arrive."""
        del state, t
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
        if not self.threshold >= 0:
            raise InputError(f"threshold must not be negative, got {self.threshold}")

    def apply(
        self, key: Key, tree: PyTree, state: State, t: jax.Array | int
    ) -> tuple[PyTree, State]:
        """Returns the tree with all but the chosen coordinates set to zero."""
        del t
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
        ends = np.cumsum([lot[0].size for lot in lots])[:-1]
        return [
            part.reshape(leaf.shape) | ~jnp.isfinite(leaf)
            for part, leaf in zip(jnp.split(mask, ends, 1), leaves, strict=True)
        ]

    def explain(self, evidence: Evidence, state: State, t: jax.Array | int) -> Evidence:
        """Returns that zeros were left out, whatever they are; noise, if any."""
        del state, t
        if self.noise is not None:
            evidence = self.noise.explain(evidence)
        return dataclasses.replace(evidence, sparse=True)

    def release(
        self, point: Point, bound: Bound | None
    ) -> tuple[tuple[Mechanism, ...], Bound | None]:
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
