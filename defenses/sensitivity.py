"""Sensitivity: the size of the change that the noise is meant to hide."""

import dataclasses
from typing import Protocol

import jax
import jax.numpy as jnp

from gradaudit.defenses.schedules import Schedule
from gradaudit.errors import require


class Sensitivity(Protocol):
    """Returns S from the round and, if data-dependent, from the clipped norms."""

    @property
    def data_dependent(self) -> bool:
        """Whether S is computed from the private batch."""

    @property
    def bound(self) -> Schedule:
        """An upper bound of S in each round, whatever the data."""

    def of(self, norms: list[jax.Array], t: jax.Array | int) -> jax.Array:
        """Returns S, (), for clipped tensors with these norms, (units,) each."""


@dataclasses.dataclass(frozen=True)
class FixedSensitivity:
    """S = C, the clipping bound of the round (Wei et al. 2021, Algorithms 1 and 2)."""

    bound: Schedule
    data_dependent: bool = dataclasses.field(default=False, init=False)

    def of(self, norms: list[jax.Array], t: jax.Array | int) -> jax.Array:
        """Returns S in round t."""
        return jnp.asarray(self.bound(t), jnp.float32)


@dataclasses.dataclass(frozen=True)
class LargestNorm:
    """S = the largest norm over units and tensors after clipping (l2-max).

    Wei et al. 2023, section 5.2; Wei & Liu 2022, section IV-A. S is at most the
    clipping bound, and it depends on the private batch, so that the noise scale is
    itself a leak: accounting says so. `smallest` keeps a vanishing batch noisy.
    """

    bound: Schedule  # the clip before it
    smallest: float = 0.0
    data_dependent: bool = dataclasses.field(default=True, init=False)

    def __post_init__(self) -> None:
        require(
            self.smallest >= 0, f"smallest must not be negative, got {self.smallest}"
        )

    def of(self, norms: list[jax.Array], t: jax.Array | int) -> jax.Array:
        """Returns the largest norm of this batch."""
        return jnp.maximum(jnp.max(jnp.stack(norms)), self.smallest)
