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
from gradaudit.evidence import Evidence
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

    def misfit(self, evidence: Evidence, target: PyTree) -> jax.Array:
        """Returns how badly evidence about a guess explains what was read.

        For an adversary who is told the defense; 0 when it explains it wholly.
        """


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

    def misfit(self, evidence: Evidence, target: PyTree) -> jax.Array:
        """Returns the negative log likelihood, in units of what leaked."""
        return tree.dot(target, target) * unlikelihood(evidence, target, self.layers)


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

    def misfit(self, evidence: Evidence, target: PyTree) -> jax.Array:
        """Returns the same angle, over the coordinates that were sent."""
        return self(*seen(evidence, target))


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

    def misfit(self, evidence: Evidence, target: PyTree) -> jax.Array:
        """Returns the same angle, over the coordinates that were sent."""
        return self(*seen(evidence, target))


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
        pairs = _chosen(gradient, target, self.layers)
        distance = jnp.sum(jnp.stack([jnp.sum(jnp.square(a - b)) for a, b in pairs]))
        whole = jnp.sum(jnp.stack([jnp.sum(jnp.square(b)) for _, b in pairs]))
        return self.weight * distance / (whole + _TINY)

    def scale(self, target: PyTree) -> jax.Array:
        """Returns the weight."""
        del target
        return jnp.asarray(self.weight)

    def misfit(self, evidence: Evidence, target: PyTree) -> jax.Array:
        """Returns weight x the negative log likelihood, in units of what leaked."""
        return self.weight * unlikelihood(evidence, target, self.layers)


_EXACT = 1e-6  # variance, in units of a mean square coordinate, that counts as none
_STEEP = 4.0  # of the penalty on coordinates whose sign is wrong


def unlikelihood(
    evidence: Evidence, target: PyTree, layers: tuple[str, ...] = ()
) -> jax.Array:
    """Returns -log p(target | evidence), divided so that an empty guess has about 1.

    Gaussian noise gives weighted squares and Laplace noise weighted magnitudes, each
    tensor weighted by its own noise. Coordinates that were left out are no evidence,
    or bounded by the smallest that was sent. Signs are matched as signs.
    """
    rows = _evidence_rows(evidence, target, layers)
    if evidence.signs:
        return jnp.mean(jnp.stack([_wrong_signs(e, o) for e, o, _ in rows]))
    squares = [jnp.sum(jnp.square(o)) for _, o, _ in rows]
    size = sum(o.size for _, o, _ in rows)
    floor = _EXACT * jnp.sum(jnp.stack(squares)) / size + _TINY
    sent = [jnp.abs(o[jnp.newaxis]) > 0 for _, o, _ in rows] if evidence.sparse else []
    limit = _smallest_sent([o for _, o, _ in rows]) if evidence.thresholded else None
    total, whole = jnp.zeros(()), jnp.zeros(())
    for index, (expected, read, variance) in enumerate(rows):
        weight = 1.0 / (variance + floor)
        residual = read - expected
        if evidence.sparse:
            arrived = sent[index][0]
            beyond = jnp.zeros(())
            if limit is not None:
                beyond = jnp.maximum(jnp.abs(expected) - limit, 0.0)
            residual = jnp.where(arrived, residual, beyond)
        if evidence.peaked:
            root = jnp.sqrt(weight)
            total += jnp.sum(root * jnp.abs(residual))
            whole += jnp.sum(root * jnp.abs(read))
        else:
            total += jnp.sum(weight * jnp.square(residual))
            whole += jnp.sum(weight * jnp.square(read))
    return total / (whole + _TINY)


def seen(evidence: Evidence, target: PyTree) -> tuple[PyTree, PyTree]:
    """Returns (expected, read) without the coordinates that were left out."""
    expected = jax.tree.map(lambda leaf: leaf[0], evidence.expected)
    if not evidence.sparse:
        return expected, target
    kept = jax.tree.map(lambda e, o: jnp.where(o != 0, e, 0.0), expected, target)
    return kept, target


def _evidence_rows(
    evidence: Evidence, target: PyTree, layers: tuple[str, ...]
) -> list[tuple[jax.Array, jax.Array, jax.Array]]:
    """Returns (expected, read, variance) of each tensor that counts."""
    spread = jax.tree.leaves(evidence.spread())
    expected = jax.tree.map(lambda leaf: leaf[0], evidence.expected)
    names = tree.names(expected)
    rows = zip(
        names, jax.tree.leaves(expected), jax.tree.leaves(target), spread, strict=True
    )
    chosen = [
        (e, o, v[0] if v.ndim > e.ndim else v)
        for name, e, o, v in rows
        if not layers or name.startswith(layers)
    ]
    if not chosen:
        raise InputError(
            f"no tensor starts with {' or '.join(layers)}; the model has "
            f"{', '.join(names)}"
        )
    return chosen


def _smallest_sent(read: list[jax.Array]) -> jax.Array:
    sizes = [jnp.min(jnp.where(o != 0, jnp.abs(o), jnp.inf)) for o in read]
    return jnp.min(jnp.stack(sizes))


def _wrong_signs(expected: jax.Array, read: jax.Array) -> jax.Array:
    """Returns a smooth share of wrong signs, and how far the mean magnitude is off."""
    size = jnp.mean(jnp.abs(expected)) + _TINY
    agreement = jnp.sign(read) * expected / size
    told = jnp.mean(jnp.abs(read)) + _TINY
    smooth = jnp.mean(jax.nn.softplus(-_STEEP * agreement)) / _STEEP
    return smooth + jnp.square(jnp.log(size / told)) / 10.0


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
