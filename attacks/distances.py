"""How far the dummy data's gradient is from the one that leaked.

Each distance is 0 when the two are equal, and a sum of squares of residuals. `layers`
restricts it to tensors whose path starts with one of the given names; empty means all
of them.
"""

import abc
import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from gradaudit import tree
from gradaudit.attacks.likelihood import (
    TINY,
    chosen,
    nat,
    noise_share,
    seen,
    times,
    unexplained,
    unlikelihood,
)
from gradaudit.evidence import Evidence
from gradaudit.types import PyTree

CONVOLUTIONS = ("conv",)
DENSE = ("dense", "output")


@dataclasses.dataclass(frozen=True)
class Distance(abc.ABC):
    """A distance between two gradients of the same structure."""

    scale_free: ClassVar[bool] = False  # the size of a gradient does not matter to it
    layers: tuple[str, ...] = ()

    @abc.abstractmethod
    def __call__(self, gradient: PyTree, target: PyTree) -> jax.Array:
        """Returns a non-negative scalar."""

    @abc.abstractmethod
    def residuals(self, gradient: PyTree, target: PyTree) -> list[jax.Array]:
        """Returns arrays whose squares add up to the distance."""

    @abc.abstractmethod
    def scale(self, target: PyTree) -> jax.Array:
        """Returns what a value of it is to be measured by: 1 if it has no scale."""

    def misfit(self, evidence: Evidence, target: PyTree) -> jax.Array:
        """Returns how badly evidence about a guess explains what was read.

        For an adversary who is told the defense; 0 when it explains it wholly.
        """
        return self.scale(target) * unlikelihood(evidence, target, self.layers)

    def nat(self, evidence: Evidence | None, target: PyTree) -> jax.Array:
        """Returns by how much it grows when what was read is e times less likely.

        Without evidence, or without noise, as if what was read were rounded.
        """
        return self.scale(target) * nat(evidence, target, self.layers)

    def unexplained(self, evidence: Evidence, target: PyTree) -> list[jax.Array]:
        """Returns arrays whose squares add up to the misfit."""
        factor = jnp.sqrt(self.scale(target))
        return times(factor, unexplained(evidence, target, self.layers))


@dataclasses.dataclass(frozen=True)
class SquaredL2(Distance):
    """Sum over all tensors of the squared differences (DLG, CPL): no mean, no scale."""

    def __call__(self, gradient: PyTree, target: PyTree) -> jax.Array:
        """Returns the sum of squares."""
        return _sum_of_squares(self.residuals(gradient, target))

    def residuals(self, gradient: PyTree, target: PyTree) -> list[jax.Array]:
        """Returns the differences."""
        return [a - b for a, b in chosen(self.layers, gradient, target)]

    def scale(self, target: PyTree) -> jax.Array:
        """Returns the squared norm of what leaked."""
        return tree.dot(target, target)


@dataclasses.dataclass(frozen=True)
class RelativeL2(Distance):
    """SquaredL2 divided by the squared norm of what leaked: free of scale.

    `weight` lifts it above optimizers' absolute tolerances.
    """

    weight: float = 100.0

    def __call__(self, gradient: PyTree, target: PyTree) -> jax.Array:
        """Returns weight x |gradient - target|^2 / |target|^2."""
        pairs = chosen(self.layers, gradient, target)
        distance = _sum_of_squares([a - b for a, b in pairs])
        return self.weight * distance / (_sum_of_squares([b for _, b in pairs]) + TINY)

    def residuals(self, gradient: PyTree, target: PyTree) -> list[jax.Array]:
        """Returns the differences in units of what leaked."""
        pairs = chosen(self.layers, gradient, target)
        whole = _sum_of_squares([b for _, b in pairs])
        factor = jnp.sqrt(self.weight / (whole + TINY))
        return times(factor, [a - b for a, b in pairs])

    def scale(self, target: PyTree) -> jax.Array:
        """Returns the weight."""
        return jnp.asarray(self.weight)

    def noise(self, evidence: Evidence, target: PyTree) -> jax.Array:
        """Returns the misfit that is expected of the truth; 0 without noise."""
        return self.weight * noise_share(evidence, target, self.layers)


class _Angle(Distance):
    """What the sizes of gradients do not matter to."""

    scale_free: ClassVar[bool] = True

    def scale(self, target: PyTree) -> jax.Array:
        """Returns 1: an angle has no scale."""
        return jnp.ones(())

    def misfit(self, evidence: Evidence, target: PyTree) -> jax.Array:
        """Returns the same angle, over the coordinates that were sent."""
        return self(*seen(evidence, target))

    def nat(self, evidence: Evidence | None, target: PyTree) -> jax.Array:
        """Returns what half a relative distance grows by: near 0 that is the angle."""
        return 0.5 * nat(evidence, target, self.layers)

    def unexplained(self, evidence: Evidence, target: PyTree) -> list[jax.Array]:
        """Returns the same, over the coordinates that were sent."""
        return self.residuals(*seen(evidence, target))


@dataclasses.dataclass(frozen=True)
class Cosine(_Angle):
    """1 - cosine of the angle between the whole gradients (Geiping et al. 2020)."""

    def __call__(self, gradient: PyTree, target: PyTree) -> jax.Array:
        """Returns a value in [0, 2]."""
        left, right = zip(*chosen(self.layers, gradient, target), strict=True)
        return _one_minus_cosine(left, right)

    def residuals(self, gradient: PyTree, target: PyTree) -> list[jax.Array]:
        """Returns the differences of the unit vectors, over the root of 2."""
        left, right = zip(*chosen(self.layers, gradient, target), strict=True)
        return times(jnp.sqrt(0.5), _between_units(left, right))


@dataclasses.dataclass(frozen=True)
class TensorCosine(_Angle):
    """Mean over tensors of 1 - cosine, so that small layers count as much as large."""

    def __call__(self, gradient: PyTree, target: PyTree) -> jax.Array:
        """Returns a value in [0, 2]."""
        pairs = chosen(self.layers, gradient, target)
        return jnp.mean(jnp.stack([_one_minus_cosine(a, b) for a, b in pairs]))

    def residuals(self, gradient: PyTree, target: PyTree) -> list[jax.Array]:
        """Returns each tensor's differences of unit vectors."""
        pairs = chosen(self.layers, gradient, target)
        rows = [_between_units(a, b) for a, b in pairs]
        return times(jnp.sqrt(0.5 / len(pairs)), rows)


def _sum_of_squares(rows: list[jax.Array]) -> jax.Array:
    return jnp.sum(jnp.stack([jnp.sum(jnp.square(row)) for row in rows]))


def _one_minus_cosine(left: PyTree, right: PyTree) -> jax.Array:
    # Normalising first keeps the value exact near 0, where 1 - a.b/|a||b| cancels:
    # |a/|a| - b/|b||^2 / 2 is the same number.
    difference = _between_units(left, right)
    return 0.5 * tree.dot(difference, difference)


def _between_units(left: PyTree, right: PyTree) -> PyTree:
    """Returns the difference of two trees, each divided by its norm."""

    def unit(values: PyTree) -> PyTree:
        norm = jnp.sqrt(tree.dot(values, values) + TINY)
        return tree.scale(1.0 / norm, values)

    return tree.subtract(unit(left), unit(right))
