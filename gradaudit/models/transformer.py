"""A small transformer over patches of an image (Dosovitskiy et al. 2021)."""

import dataclasses

import jax
import jax.numpy as jnp
from flax import linen as nn

from gradaudit.errors import InputError, require
from gradaudit.models.blocks import GLOROT, Dense
from gradaudit.models.convolution import Path
from gradaudit.models.model import Model, Patches

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
        inner = nn.Dense(2 * self.width, kernel_init=GLOROT, name=f"{name}_dense1")(
            inner
        )
        inner = nn.Dense(self.width, kernel_init=GLOROT, name=f"{name}_dense2")(
            nn.gelu(inner)
        )
        return values + inner


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


@dataclasses.dataclass(frozen=True)
class Transformer:
    """One line of `gradaudit list`: a transformer over patches."""

    name: str
    summary: str
    paper: str
    patch: int = 4
    width: int = 64
    heads: int = 4
    depth: int = 2

    def build(
        self, input_shape: tuple[int, ...], classes: int, path: Path = Path.AUTO
    ) -> Model:
        """Returns the model for images of this shape; it has no convolutions."""
        del path
        require(classes >= 2, f"a model needs at least 2 classes, got {classes}")
        if len(input_shape) != 3:
            raise InputError(
                f"model {self.name!r} reads images (height, width, channels); the data "
                f"has shape {input_shape}: use a model for tables, as 'mlp'"
            )
        return Model(
            name=self.name,
            network=VisionTransformer(
                self.patch, self.width, self.heads, self.depth, classes
            ),
            input_shape=tuple(input_shape),
            classes=classes,
            output_layer="output",
            signed_features=True,
            patches=Patches("patches", "positions", self.patch),
        )
