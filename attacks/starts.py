"""Where the dummy data starts: each maps a key and a shape to pixels."""

import dataclasses
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np

from gradaudit.errors import require
from gradaudit.types import Key


class Initialization(Protocol):
    """A way to draw the first dummy inputs."""

    def __call__(self, key: Key, shape: tuple[int, ...]) -> jax.Array:
        """Returns dummy data of shape (examples, *input_shape)."""


@dataclasses.dataclass(frozen=True)
class Patterned:
    """One U[0, 1) patch, tiled (Wei et al. 2020): 2 = half, 4 = quarter, 8 = eighth.

    For images the patch is tiled over height and width; for tables over the features.
    """

    tiles: int = 2

    def __post_init__(self) -> None:
        require(self.tiles >= 1, f"tiles must be at least 1, got {self.tiles}")

    def __call__(self, key: Key, shape: tuple[int, ...]) -> jax.Array:
        """Returns a different pattern for each example."""
        tiled = 2 if len(shape) == 4 else 1  # axes after the examples
        patch = [-(-side // self.tiles) for side in shape[1 : 1 + tiled]]
        rest = shape[1 + tiled :]
        values = jax.random.uniform(key, (shape[0], *patch, *rest))
        repeated = jnp.tile(values, (1, *[self.tiles] * tiled, *[1] * len(rest)))
        return repeated[tuple(slice(0, side) for side in shape)]


@dataclasses.dataclass(frozen=True)
class Uniform:
    """Independent U[0, 1) pixels."""

    def __call__(self, key: Key, shape: tuple[int, ...]) -> jax.Array:
        """Returns uniform noise."""
        return jax.random.uniform(key, shape)


@dataclasses.dataclass(frozen=True)
class Normal:
    """Independent N(0, 1) pixels (DLG)."""

    def __call__(self, key: Key, shape: tuple[int, ...]) -> jax.Array:
        """Returns normal noise."""
        return jax.random.normal(key, shape)


@dataclasses.dataclass(frozen=True)
class Constant:
    """The same value everywhere: 0 is black, 1 white."""

    value: float = 0.5

    def __call__(self, key: Key, shape: tuple[int, ...]) -> jax.Array:
        """Returns a flat image."""
        del key
        return jnp.full(shape, self.value, jnp.float32)


@dataclasses.dataclass(frozen=True)
class Colour:
    """One random colour per example: a value per channel, equal over all pixels."""

    def __call__(self, key: Key, shape: tuple[int, ...]) -> jax.Array:
        """Returns one flat colour per example."""
        colour = (shape[0], *[1] * (len(shape) - 2), shape[-1])
        return jnp.broadcast_to(jax.random.uniform(key, colour), shape)


@dataclasses.dataclass(frozen=True)
class PublicImage:
    """A given public example for every dummy; kept as bytes, so that it is hashable."""

    shape: tuple[int, ...]
    pixels: bytes = dataclasses.field(repr=False)

    @classmethod
    def of(cls, image: np.ndarray) -> "PublicImage":
        """Makes one from an array (*input_shape) in [0, 1]."""
        values = np.ascontiguousarray(image, np.float32)
        require(bool(np.isfinite(values).all()), "the public image holds NaN")
        return cls(values.shape, values.tobytes())

    def __call__(self, key: Key, shape: tuple[int, ...]) -> jax.Array:
        """Returns the image once per example."""
        del key
        require(
            self.shape == tuple(shape[1:]),
            f"the public image has shape {self.shape}, the inputs {tuple(shape[1:])}",
        )
        image = np.frombuffer(self.pixels, np.float32).reshape(self.shape)
        return jnp.broadcast_to(jnp.asarray(image), shape)
