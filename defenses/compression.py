"""Compression: sending fewer coordinates, which is sometimes sold as a defense."""

import dataclasses

import jax
import jax.numpy as jnp

from gradaudit.defenses.base import State
from gradaudit.defenses.norms import Scope
from gradaudit.errors import require
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
class Prune:
    """Sets the smallest `ratio` of the coordinates' magnitudes to zero, per unit.

    The share is taken over the unit's whole tree (Scope.GLOBAL) or in each tensor.
    Guarantee: at least (1 - ratio) of the coordinates pass unchanged; ties with the
    smallest kept one pass as well. Wei et al. 2023, section 4.1.
    """

    ratio: float
    scope: Scope = Scope.GLOBAL
    keeps_norms: bool = dataclasses.field(default=True, init=False)

    def __post_init__(self) -> None:
        require(
            0 <= self.ratio <= 1,
            f"ratio must lie in [0, 1] (a share, not percent), got {self.ratio}",
        )

    def init(self, params: PyTree) -> State:
        """Returns no state."""
        return ()

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


@dataclasses.dataclass(frozen=True)
class TopK:
    """Keeps the `count` coordinates with the largest magnitudes of each unit."""

    count: int
    keeps_norms: bool = dataclasses.field(default=True, init=False)

    def __post_init__(self) -> None:
        require(self.count >= 1, f"count must be at least 1, got {self.count}")

    def init(self, params: PyTree) -> State:
        """Returns no state."""
        return ()

    def apply(
        self, key: Key, tree: PyTree, state: State, t: jax.Array | int
    ) -> tuple[PyTree, State]:
        """Returns the sparse tree; ties with the smallest kept one pass as well."""
        del key, t
        values = magnitudes(jax.tree.leaves(tree))
        threshold = smallest_kept(values, min(self.count, values.shape[1]))
        return jax.tree.map(lambda leaf: keep_above(leaf, threshold), tree), state


@dataclasses.dataclass(frozen=True)
class Sign:
    """Replaces each tensor of a unit by its signs times its mean magnitude."""

    keeps_norms: bool = dataclasses.field(default=False, init=False)

    def init(self, params: PyTree) -> State:
        """Returns no state."""
        return ()

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
