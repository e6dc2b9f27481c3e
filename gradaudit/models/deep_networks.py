"""Small deep networks: residual (He et al. 2016), patches (Dosovitskiy et al. 2021)."""

import enum
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from gradaudit.models.convolution import (
    GLOROT,
    HE,
    BatchNorm,
    Convolution,
    Dense,
    Layer,
    Path,
)
from gradaudit.models.model import STATISTICS
from gradaudit.types import PyTree

_GROUPS = 8
_MOMENTUM = 0.9


class Norm(enum.Enum):
    """What normalises, and by whose statistics."""

    GROUP = "each example by its own"
    RUNNING = "batch norm in evaluation mode: by the running ones, in training too"
    BATCH = "batch norm in training mode: by the batch's, which move the running ones"


class ResidualNet(nn.Module):
    """A first convolution, stages of residual blocks, the mean over pixels, logits.

    Every stage after the first halves height and width. Buffers: the running mean and
    variance of every batch norm.
    """

    widths: tuple[int, ...]  # of the stages
    blocks: int  # of every stage
    classes: int
    norm: Norm
    training: bool = False  # normalise by the batch's own statistics now
    conv_path: Path = Path.AUTO

    dense_layers = ("output",)  # whose inputs it hands out

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Returns the logits."""
        values = self._convolve(inputs, self.widths[0], 3, 1, "conv")
        values = nn.relu(self._normalise(values, "norm"))
        for stage, width in enumerate(self.widths, 1):
            for block in range(1, self.blocks + 1):
                stride = 2 if stage > 1 and block == 1 else 1
                values = self._block(values, width, stride, f"stage{stage}_{block}")
        values = jnp.mean(values, axis=(1, 2))
        return Dense(self.classes, kernel_init=GLOROT, name="output")(values)

    def _block(self, values: jax.Array, width: int, stride: int, name: str) -> Any:
        inner = self._convolve(values, width, 3, stride, f"{name}_conv1")
        inner = nn.relu(self._normalise(inner, f"{name}_norm1"))
        inner = self._convolve(inner, width, 3, 1, f"{name}_conv2")
        inner = self._normalise(inner, f"{name}_norm2")
        if inner.shape != values.shape:
            values = self._convolve(values, width, 1, stride, f"{name}_skip")
            values = self._normalise(values, f"{name}_norm3")
        return nn.relu(inner + values)

    def _convolve(
        self, values: jax.Array, width: int, kernel: int, stride: int, name: str
    ) -> Any:
        layer = Layer(width, kernel, stride)  # the norm behind it has the bias
        return Convolution(layer, HE, None, self.conv_path, name=name)(values)

    def _normalise(self, values: jax.Array, name: str) -> Any:
        if self.norm is Norm.GROUP:
            groups = min(_GROUPS, values.shape[-1])
            return nn.GroupNorm(groups, name=name)(values)
        running = not self.training
        return BatchNorm(running, momentum=_MOMENTUM, name=name)(values)

    @nn.nowrap
    def train(self, variables: Any, inputs: jax.Array) -> tuple[Any, PyTree]:
        """Returns the logits by the batch's statistics, and the moved running ones."""
        training = self.clone(training=True)
        logits, moved = training.apply(variables, inputs, mutable=["batch_stats"])
        return logits, moved

    @nn.nowrap
    def statistics(self, variables: Any, inputs: jax.Array) -> PyTree:
        """Returns the statistics of these inputs, laid out like the buffers."""
        _, seen = self.apply(variables, inputs, mutable=[STATISTICS])
        layers = seen.get(STATISTICS, {})
        alone = {
            name: {which: values[0] for which, values in layer.items()}
            for name, layer in layers.items()
        }
        return {"batch_stats": alone} if alone else {}


_POSITIONS = nn.initializers.normal(0.02)


class VisionTransformer(nn.Module):
    """Patches, a learned position of each, attention blocks, their mean, logits."""

    patch: int  # side of a patch; images are padded with zeros to a multiple of it
    width: int
    heads: int
    depth: int
    classes: int

    dense_layers = ("output",)  # whose inputs it hands out

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Returns the logits."""
        tokens = patches(inputs, self.patch)
        values = nn.Dense(self.width, kernel_init=GLOROT, name="patches")(tokens)
        shape = (tokens.shape[1], self.width)
        values = values + self.param("positions", _POSITIONS, shape)
        for block in range(1, self.depth + 1):
            values = self._block(values, f"block{block}")
        values = jnp.mean(nn.LayerNorm(name="norm")(values), axis=1)
        return Dense(self.classes, kernel_init=GLOROT, name="output")(values)

    def _block(self, values: jax.Array, name: str) -> jax.Array:
        inner = nn.LayerNorm(name=f"{name}_norm1")(values)
        attention = nn.MultiHeadDotProductAttention(
            self.heads, kernel_init=GLOROT, name=f"{name}_attention"
        )
        values = values + attention(inner)
        inner = nn.LayerNorm(name=f"{name}_norm2")(values)
        wider = nn.Dense(2 * self.width, kernel_init=GLOROT, name=f"{name}_dense1")
        inner = nn.gelu(wider(inner))
        narrow = nn.Dense(self.width, kernel_init=GLOROT, name=f"{name}_dense2")
        return values + narrow(inner)


def patches(images: jax.Array, side: int) -> jax.Array:
    """Returns the patches of images (n, h, w, c), row by row: (n, patches, side²·c)."""
    count, height, width, channels = images.shape
    rows, columns = -(-height // side), -(-width // side)
    room = ((0, 0), (0, rows * side - height), (0, columns * side - width), (0, 0))
    split = jnp.pad(images, room).reshape(count, rows, side, columns, side, channels)
    return jnp.swapaxes(split, 2, 3).reshape(count, rows * columns, -1)


def from_patches(rows: jax.Array, side: int, shape: tuple[int, ...]) -> jax.Array:
    """Returns the image (h, w, c) of its patches (patches, side²·c), row by row."""
    height, width, channels = shape
    across = -(-width // side)
    split = rows.reshape(-1, across, side, side, channels)
    whole = jnp.swapaxes(split, 1, 2).reshape(-1, across * side, channels)
    return whole[:height, :width]
