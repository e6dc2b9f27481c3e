"""What can be read from one output of an unknown mechanism, as a score for g1.

No statistic is best against every error: noise that is too small shows in the
projection, a scale that depends on the input in the magnitude, and an answer that
carries its own projection in the consistency.
"""

import dataclasses
from typing import Protocol

import jax
import jax.numpy as jnp

_TINY = 1e-12


class Statistic(Protocol):
    """A score of one output, (d,), for the pair, (2, d), it may come from."""

    @property
    def name(self) -> str:
        """What the report calls it."""

    def score(self, output: jax.Array, pair: jax.Array) -> jax.Array:
        """Returns one number, (); larger speaks for the first vector."""


@dataclasses.dataclass(frozen=True)
class Projection:
    """The output along g1 - g2: the likelihood ratio of Gaussian noise."""

    name: str = "projection"

    def score(self, output: jax.Array, pair: jax.Array) -> jax.Array:
        """Returns <output, g1 - g2>."""
        return jnp.vdot(output, pair[0] - pair[1])


@dataclasses.dataclass(frozen=True)
class Magnitude:
    """The norm of the output; with `reversed`, small norms speak for g1."""

    reversed: bool = False

    @property
    def name(self) -> str:
        """What the report calls it."""
        return "smallness" if self.reversed else "magnitude"

    def score(self, output: jax.Array, pair: jax.Array) -> jax.Array:
        """Returns the norm of the output, or its negative."""
        del pair
        norm: jax.Array = jnp.linalg.norm(output)
        return -norm if self.reversed else norm


@dataclasses.dataclass(frozen=True)
class Consistency:
    """Whether the output could be a projection of g1 onto a line, rather than of g2.

    The projection w = <g, v> v satisfies |<w, g>| = |w|^2 for its own g only. LDP-SGD
    must send sgn(<g, v>) v: without the sign function the length of w gives g away.
    """

    name: str = "consistency"

    def score(self, output: jax.Array, pair: jax.Array) -> jax.Array:
        """Returns the logarithm of g2's misfit over g1's."""
        misfits = jnp.abs(jnp.abs(pair @ output) - jnp.vdot(output, output))
        logs = jnp.log(misfits + _TINY)
        return logs[1] - logs[0]


STATISTICS: tuple[Statistic, ...] = (
    Projection(),
    Magnitude(),
    Magnitude(reversed=True),
    Consistency(),
)
