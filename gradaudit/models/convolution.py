"""What networks are made of: layers, and convolution as fast as the backend allows.

On CPU XLA's own is slow inside loops, and a convolution whose weights differ per
victim or per client becomes a slower grouped one under vmap. There the compiled maps
are several times faster, and so are their first and second derivatives; a package
without them writes patches and multiplies matrices. Accelerators have good native
convolutions. This module decides, and nothing else does.
"""

import dataclasses
import enum
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import lax

from gradaudit.errors import InputError
from gradaudit.models.convolution_maps import (
    Padding,
    compiled_convolution,
    native_convolution,
)
from gradaudit.models.model import INPUTS, STATISTICS
from gradaudit.types import Key


class Path(enum.Enum):
    """How a convolution is computed; AUTO asks the backend when it is traced."""

    AUTO = "auto"
    NATIVE = "native"
    PATCHES = "patches"
    COMPILED = "compiled"


NOT_COMPILED = (
    "this gradaudit was built without a C compiler and has no compiled convolution; "
    "use the path 'auto', or install a C compiler and gradaudit again"
)


def same_padding(
    height: int, width: int, kernel: tuple[int, int], stride: int
) -> Padding:
    """Returns the padding that makes the output ceil(size / stride)."""

    def one(length: int, window: int) -> tuple[int, int]:
        total = max((-(-length // stride) - 1) * stride + window - length, 0)
        return total // 2, total - total // 2

    return one(height, kernel[0]), one(width, kernel[1])


def convolve(
    inputs: jax.Array,
    kernel: jax.Array,
    stride: int,
    padding: Padding,
    path: Path = Path.AUTO,
) -> jax.Array:
    """Returns inputs (n, h, w, c) convolved with kernel (kh, kw, c, features)."""
    if path is Path.AUTO:
        path = fastest()
    if path is Path.COMPILED:
        compiled = compiled_convolution()
        if compiled is None:
            raise InputError(NOT_COMPILED)
        # It knows float32 alone, which every net of the catalogue is.
        single = inputs.dtype == kernel.dtype == jnp.float32
        function = compiled if compiled is not None and single else _patches
    else:
        function = native_convolution if path is Path.NATIVE else _patches
    return function(inputs, kernel, stride, padding)


def fastest() -> Path:
    """Returns what AUTO stands for on this machine."""
    if jax.default_backend() != "cpu":
        return Path.NATIVE
    return Path.PATCHES if compiled_convolution() is None else Path.COMPILED


def _patches(
    inputs: jax.Array, kernel: jax.Array, stride: int, padding: Padding
) -> jax.Array:
    patches = _gather_patches(inputs, kernel.shape[:2], stride, padding)
    return patches @ kernel.reshape(-1, kernel.shape[-1])


def _gather_patches(
    inputs: jax.Array, window: Sequence[int], stride: int, padding: Padding
) -> jax.Array:
    """Returns (n, rows, columns, kernel entries): what each output sees."""
    padded = _pad(inputs, ((0, 0), *padding, (0, 0)))
    # Columns first, then rows: 5 + 5 slices where one go would take 25, and the
    # second set copies runs that are kernel_width times as long.
    across = _windows(padded, 2, window[1], stride)
    return _windows(across, 1, window[0], stride)


def _pad(values: jax.Array, padding: Sequence[tuple[int, int]]) -> jax.Array:
    """Pads with zeros; a negative amount cuts, which jnp.pad refuses."""
    zero = jnp.zeros((), values.dtype)
    return lax.pad(values, zero, [(low, high, 0) for low, high in padding])


def _windows(values: jax.Array, axis: int, window: int, stride: int) -> jax.Array:
    """Stacks the `window` neighbours along `axis` into the last axis."""
    count = (values.shape[axis] - window) // stride + 1
    reach = (count - 1) * stride + 1
    shifted = [
        lax.slice_in_dim(values, start, start + reach, stride, axis)
        for start in range(window)
    ]
    return jnp.concatenate(shifted, axis=-1)


Activation = Callable[[jax.Array], jax.Array]
Initializer = Callable[..., Any]


def symmetric_uniform(
    key: Key, shape: tuple[int, ...], dtype: Any = jnp.float32
) -> jax.Array:
    """U(-0.5, 0.5) for weights and biases: the untrained nets of the attack papers."""
    return jax.random.uniform(key, shape, dtype, -0.5, 0.5)


# One object each: two calls of glorot_uniform() compare unequal and would retrace.
GLOROT: Initializer = nn.initializers.glorot_uniform()
HE: Initializer = nn.initializers.he_normal()


@dataclasses.dataclass(frozen=True)
class Layer:
    """One convolution: features, kernel side, stride; then max-pooling, if any.

    `padding` None pads so that the output is ceil(size / stride).
    """

    features: int
    kernel: int
    stride: int
    padding: int | None = None
    pool: int = 1


class Convolution(nn.Module):
    """A convolution through `gradaudit.convolution`; no bias_init, no bias."""

    layer: Layer
    kernel_init: Initializer
    bias_init: Initializer | None
    conv_path: Path

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Returns (n, h, w, features)."""
        layer = self.layer
        side = (layer.kernel, layer.kernel)
        kernel = self.param(
            "kernel", self.kernel_init, (*side, inputs.shape[-1], layer.features)
        )
        if layer.padding is None:
            _, height, width, _ = inputs.shape
            padding = same_padding(height, width, side, layer.stride)
        else:
            padding = ((layer.padding, layer.padding),) * 2
        values = convolve(inputs, kernel, layer.stride, padding, self.conv_path)
        if self.bias_init is None:
            return values
        biased: jax.Array = values + self.param(
            "bias", self.bias_init, (layer.features,)
        )
        return biased


class Dense(nn.Dense):
    """flax's dense layer, which hands out its inputs to whoever asks for them."""

    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Returns (n, features)."""
        self.sow(INPUTS, "inputs", inputs)
        return super().__call__(inputs)


class BatchNorm(nn.BatchNorm):
    """flax's batch norm, which hands out the statistics of what it reads."""

    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Returns the normalised inputs, (n, ..., features)."""
        axes = tuple(range(inputs.ndim - 1))
        self.sow(STATISTICS, "mean", jnp.mean(inputs, axes))
        self.sow(STATISTICS, "var", jnp.var(inputs, axes))
        normalised: jax.Array = super().__call__(inputs)
        return normalised
