"""The server of LDP-SGD: one step from the mean of the clients' answers."""

import dataclasses
import math

import jax
import jax.numpy as jnp

from gradaudit.defenses.local import debias_factor
from gradaudit.errors import require


@dataclasses.dataclass(frozen=True)
class Server:
    """theta' = projection of (theta - learning_rate * factor * mean of the answers).

    Matsumoto et al. 2022, Algorithm 2 lines 4 and 5. The parameter set is the ball of
    `radius` (None: all of space). `as_printed` takes the factor of line 4 literally,
    which is 1/d of the unbiased one: the same server with a d times smaller learning
    rate. Neither the learning rate nor the set is published.
    """

    learning_rate: float = 0.01
    radius: float | None = None
    as_printed: bool = False

    def __post_init__(self) -> None:
        require(
            math.isfinite(self.learning_rate) and self.learning_rate > 0,
            f"learning_rate must be positive and finite, got {self.learning_rate}",
        )
        require(
            self.radius is None or self.radius > 0,
            f"radius must be positive, got {self.radius}",
        )

    def step_length(self, size: int, epsilon: float, clip: float) -> float:
        """Returns learning_rate * factor for gradients of `size` coordinates."""
        return self.learning_rate * debias_factor(size, epsilon, clip, self.as_printed)

    def update(
        self, parameters: jax.Array, answer: jax.Array, step_length: jax.Array
    ) -> jax.Array:
        """Returns the next parameters, (d,), from the mean answer, (d,)."""
        moved = parameters - step_length * answer
        if self.radius is None:
            return moved
        return moved * jnp.minimum(1.0, self.radius / jnp.linalg.norm(moved))
