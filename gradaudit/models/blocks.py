"""What the networks are made of: layers, and where their weights start."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from gradaudit.models.convolution import Path, convolve, same_padding
from gradaudit.models.model import INPUTS, STATISTICS
from gradaudit.types import Key

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
