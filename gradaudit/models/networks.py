"""The papers' networks as flax modules (NHWC, any input shape, any class count)."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import linen as nn

from gradaudit.errors import InputError, unknown_name
from gradaudit.models.convolution import (
    GLOROT,
    Activation,
    Convolution,
    Dense,
    Initializer,
    Layer,
    Path,
    symmetric_uniform,
)
from gradaudit.models.deep_networks import Norm, ResidualNet, VisionTransformer
from gradaudit.models.model import Model, Patches
from gradaudit.spec import rebuilds
from gradaudit.types import PyTree


class ConvNet(nn.Module):
    """Convolutions with an activation after each, hidden dense layers, logits."""

    layers: tuple[Layer, ...]
    classes: int
    activation: Activation
    hidden: tuple[int, ...] = ()
    kernel_init: Initializer = GLOROT
    bias_init: Initializer = nn.initializers.zeros
    conv_path: Path = Path.AUTO

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Returns the logits."""
        values = inputs
        for index, layer in enumerate(self.layers, 1):
            values = self._convolution(layer, f"conv{index}")(values)
            values = self._behind(layer, values)
        values = values.reshape(values.shape[0], -1)
        for index, width in enumerate(self.hidden, 1):
            values = self.activation(self._dense(width, f"dense{index}")(values))
        return self._dense(self.classes, "output")(values)

    @property
    def dense_layers(self) -> tuple[str, ...]:
        """The names of the dense layers, first to last."""
        hidden = [f"dense{index}" for index, _ in enumerate(self.hidden, 1)]
        return (*hidden, "output")

    @property
    def stages(self) -> tuple[str, ...]:
        """The names of the convolutions, first to last: see `stage`."""
        return tuple(f"conv{index}" for index, _ in enumerate(self.layers, 1))

    def stage(self, name: str, params: PyTree, values: jax.Array) -> jax.Array:
        """Returns what one convolution and its pooling make of values.

        The stages, one after the other, make what the first dense layer reads.
        """
        layer = self.layers[self.stages.index(name)]
        alone = self._convolution(layer, name, parent=None)
        return self._behind(layer, jnp.asarray(alone.apply({"params": params}, values)))

    def _convolution(self, layer: Layer, name: str, **parent: None) -> Convolution:
        return Convolution(
            layer, self.kernel_init, self.bias_init, self.conv_path, name=name, **parent
        )

    def _behind(self, layer: Layer, values: jax.Array) -> jax.Array:
        values = self.activation(values)
        if layer.pool == 1:
            return values
        window = (layer.pool, layer.pool)
        return nn.max_pool(values, window, window, padding="SAME")

    def _dense(self, width: int, name: str) -> Dense:
        return Dense(
            width, kernel_init=self.kernel_init, bias_init=self.bias_init, name=name
        )


@dataclasses.dataclass(frozen=True)
class Architecture:
    """One line of `gradaudit list`: what a network is made of, and its paper."""

    name: str
    summary: str
    paper: str
    network: Callable[[int, Path], nn.Module]  # of (classes, how it convolves)
    input_layer: str | None = None  # who has none reads images only
    coupled: bool = False
    signed_features: bool = False
    patches: Patches | None = None


def _untrained(*strides: int) -> Callable[[int, Path], ConvNet]:
    """5x5 convolutions of 12 features, U(-0.5, 0.5): the attack papers' nets."""
    layers = tuple(Layer(12, 5, stride, padding=2) for stride in strides)
    return lambda classes, path: ConvNet(
        layers,
        classes,
        nn.sigmoid,
        kernel_init=symmetric_uniform,
        bias_init=symmetric_uniform,
        conv_path=path,
    )


def _trained(
    *layers: Layer, hidden: tuple[int, ...] = ()
) -> Callable[[int, Path], ConvNet]:
    """ReLU and Glorot: nets that clients train."""
    return lambda classes, path: ConvNet(
        layers, classes, nn.relu, hidden, conv_path=path
    )


def _residual(norm: Norm) -> Callable[[int, Path], ResidualNet]:
    """ResNet-8."""
    return lambda classes, path: ResidualNet(
        (16, 32, 64), 1, classes, norm, conv_path=path
    )


_PATCH = 4
_HE = "He et al. 2016"
_TABLE = (
    Architecture(
        "cpl",
        "4 convolutions 5x5x12, sigmoid, dense; untrained U(-0.5, 0.5)",
        "Wei et al. 2020 (CPL)",
        _untrained(2, 2, 1, 1),
    ),
    Architecture(
        "dlg",
        "3 convolutions 5x5x12, sigmoid, dense; untrained U(-0.5, 0.5)",
        "Zhu et al. 2019 (DLG)",
        _untrained(2, 2, 1),
    ),
    Architecture(
        "dpfl-2conv",
        "2 convolutions 5x5x12, sigmoid, dense; untrained U(-0.5, 0.5)",
        "DPFL, grey images",
        _untrained(2, 2),
    ),
    Architecture(
        "dpfl-3conv",
        "3 convolutions 5x5x12, sigmoid, dense; untrained U(-0.5, 0.5)",
        "DPFL, colour images",
        _untrained(2, 2, 1),
    ),
    Architecture(
        "cnn",
        "training CNN: 2 convolutions 3x3 (32, 64), ReLU, dense; Glorot",
        "Wei et al. 2021 (Fed-CDP), section VII",
        _trained(Layer(32, 3, 2), Layer(64, 3, 2)),
    ),
    Architecture(
        "ldp-cnn",
        "conv 16@8x8, pool, conv 32@4x4, pool, dense 32, dense; Glorot",
        "LDP lower bounds, section 5",
        _trained(Layer(16, 8, 2, pool=2), Layer(32, 4, 2, pool=2), hidden=(32,)),
    ),
    Architecture(
        "mlp",
        "2 hidden dense layers (64, 32), ReLU, for tables; Glorot",
        "Wei et al. 2021 (Fed-CDP), section VII",
        _trained(hidden=(64, 32)),
        input_layer="dense1",
    ),
    Architecture(
        "mlp-wide",
        "3 hidden dense layers of 200, ReLU, for images and tables; Glorot",
        "Dimitrov et al. 2024 (SPEAR), section 6, half as deep",
        _trained(hidden=(200, 200, 200)),
        input_layer="dense1",
    ),
    Architecture(
        "resnet-gn",
        "ResNet-8: 3 stages (16, 32, 64) of a block, group norm, ReLU",
        f"{_HE}; Wu and He 2018",
        _residual(Norm.GROUP),
    ),
    Architecture(
        "resnet-bn",
        "ResNet-8, batch norm in evaluation mode: clients keep the statistics",
        f"{_HE}; Ioffe and Szegedy 2015",
        _residual(Norm.RUNNING),
    ),
    Architecture(
        "resnet-bn-train",
        "ResNet-8, batch norm in training mode: no per-example gradients",
        f"{_HE}; Ioffe and Szegedy 2015",
        _residual(Norm.BATCH),
        coupled=True,
    ),
    Architecture(
        "vit",
        "transformer: patches of 4x4, 2 blocks of width 64, 4 heads, GELU",
        "Dosovitskiy et al. 2021",
        lambda classes, _: VisionTransformer(_PATCH, 64, 4, 2, classes),
        signed_features=True,
        patches=Patches("patches", "positions", _PATCH),
    ),
)


MODELS: dict[str, Architecture] = {entry.name: entry for entry in _TABLE}


@rebuilds
def build_model(
    name: str, input_shape: tuple[int, ...], classes: int, path: Path = Path.AUTO
) -> Model:
    """Returns a model of the table by name."""
    if name not in MODELS:
        raise unknown_name("model", name, MODELS)
    made, shape = MODELS[name], tuple(input_shape)
    if not classes >= 2:
        raise InputError(f"a model needs at least 2 classes, got {classes}")
    if made.input_layer is None and len(shape) != 3:
        raise InputError(
            f"model {name!r} reads images (height, width, channels); the data has "
            f"shape {shape}: use a model for tables, as 'mlp'"
        )
    given = (("name", name), ("input_shape", shape), ("classes", classes))
    return Model(
        name=name,
        network=made.network(classes, path),
        input_shape=shape,
        classes=classes,
        output_layer="output",
        input_layer=made.input_layer,
        coupled=made.coupled,
        signed_features=made.signed_features,
        patches=made.patches,
        origin=(build_model, (*given, ("path", path))),
    )
