"""Finding the layers that attacks read: the one that makes logits, the one that reads.

Names don't tell; derivatives do. The output layer is the dense one whose bias moves the
logits one for one. The input layer is the dense one whose kernel has the gradient
x b^T, with x the input and b the gradient of its bias.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradaudit.errors import InputError, unknown_name
from gradaudit.models.model import Model
from gradaudit.types import PyTree

_EXACT = 1e-4
_BATCH = 2


@dataclasses.dataclass(frozen=True)
class Layers:
    """What was found; None where there is no such layer."""

    output_layer: str | None
    input_layer: str | None
    rows: tuple[int, ...] | None  # the input layer reads our inputs in this order
    signed: bool  # what the output layer reads may be negative


def dense_layers(params: PyTree) -> dict[str, Mapping[str, Any]]:
    """Returns the entries of the parameters that hold a matrix `kernel`."""
    if not isinstance(params, Mapping):
        return {}
    return {
        str(name): layer
        for name, layer in params.items()
        if isinstance(layer, Mapping) and getattr(layer.get("kernel"), "ndim", 0) == 2
    }


def found_layers(
    model: Model,
    output_layer: str | None = None,
    input_layer: str | None = None,
    channels_first: tuple[int, ...] | None = None,
) -> Layers:
    """Returns the layers of a model, those that were named checked.

    `channels_first` is the shape in which a foreign network flattens its inputs.
    """
    key = jax.random.key(0)
    params, buffers = model.init(key), model.initial_buffers(key)
    layers = dense_layers(params)
    for given in (output_layer, input_layer):
        if given is not None and given not in layers:
            raise unknown_name("dense layer", given, layers)
    inputs = jax.random.uniform(
        jax.random.fold_in(key, 1), (_BATCH, *model.input_shape)
    )
    shape = jax.eval_shape(model.apply, params, buffers, inputs).shape
    if shape != (_BATCH, model.classes):
        raise InputError(
            f"model {model.name!r} returns logits of shape {shape} for {_BATCH} "
            f"inputs, expected {(_BATCH, model.classes)}: check classes and loss"
        )
    outputs = output_layer or _output(model, params, buffers, inputs, layers)
    entry = input_layer or _input(model, params, buffers, inputs, layers)
    rows = None
    if entry is None and channels_first is not None:
        order = np.moveaxis(
            np.arange(np.prod(channels_first)).reshape(channels_first), 0, -1
        ).ravel()
        entry = _input(model, params, buffers, inputs, layers, order)
        rows = None if entry is None else tuple(order.tolist())
    signed = outputs is not None and _signed(model, params, buffers, inputs, outputs)
    return Layers(outputs, entry, rows, signed)


def _output(
    model: Model, params: PyTree, buffers: PyTree, inputs: jax.Array, layers: Any
) -> str | None:
    """Returns the dense layer whose bias moves the logits one for one."""
    widths = {model.classes, 1} if model.classes == 2 else {model.classes}
    fits = [n for n, layer in layers.items() if layer["kernel"].shape[1] in widths]

    def moved(name: str) -> bool:
        bias = layers[name].get("bias")
        if bias is None:
            return False
        step = jnp.arange(1.0, len(bias) + 1)

        def logits(bias: jax.Array) -> jax.Array:
            changed = {**params, name: {**params[name], "bias": bias}}
            return model.apply(changed, buffers, inputs)

        _, tangent = jax.jvp(logits, (jnp.asarray(bias),), (step,))
        expected = (
            step if len(bias) == model.classes else jnp.stack([0 * step[0], step[0]])
        )
        return bool(jnp.max(jnp.abs(tangent - expected)) < _EXACT)

    sure = [name for name in fits if moved(name)]
    if sure:
        return str(sure[-1])
    bare = [name for name in fits if "bias" not in layers[name]]
    return str(bare[0]) if len(bare) == 1 else None


def _gradient(model: Model, params: PyTree, buffers: PyTree, example: jax.Array) -> Any:
    def loss(params: PyTree) -> jax.Array:
        target = jax.nn.one_hot(jnp.zeros(1, jnp.int32), model.classes)
        logits = model.apply(params, buffers, example[None])
        return jnp.sum(model.example_loss(logits, target))

    return jax.grad(loss)(params)


def _input(
    model: Model,
    params: PyTree,
    buffers: PyTree,
    inputs: jax.Array,
    layers: Any,
    order: Any = None,
) -> str | None:
    """Returns the dense layer whose kernel's gradient is input times bias' gradient."""
    pixels = int(np.prod(model.input_shape))
    fits = [
        name
        for name, layer in layers.items()
        if "bias" in layer and layer["kernel"].shape[0] == pixels
    ]
    if not fits:
        return None
    gradient = _gradient(model, params, buffers, inputs[0])
    flat = np.asarray(inputs[0]).ravel()
    for name in fits:
        kernel, bias = (np.asarray(gradient[name][part]) for part in ("kernel", "bias"))
        kernel = kernel if order is None else kernel[order]
        scale = np.abs(kernel).max()
        if scale > 0 and np.abs(kernel - np.outer(flat, bias)).max() < _EXACT * scale:
            return str(name)
    return None


def _signed(
    model: Model, params: PyTree, buffers: PyTree, inputs: jax.Array, layer: str
) -> bool:
    """Whether features of random inputs are negative: kernel over bias gradient."""
    gradient = _gradient(model, params, buffers, inputs[0])[layer]
    if "bias" not in gradient:
        return False
    bias = np.asarray(gradient["bias"])
    place = int(np.abs(bias).argmax())
    if bias[place] == 0:
        return False
    features = np.asarray(gradient["kernel"])[:, place] / bias[place]
    return bool(features.min() < -_EXACT * np.abs(features).max())
