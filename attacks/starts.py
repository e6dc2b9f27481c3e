"""Where the dummy data starts, and what the search moves in place of it.

A start maps a key and a shape to pixels. A relaxation maps free numbers to valid
inputs: a part of `Matching`, which for a model gives a form that is frozen and
hashable, and knows the columns of the table.
"""

import dataclasses
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from gradaudit.data.dataset import Column
from gradaudit.errors import InputError
from gradaudit.models.model import Model
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
        if not self.tiles >= 1:
            raise InputError(f"tiles must be at least 1, got {self.tiles}")

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
        if not np.isfinite(values).all():
            raise InputError("the public image holds NaN")
        return cls(values.shape, values.tobytes())

    def __call__(self, key: Key, shape: tuple[int, ...]) -> jax.Array:
        """Returns the image once per example."""
        del key
        if self.shape != tuple(shape[1:]):
            raise InputError(
                f"the public image has shape {self.shape}, the inputs "
                f"{tuple(shape[1:])}"
            )
        image = np.frombuffer(self.pixels, np.float32).reshape(self.shape)
        return jnp.broadcast_to(jnp.asarray(image), shape)


_LEAST = 1e-3  # a share that starts at zero would stay there


class Form(Protocol):
    """A relaxation for one model: pure functions of (examples, ...) arrays."""

    def inputs(self, free: jax.Array) -> jax.Array:
        """Returns the inputs (examples, *input_shape) that free numbers stand for."""

    def free(self, inputs: jax.Array) -> jax.Array:
        """Returns free numbers that stand for inputs nearly like these."""

    @property
    def width(self) -> int:
        """How many free numbers stand for an input."""

    def boxed(self, free: tuple[int, ...]) -> NDArray[np.bool_]:
        """Returns which free numbers of this shape are to stay in [0, 1]."""

    def pooled(self, answers: jax.Array) -> jax.Array:
        """Returns one answer of several: (trials, examples, ...) to (examples, ...)."""


class Relaxation(Protocol):
    """A way to keep dummy inputs valid without a projection."""

    def of(self, model: Model) -> Form:
        """Returns the form for inputs of this model."""


@dataclasses.dataclass(frozen=True)
class Mixed:
    """Categories by a softmax over their values (Vero et al. 2023), numbers in a box.

    Where a value may be unknown, that is one more value, of which no feature is set.
    Inputs without columns are numbers.
    """

    def of(self, model: Model) -> "MixedForm":
        """Returns the form for the model's columns."""
        return MixedForm(model.columns, model.input_shape)


@dataclasses.dataclass(frozen=True)
class MixedForm:
    """Free numbers (examples, free) of inputs (examples, *shape)."""

    columns: tuple[Column, ...]
    shape: tuple[int, ...]

    def inputs(self, free: jax.Array) -> jax.Array:
        """Returns numbers as they are, and shares of every category's values."""
        if not self.columns:
            return free.reshape(len(free), *self.shape)
        parts, at = [], 0
        for column in self.columns:
            own = free[:, at : at + _width(column)]
            at += _width(column)
            shares = jax.nn.softmax(own)[:, : column.features]
            parts.append(shares if column.values else own)
        return jnp.concatenate(parts, axis=1)

    def free(self, inputs: jax.Array) -> jax.Array:
        """Returns numbers as they are, and logarithms of shares."""
        if not self.columns:
            return inputs.reshape(len(inputs), -1)
        parts = []
        for column, own in self._split(inputs):
            if not column.values:
                parts.append(own)
                continue
            rest = 1.0 - jnp.sum(own, axis=1, keepdims=True)
            shares = jnp.concatenate([own, rest], axis=1) if column.optional else own
            parts.append(jnp.log(jnp.maximum(shares, _LEAST)))
        return jnp.concatenate(parts, axis=1)

    @property
    def width(self) -> int:
        """The sum over the columns."""
        return sum(map(_width, self.columns)) or int(np.prod(self.shape))

    def boxed(self, free: tuple[int, ...]) -> NDArray[np.bool_]:
        """Returns the numbers; shares are valid whatever they come from."""
        if not self.columns:
            return np.ones(free, bool)
        each = [[not column.values] * _width(column) for column in self.columns]
        return np.broadcast_to(np.concatenate(each), free)

    def pooled(self, answers: jax.Array) -> jax.Array:
        """Returns the median of numbers, the value with most votes of categories."""
        middle, votes = jnp.median(answers, axis=0), jnp.mean(answers, axis=0)
        if not self.columns:
            return middle
        pairs = zip(self._split(middle), self._split(votes), strict=True)
        parts = []
        for (column, number), (_, shares) in pairs:
            if not column.values:
                parts.append(number)
                continue
            rest = 1.0 - jnp.sum(shares, axis=1, keepdims=True)
            none = column.optional & (rest > jnp.max(shares, axis=1, keepdims=True))
            chosen = jax.nn.one_hot(jnp.argmax(shares, axis=1), column.features)
            parts.append(jnp.where(none, 0.0, chosen).astype(shares.dtype))
        return jnp.concatenate(parts, axis=1)

    def _split(self, inputs: jax.Array) -> list[tuple[Column, jax.Array]]:
        """Returns every column with its features (examples, features)."""
        pairs, at = [], 0
        for column in self.columns:
            pairs.append((column, inputs[:, at : at + column.features]))
            at += column.features
        return pairs


def _width(column: Column) -> int:
    """Returns how many free numbers a column takes."""
    return column.features + column.optional
