"""How far the dummy data's gradient is from the one that leaked.

Each distance is 0 when the two are equal, and a sum of squares of residuals. `layers`
restricts it to tensors whose path starts with one of the given names; empty means all
of them.
"""

import dataclasses
from typing import ClassVar, Protocol

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


class Distance(Protocol):
    """A distance between two gradients of the same structure."""

    @property
    def scale_free(self) -> bool:
        """Whether the size of a gradient does not matter to it."""

    def __call__(self, gradient: PyTree, target: PyTree) -> jax.Array:
        """Returns a non-negative scalar."""

    def scale(self, target: PyTree) -> jax.Array:
        """Returns what a value of it is to be measured by: 1 if it has no scale."""

    def misfit(self, evidence: Evidence, target: PyTree) -> jax.Array:
        """Returns how badly evidence about a guess explains what was read.

        For an adversary who is told the defense; 0 when it explains it wholly.
        """

    def nat(self, evidence: Evidence | None, target: PyTree) -> jax.Array:
        """Returns by how much it grows when what was read is e times less likely.

        Without evidence, or without noise, as if what was read were rounded.
        """

    def residuals(self, gradient: PyTree, target: PyTree) -> list[jax.Array]:
        """Returns arrays whose squares add up to the distance."""

    def unexplained(self, evidence: Evidence, target: PyTree) -> list[jax.Array]:
        """Returns arrays whose squares add up to the misfit."""


@dataclasses.dataclass(frozen=True)
class SquaredL2:
    """Sum over all tensors of the squared differences (DLG, CPL): no mean, no scale."""

    scale_free: ClassVar[bool] = False
    layers: tuple[str, ...] = ()

    def __call__(self, gradient: PyTree, target: PyTree) -> jax.Array:
        """Returns the sum of squares."""
        pairs = chosen(gradient, target, self.layers)
        return jnp.sum(jnp.stack([jnp.sum(jnp.square(a - b)) for a, b in pairs]))

    def scale(self, target: PyTree) -> jax.Array:
        """Returns the squared norm of what leaked."""
        return tree.dot(target, target)

    def misfit(self, evidence: Evidence, target: PyTree) -> jax.Array:
        """Returns the negative log likelihood, in units of what leaked."""
        return tree.dot(target, target) * unlikelihood(evidence, target, self.layers)

    def nat(self, evidence: Evidence | None, target: PyTree) -> jax.Array:
        """Returns twice the mean variance that counts."""
        return tree.dot(target, target) * nat(evidence, target, self.layers)

    def residuals(self, gradient: PyTree, target: PyTree) -> list[jax.Array]:
        """Returns the differences."""
        return [a - b for a, b in chosen(gradient, target, self.layers)]

    def unexplained(self, evidence: Evidence, target: PyTree) -> list[jax.Array]:
        """Returns arrays whose squares add up to the misfit."""
        norm = jnp.sqrt(tree.dot(target, target))
        return times(norm, unexplained(evidence, target, self.layers))


@dataclasses.dataclass(frozen=True)
class Cosine:
    """1 - cosine of the angle between the whole gradients (Geiping et al. 2020)."""

    scale_free: ClassVar[bool] = True
    layers: tuple[str, ...] = ()

    def __call__(self, gradient: PyTree, target: PyTree) -> jax.Array:
        """Returns a value in [0, 2]."""
        pairs = chosen(gradient, target, self.layers)
        left, right = ([pair[i] for pair in pairs] for i in (0, 1))
        return _one_minus_cosine(left, right)

    def scale(self, target: PyTree) -> jax.Array:
        """Returns 1: an angle has no scale."""
        del target
        return jnp.ones(())

    def misfit(self, evidence: Evidence, target: PyTree) -> jax.Array:
        """Returns the same angle, over the coordinates that were sent."""
        return self(*seen(evidence, target))

    def nat(self, evidence: Evidence | None, target: PyTree) -> jax.Array:
        """Returns what half a relative distance grows by: near 0 that is the angle."""
        return 0.5 * nat(evidence, target, self.layers)

    def residuals(self, gradient: PyTree, target: PyTree) -> list[jax.Array]:
        """Returns the differences of the unit vectors, over the root of 2."""
        pairs = chosen(gradient, target, self.layers)
        left, right = ([pair[i] for pair in pairs] for i in (0, 1))
        return times(jnp.sqrt(0.5), _between_units(left, right))

    def unexplained(self, evidence: Evidence, target: PyTree) -> list[jax.Array]:
        """Returns the same, over the coordinates that were sent."""
        return self.residuals(*seen(evidence, target))


@dataclasses.dataclass(frozen=True)
class TensorCosine:
    """Mean over tensors of 1 - cosine, so that small layers count as much as large."""

    scale_free: ClassVar[bool] = True
    layers: tuple[str, ...] = ()

    def __call__(self, gradient: PyTree, target: PyTree) -> jax.Array:
        """Returns a value in [0, 2]."""
        pairs = chosen(gradient, target, self.layers)
        return jnp.mean(jnp.stack([_one_minus_cosine(a, b) for a, b in pairs]))

    def scale(self, target: PyTree) -> jax.Array:
        """Returns 1: an angle has no scale."""
        del target
        return jnp.ones(())

    def misfit(self, evidence: Evidence, target: PyTree) -> jax.Array:
        """Returns the same angle, over the coordinates that were sent."""
        return self(*seen(evidence, target))

    def nat(self, evidence: Evidence | None, target: PyTree) -> jax.Array:
        """Returns what half a relative distance grows by: near 0 that is the angle."""
        return 0.5 * nat(evidence, target, self.layers)

    def residuals(self, gradient: PyTree, target: PyTree) -> list[jax.Array]:
        """Returns each tensor's differences of unit vectors."""
        pairs = chosen(gradient, target, self.layers)
        rows = [_between_units([a], [b])[0] for a, b in pairs]
        return times(jnp.sqrt(0.5 / len(pairs)), rows)

    def unexplained(self, evidence: Evidence, target: PyTree) -> list[jax.Array]:
        """Returns the same, over the coordinates that were sent."""
        return self.residuals(*seen(evidence, target))


@dataclasses.dataclass(frozen=True)
class RelativeL2:
    """SquaredL2 divided by the squared norm of what leaked: free of scale.

    `weight` lifts it above optimizers' absolute tolerances.
    """

    scale_free: ClassVar[bool] = False
    layers: tuple[str, ...] = ()
    weight: float = 100.0

    def __call__(self, gradient: PyTree, target: PyTree) -> jax.Array:
        """Returns weight x |gradient - target|^2 / |target|^2."""
        pairs = chosen(gradient, target, self.layers)
        distance = jnp.sum(jnp.stack([jnp.sum(jnp.square(a - b)) for a, b in pairs]))
        whole = jnp.sum(jnp.stack([jnp.sum(jnp.square(b)) for _, b in pairs]))
        return self.weight * distance / (whole + TINY)

    def scale(self, target: PyTree) -> jax.Array:
        """Returns the weight."""
        del target
        return jnp.asarray(self.weight)

    def misfit(self, evidence: Evidence, target: PyTree) -> jax.Array:
        """Returns weight x the negative log likelihood, in units of what leaked."""
        return self.weight * unlikelihood(evidence, target, self.layers)

    def nat(self, evidence: Evidence | None, target: PyTree) -> jax.Array:
        """Returns the weight x that of a relative distance."""
        return self.weight * nat(evidence, target, self.layers)

    def noise(self, evidence: Evidence, target: PyTree) -> jax.Array:
        """Returns the misfit that is expected of the truth; 0 without noise."""
        return self.weight * noise_share(evidence, target, self.layers)

    def residuals(self, gradient: PyTree, target: PyTree) -> list[jax.Array]:
        """Returns the differences in units of what leaked."""
        pairs = chosen(gradient, target, self.layers)
        whole = jnp.sum(jnp.stack([jnp.sum(jnp.square(b)) for _, b in pairs]))
        factor = jnp.sqrt(self.weight / (whole + TINY))
        return times(factor, [a - b for a, b in pairs])

    def unexplained(self, evidence: Evidence, target: PyTree) -> list[jax.Array]:
        """Returns arrays whose squares add up to the misfit."""
        factor = jnp.sqrt(jnp.asarray(self.weight))
        return times(factor, unexplained(evidence, target, self.layers))


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
