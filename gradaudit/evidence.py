"""Evidence: what an aware adversary expects to read of a guess, and how noise moves it.

A defense explains itself step by step: each transform turns the evidence about what
went into it into evidence about what comes out of it, with its deterministic part
differentiable in the guess and its noise as a law. Attacks read the result and know
nothing of transforms.
"""

import dataclasses
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from gradaudit.types import PyTree

_STATIC: dict[str, Any] = {"static": True}


class Told(Protocol):
    """The defense as an aware adversary knows it, up to where it reads; static.

    `memory` are the states of the transforms, as the Observation holds them.
    """

    @property
    def reads_updates(self) -> bool:
        """Whether a client's update is read, not an example's gradient."""

    def per_example(self, evidence: "Evidence", memory: PyTree) -> "Evidence":
        """Returns what becomes of the examples' gradients."""

    def update(self, evidence: "Evidence", memory: PyTree) -> "Evidence":
        """Returns what becomes of the update, at the client and at the server."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Evidence:
    """What is expected of units of a guess; every leaf leads with (units,).

    `variance` is that of the noise of each unit on its own and `common` that of noise
    which all units share, per tensor, broadcastable to it. `sparse`: coordinates that
    arrive as zero were left out, and if `thresholded` they are no larger than the
    smallest that were sent. `peaked`: the noise is Laplace. `signs`: signs arrive,
    times the mean magnitude of their tensor. `opaque` says in words why no more than
    this is known, if so.
    """

    expected: PyTree
    variance: PyTree
    common: PyTree
    peaked: bool = dataclasses.field(default=False, metadata=_STATIC)
    sparse: bool = dataclasses.field(default=False, metadata=_STATIC)
    thresholded: bool = dataclasses.field(default=False, metadata=_STATIC)
    signs: bool = dataclasses.field(default=False, metadata=_STATIC)
    opaque: str = dataclasses.field(default="", metadata=_STATIC)

    @classmethod
    def exact(cls, units: PyTree) -> "Evidence":
        """Returns the evidence that these units arrive as they are."""
        none = jax.tree.map(lambda leaf: jnp.zeros((), leaf.dtype), units)
        return cls(units, none, none)

    def scaled(self, factors: list[jax.Array | float]) -> "Evidence":
        """Returns each unit's tensors times their factors, (units,) or a number."""

        def wide(factor: jax.Array, leaf: jax.Array) -> jax.Array:
            return factor.reshape(factor.shape + (1,) * (leaf.ndim - factor.ndim))

        def times(leaf: jax.Array, factor: jax.Array | float) -> jax.Array:
            return leaf * wide(jnp.asarray(factor, leaf.dtype), leaf)

        def grown(variance: jax.Array, leaf: jax.Array, factor: Any) -> jax.Array:
            square = jnp.square(jnp.asarray(factor, leaf.dtype))
            return variance * (wide(square, leaf) if square.ndim else square)

        structure = jax.tree.structure(self.expected)
        each = jax.tree.unflatten(structure, factors)
        return dataclasses.replace(
            self,
            expected=jax.tree.map(times, self.expected, each),
            variance=jax.tree.map(grown, self.variance, self.expected, each),
            common=jax.tree.map(grown, self.common, self.expected, each),
        )

    def noisier(
        self, variances: list[jax.Array], peaked: bool = False, common: bool = False
    ) -> "Evidence":
        """Returns the evidence after noise of these variances, one per tensor."""
        field = "common" if common else "variance"
        leaves, structure = jax.tree.flatten(getattr(self, field))
        added = [old + new for old, new in zip(leaves, variances, strict=True)]
        return dataclasses.replace(
            self,
            **{field: jax.tree.unflatten(structure, added)},
            peaked=self.peaked or peaked,
        )

    def plus(self, other: "Evidence") -> "Evidence":
        """Returns the evidence about a sum of independent parts."""
        expected, variance, common = (
            jax.tree.map(jnp.add, getattr(self, name), getattr(other, name))
            for name in ("expected", "variance", "common")
        )
        return dataclasses.replace(
            self, expected=expected, variance=variance, common=common
        )

    def mean(self) -> "Evidence":
        """Returns the evidence about the mean over units, as a unit of its own."""
        units = jax.tree.leaves(self.expected)[0].shape[0]

        def averaged(variance: jax.Array, leaf: jax.Array) -> jax.Array:
            if variance.ndim == leaf.ndim:  # each unit has its own
                variance = jnp.mean(variance, axis=0, keepdims=True)
            return jnp.asarray(variance / units)

        return dataclasses.replace(
            self,
            expected=jax.tree.map(
                lambda leaf: jnp.mean(leaf, axis=0, keepdims=True), self.expected
            ),
            variance=jax.tree.map(averaged, self.variance, self.expected),
            peaked=self.peaked and units == 1,  # a mean of many is nearly normal
        )

    def spread(self) -> PyTree:
        """Returns the variance of each tensor's coordinates, whatever its source."""
        return jax.tree.map(jnp.add, self.variance, self.common)
