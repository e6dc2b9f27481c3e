"""How far the dummy data's gradient is from the one that leaked.

Each distance is 0 when the two are equal. `layers` restricts it to tensors whose
path starts with one of the given names; empty means all of them.
"""

import dataclasses
from typing import ClassVar, Protocol

import jax
import jax.numpy as jnp

from gradaudit import tree
from gradaudit.errors import InputError
from gradaudit.types import PyTree

CONVOLUTIONS = ("conv",)


DENSE = ("dense", "output")


_TINY = 1e-20


class Distance(Protocol):
    """A distance between two gradients of the same structure."""

    @property
    def scale_free(self) -> bool:
        """Whether the size of a gradient does not matter to it."""

    def __call__(self, gradient: PyTree, target: PyTree) -> jax.Array:
        """Returns a non-negative scalar."""

    def scale(self, target: PyTree) -> jax.Array:
        """Returns what a value of it is to be measured by: 1 if it has no scale."""


@dataclasses.dataclass(frozen=True)
class SquaredL2:
    """Sum over all tensors of the squared differences (DLG, CPL): no mean, no scale."""

    scale_free: ClassVar[bool] = False
    layers: tuple[str, ...] = ()

    def __call__(self, gradient: PyTree, target: PyTree) -> jax.Array:
        """Returns the sum of squares."""
        pairs = _chosen(gradient, target, self.layers)
        return jnp.sum(jnp.stack([jnp.sum(jnp.square(a - b)) for a, b in pairs]))

    def scale(self, target: PyTree) -> jax.Array:
        """Returns the squared norm of what leaked."""
        return tree.dot(target, target)


@dataclasses.dataclass(frozen=True)
class Cosine:
    """1 - cosine of the angle between the whole gradients (Geiping et al. 2020)."""

    scale_free: ClassVar[bool] = True
    layers: tuple[str, ...] = ()

    def __call__(self, gradient: PyTree, target: PyTree) -> jax.Array:
        """Returns a value in [0, 2]."""
        pairs = _chosen(gradient, target, self.layers)
        left, right = ([pair[i] for pair in pairs] for i in (0, 1))
        return _one_minus_cosine(left, right)

    def scale(self, target: PyTree) -> jax.Array:
        """Returns 1: an angle has no scale."""
        del target
        return jnp.ones(())


@dataclasses.dataclass(frozen=True)
class TensorCosine:
    """Mean over tensors of 1 - cosine, so that small layers count as much as large."""

    scale_free: ClassVar[bool] = True
    layers: tuple[str, ...] = ()

    def __call__(self, gradient: PyTree, target: PyTree) -> jax.Array:
        """Returns a value in [0, 2]."""
        pairs = _chosen(gradient, target, self.layers)
        return jnp.mean(jnp.stack([_one_minus_cosine(a, b) for a, b in pairs]))

    def scale(self, target: PyTree) -> jax.Array:
        """Returns 1: an angle has no scale."""
        del target
        return jnp.ones(())


def _one_minus_cosine(left: PyTree, right: PyTree) -> jax.Array:
    # Normalising first keeps the value exact near 0, where 1 - a.b/|a||b| cancels:
    # |a/|a| - b/|b||^2 / 2 is the same number.
    def unit(values: PyTree) -> PyTree:
        norm = jnp.sqrt(tree.dot(values, values) + _TINY)
        return tree.scale(1.0 / norm, values)

    difference = tree.subtract(unit(left), unit(right))
    return 0.5 * tree.dot(difference, difference)


def _chosen(
    gradient: PyTree, target: PyTree, layers: tuple[str, ...]
) -> list[tuple[jax.Array, jax.Array]]:
    paths = tree.names(gradient)
    pairs = [
        (a, b)
        for path, a, b in zip(
            paths, jax.tree.leaves(gradient), jax.tree.leaves(target), strict=True
        )
        if not layers or path.startswith(layers)
    ]
    if not pairs:
        raise InputError(
            f"no tensor starts with {' or '.join(layers)}; the model has "
            f"{', '.join(paths)}"
        )
    return pairs
