"""Two-dimensional convolution, as fast as the backend allows.

On CPU a convolution whose weights differ per victim or per client becomes a slow
grouped convolution under vmap; written as patches + matmul it is several times
faster, and so are its first and second derivatives. Accelerators have good native
convolutions. This module decides, and nothing else does.
"""

import enum

import jax
import jax.numpy as jnp
from jax import lax

Padding = tuple[tuple[int, int], tuple[int, int]]


class Path(enum.Enum):
    """How a convolution is computed; AUTO asks the backend when it is traced."""

    AUTO = "auto"
    NATIVE = "native"
    PATCHES = "patches"


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
    function = {Path.NATIVE: _native, Path.PATCHES: _patches}[path]
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
    kernel_height, kernel_width, channels, features = kernel.shape
    padded = jnp.pad(inputs, ((0, 0), *padding, (0, 0)))
    count, height, width, _ = padded.shape
    rows = (height - kernel_height) // stride + 1
    columns = (width - kernel_width) // stride + 1
    # One strided slice per kernel position: slices fuse, gathers don't.
    windows = [
        lax.slice(
            padded,
            (0, i, j, 0),
            (
                count,
                i + (rows - 1) * stride + 1,
                j + (columns - 1) * stride + 1,
                channels,
            ),
            (1, stride, stride, 1),
        )
        for i in range(kernel_height)
        for j in range(kernel_width)
    ]
    patches = jnp.concatenate(windows, axis=-1)
    return patches @ kernel.reshape(-1, features)
