"""What networks are made of: layers, and convolution as fast as the backend allows.

On CPU a convolution whose weights differ per victim or per client becomes a slow
grouped convolution under vmap; written as patches + matmul it is several times
faster, and so are its first and second derivatives. Where all share the weights, as
the victims of one round do, the weights can be spread into a banded matrix once, and
a convolution is one wide matmul per row of the image (the native one is slow inside
loops). Accelerators have good native convolutions. This module decides, and nothing
else does.
"""

import dataclasses
import enum
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax import lax

from gradaudit.models.model import INPUTS, STATISTICS
from gradaudit.types import Key

Padding = tuple[tuple[int, int], tuple[int, int]]


Convolve = Callable[[jax.Array, jax.Array, int, Padding], jax.Array]


class Path(enum.Enum):
    """How a convolution is computed; AUTO asks the backend when it is traced."""

    AUTO = "auto"
    NATIVE = "native"
    PATCHES = "patches"
    SHARED = "shared"  # banded rows; patches for the tangents of the weights


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
        path = Path.PATCHES if jax.default_backend() == "cpu" else Path.NATIVE
    function = _FUNCTIONS[path]
    return function(inputs, kernel, stride, padding)


def _native(
    inputs: jax.Array, kernel: jax.Array, stride: int, padding: Padding
) -> jax.Array:
    return lax.conv_general_dilated(
        inputs,
        kernel,
        (stride, stride),
        padding,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )


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


_materialize: Callable[[jax.Array], jax.Array] = lax.optimization_barrier


def _windows(values: jax.Array, axis: int, window: int, stride: int) -> jax.Array:
    """Stacks the `window` neighbours along `axis` into the last axis."""
    count = (values.shape[axis] - window) // stride + 1
    reach = (count - 1) * stride + 1
    shifted = [
        lax.slice_in_dim(values, start, start + reach, stride, axis)
        for start in range(window)
    ]
    return jnp.concatenate(shifted, axis=-1)


def _banded_rows(
    inputs: jax.Array, kernel: jax.Array, stride: int, padding: Padding
) -> jax.Array:
    (top, bottom), (left, right) = padding
    count, height, width, channels = inputs.shape
    kernel_height, kernel_width, _, features = kernel.shape
    columns = (width + left + right - kernel_width) // stride + 1
    # band[j, x, q]: kernel column j meets input column x in output column q.
    offset = np.arange(width)[:, None] - stride * np.arange(columns)[None] + left
    band = (offset[None] == np.arange(kernel_width)[:, None, None]).astype(np.float32)
    # Not an einsum: its transpose would be done again in every turn of a loop.
    parts = [
        kernel[:, j, None, :, None, :] * band[j, :, None, :, None]
        for j in range(kernel_width)
    ]
    matrix = functools.reduce(jnp.add, parts)
    flat = _pad(
        inputs.reshape(count, height, width * channels), ((0, 0), (top, bottom), (0, 0))
    )
    stacked = _windows(flat, 1, kernel_height, stride)
    out: jax.Array = stacked @ matrix.reshape(-1, columns * features)
    return out.reshape(count, -1, columns, features)


class _Geometry(NamedTuple):
    """What is static about one convolution, and needed by its derivatives."""

    size: tuple[int, int]
    window: tuple[int, int]
    stride: int
    padding: Padding


def _shared(
    inputs: jax.Array, kernel: jax.Array, stride: int, padding: Padding
) -> jax.Array:
    height, width = inputs.shape[1:3]
    window = kernel.shape[0], kernel.shape[1]
    return _outputs(inputs, kernel, _Geometry((height, width), window, stride, padding))


# A convolution, its derivative by the inputs and its derivative by the kernel are
# bilinear maps, and each is a derivative of the others. Only the kernel is shared:
# what stands in its place in a second derivative is each victim's own.
_bilinear = functools.partial(jax.custom_vjp, nondiff_argnums=(2,))


@_bilinear
def _outputs(inputs: jax.Array, kernel: jax.Array, geometry: _Geometry) -> jax.Array:
    return _banded_rows(inputs, kernel, geometry.stride, geometry.padding)


@_bilinear
def _by_inputs(
    cotangent: jax.Array, kernel: jax.Array, geometry: _Geometry
) -> jax.Array:
    return _gathered_back(cotangent, kernel, geometry, _banded_rows)


@_bilinear
def _by_kernel(
    inputs: jax.Array, cotangent: jax.Array, geometry: _Geometry
) -> jax.Array:
    kernel: jax.Array = _by_kernel_forward(inputs, cotangent, geometry)[0]
    return kernel


def _remember(function: Any) -> Any:
    return lambda first, second, geometry: (
        function(first, second, geometry),
        (first, second),
    )


def _outputs_backward(geometry: _Geometry, saved: Any, out: jax.Array) -> Any:
    inputs, kernel = saved
    return _by_inputs(out, kernel, geometry), _by_kernel(inputs, out, geometry)


def _by_inputs_backward(geometry: _Geometry, saved: Any, out: jax.Array) -> Any:
    cotangent, kernel = saved
    return _outputs(out, kernel, geometry), _by_kernel(out, cotangent, geometry)


def _by_kernel_forward(
    inputs: jax.Array, cotangent: jax.Array, geometry: _Geometry
) -> Any:
    stride, padding = geometry.stride, geometry.padding
    patches = _gather_patches(inputs, geometry.window, stride, padding)
    features = cotangent.shape[-1]
    entries = cotangent.reshape(-1, features).T @ patches.reshape(-1, patches.shape[-1])
    # Else XLA swaps the factors to save the transpose, and reads the patches across.
    entries = _materialize(entries)
    kernel = entries.T.reshape(*geometry.window, inputs.shape[-1], features)
    return kernel, (patches, cotangent)


def _by_kernel_backward(geometry: _Geometry, saved: Any, out: jax.Array) -> Any:
    patches, cotangent = saved
    by_inputs = _gathered_back(cotangent, out, geometry, _patches)
    return by_inputs, patches @ out.reshape(-1, out.shape[-1])


_outputs.defvjp(_remember(_outputs), _outputs_backward)


_by_inputs.defvjp(_remember(_by_inputs), _by_inputs_backward)


_by_kernel.defvjp(_by_kernel_forward, _by_kernel_backward)


def _gathered_back(
    cotangent: jax.Array,
    kernel: jax.Array,
    geometry: _Geometry,
    convolution: Convolve,
) -> jax.Array:
    """Returns the derivative by the inputs, as a convolution that gathers.

    Each block of stride x stride inputs sees the same few outputs: one convolution
    of stride 1 with stride^2 times the features, whose last axis is then spread over
    the block. Scattering the outputs back with a stride is several times slower.
    """
    stride, size = geometry.stride, geometry.size
    rows, columns = (
        _Side.of(size[axis], cotangent.shape[1 + axis], geometry, axis)
        for axis in (0, 1)
    )
    channels, features = kernel.shape[2:]
    taps = jnp.pad(
        kernel, (rows.kernel_padding, columns.kernel_padding, (0, 0), (0, 0))
    )
    taps = taps.reshape(rows.taps, stride, columns.taps, stride, channels, features)
    taps = taps[::-1, :, ::-1].transpose(0, 2, 5, 1, 3, 4)
    taps = taps.reshape(rows.taps, columns.taps, features, -1)
    blocks = convolution(cotangent, taps, 1, (rows.padding, columns.padding))
    spread = blocks.reshape(-1, rows.blocks, columns.blocks, stride, stride, channels)
    spread = spread.transpose(0, 1, 3, 2, 4, 5)
    whole = spread.reshape(-1, rows.blocks * stride, columns.blocks * stride, channels)
    return whole[:, : size[0], : size[1]]


class _Side(NamedTuple):
    """How one axis of the inputs is gathered from the outputs, in blocks of stride.

    Input stride * a + p and output q meet at kernel entry stride * (a - q) + p + low.
    """

    blocks: int
    taps: int
    kernel_padding: tuple[int, int]
    padding: tuple[int, int]

    @classmethod
    def of(cls, size: int, outputs: int, geometry: _Geometry, axis: int) -> "_Side":
        stride, window = geometry.stride, geometry.window[axis]
        low = geometry.padding[axis][0]
        blocks = -(-size // stride)
        first = -((low + stride - 1) // stride)  # the least a - q that meets
        last = (window - 1 - low) // stride
        before = -(stride * first + low)
        taps = last - first + 1
        after = stride * taps - window - before
        return cls(blocks, taps, (before, after), (last, blocks - outputs - first))


_FUNCTIONS: dict[Path, Convolve] = {
    Path.NATIVE: _native,
    Path.PATCHES: _patches,
    Path.SHARED: _shared,
}


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
