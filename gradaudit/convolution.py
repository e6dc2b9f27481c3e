"""Two-dimensional convolution, as fast as the backend allows.

On CPU a convolution whose weights differ per victim or per client becomes a slow
grouped convolution under vmap; written as patches + matmul it is several times
faster, and so are its first and second derivatives. Where all share the weights, as
the victims of one round do, the weights can be spread into a banded matrix once, and
a convolution is one wide matmul per row of the image (the native one is slow inside
loops). Accelerators have good native convolutions. This module decides, and nothing
else does.
"""

import enum
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Padding = tuple[tuple[int, int], tuple[int, int]]
Convolution = Callable[[jax.Array, jax.Array, int, Padding], jax.Array]


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
    kernel_height, kernel_width, _, features = kernel.shape
    padded = jnp.pad(inputs, ((0, 0), *padding, (0, 0)))
    # Columns first, then rows: 5 + 5 slices where one go would take 25, and the
    # second set copies runs that are kernel_width times as long.
    across = _windows(padded, 2, kernel_width, stride)
    patches = _windows(across, 1, kernel_height, stride)
    return patches @ kernel.reshape(-1, features)


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
    matrix = jnp.einsum("ijco,jxq->ixcqo", kernel, band)
    flat = jnp.pad(
        inputs.reshape(count, height, width * channels), ((0, 0), (top, bottom), (0, 0))
    )
    stacked = _windows(flat, 1, kernel_height, stride)
    out = stacked @ matrix.reshape(-1, columns * features)
    return out.reshape(count, -1, columns, features)


@functools.partial(jax.custom_jvp, nondiff_argnums=(2, 3))
def _shared(
    inputs: jax.Array, kernel: jax.Array, stride: int, padding: Padding
) -> jax.Array:
    return _banded_rows(inputs, kernel, stride, padding)


@_shared.defjvp
def _shared_jvp(
    stride: int,
    padding: Padding,
    primals: tuple[jax.Array, jax.Array],
    tangents: tuple[jax.Array, jax.Array],
) -> tuple[jax.Array, jax.Array]:
    inputs, kernel = primals
    d_inputs, d_kernel = tangents
    tangent = _shared(d_inputs, kernel, stride, padding) + _patches(
        inputs, d_kernel, stride, padding
    )
    return _shared(inputs, kernel, stride, padding), tangent


_FUNCTIONS: dict[Path, Convolution] = {
    Path.NATIVE: _native,
    Path.PATCHES: _patches,
    Path.SHARED: _shared,
}
