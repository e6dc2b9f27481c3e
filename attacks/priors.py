"""What an attacker believes about inputs before seeing the gradient."""

import dataclasses
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from gradaudit.errors import require


class Prior(Protocol):
    """A penalty on dummy inputs (examples, *input_shape).

    One that has a field `weight` multiplies by it: see `apart`.
    """

    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Returns a non-negative scalar."""


def apart(prior: Prior) -> tuple[Prior, float]:
    """Returns the prior with weight 1, and its weight.

    Attacks that differ in weights only then share a compiled program.
    """
    weight = getattr(prior, "weight", None)
    if weight is None:
        return prior, 1.0
    part: Any = prior
    return dataclasses.replace(part, weight=1.0), float(weight)


@dataclasses.dataclass(frozen=True)
class TotalVariation:
    """Weight x mean absolute difference of neighbouring pixels (anisotropic)."""

    weight: float = 1e-2

    def __post_init__(self) -> None:
        require(self.weight >= 0, f"weight must not be negative, got {self.weight}")

    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Returns 0 for anything but images."""
        if inputs.ndim != 4:
            return jnp.zeros(())
        down = jnp.mean(jnp.abs(jnp.diff(inputs, axis=1)))
        right = jnp.mean(jnp.abs(jnp.diff(inputs, axis=2)))
        return self.weight * (down + right)


@dataclasses.dataclass(frozen=True)
class SmallPixels:
    """Weight x mean square of the pixels (an L2 prior)."""

    weight: float = 1e-4

    def __post_init__(self) -> None:
        require(self.weight >= 0, f"weight must not be negative, got {self.weight}")

    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Returns the penalty."""
        return self.weight * jnp.mean(jnp.square(inputs))


@dataclasses.dataclass(frozen=True)
class OutsideBox:
    """Weight x mean square of how far pixels leave [0, 1]: a soft box."""

    weight: float = 1.0

    def __post_init__(self) -> None:
        require(self.weight >= 0, f"weight must not be negative, got {self.weight}")

    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Returns 0 inside the box."""
        excess = inputs - jnp.clip(inputs, 0.0, 1.0)
        return self.weight * jnp.mean(jnp.square(excess))
