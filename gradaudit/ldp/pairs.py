"""Canaries: pairs of vectors that a mechanism promises to make hard to tell apart.

A canary is a spike: one large coordinate in every block (the tensors of a model, or
the whole vector). Gaussian noise and the LDP-SGD randomizer don't care where the norm
sits; for Laplace noise a spike is the worst case; and pruning keeps it.
"""

import dataclasses
import enum

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from gradaudit.errors import require


class Neighbours(enum.Enum):
    """Which pairs a privacy claim is about."""

    LOCAL = "local"  # any two inputs: distance up to twice the clip
    ADD_REMOVE = "add-remove"  # an input and none: distance up to the clip


@dataclasses.dataclass(frozen=True)
class Blocks:
    """How a vector falls into blocks, and the norm of the canary in each of them."""

    sizes: tuple[int, ...]
    norm: float

    def __post_init__(self) -> None:
        require(
            len(self.sizes) > 0 and min(self.sizes) >= 1,
            f"a vector needs at least one coordinate in every block, got {self.sizes}",
        )
        require(self.norm > 0, f"the canary's norm must be positive, got {self.norm}")

    def spike(self, last: bool) -> NDArray[np.float32]:
        """Returns a spike at the first or the last coordinate of each block."""
        ends = np.cumsum(self.sizes)
        vector = np.zeros(ends[-1], np.float32)
        vector[ends - 1 if last else ends - np.array(self.sizes)] = self.norm
        return vector


@dataclasses.dataclass(frozen=True, eq=False)
class Pair:
    """Two vectors, (2, d), and what they are called."""

    name: str
    vectors: jnp.ndarray


def pairs(blocks: Blocks, neighbours: Neighbours) -> tuple[Pair, ...]:
    """Returns the pairs to try for a claim about these neighbours."""
    spike, other = blocks.spike(last=False), blocks.spike(last=True)
    nothing = Pair("present and absent", jnp.stack([spike, np.zeros_like(spike)]))
    if neighbours is Neighbours.ADD_REMOVE:
        return (nothing,)
    opposite = Pair("opposite", jnp.stack([spike, -spike]))
    if len(spike) == len(blocks.sizes):  # one coordinate per block: no other direction
        return (opposite, nothing)
    return opposite, Pair("orthogonal", jnp.stack([spike, other])), nothing
