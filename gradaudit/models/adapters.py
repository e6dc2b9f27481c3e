"""Your own model: from flax or a Python file; and which of its layers attacks read.

Names of layers don't tell; derivatives do. The output layer is the dense one whose bias
moves the logits one for one. The input layer is the dense one whose kernel has the
gradient x b^T, with x the input and b the gradient of its bias.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen

from gradaudit.errors import InputError, unknown_name
from gradaudit.models.model import Model, Network, with_loss
from gradaudit.models.networks import MODELS, build_model
from gradaudit.text import load_user_object, takes, users_code
from gradaudit.types import Key, PyTree

STATISTICS = "nnx"  # the collection of an nnx module's other state
_EXACT = 1e-4
_BATCH = 2
Words = tuple[tuple[str, Any], ...]


@dataclasses.dataclass(frozen=True)
class LinenNetwork:
    """A linen module that is called with fixed words (`train=False`)."""

    module: Any
    words: Words
    training_words: Words

    def init(self, key: Key, inputs: jax.Array) -> Any:
        """Returns the module's variables."""
        return self.module.init(key, inputs, **dict(self.words))

    def apply(self, variables: Any, inputs: jax.Array) -> Any:
        """Returns the logits, (batch, outputs)."""
        return self.module.apply(variables, inputs, **dict(self.words))

    def train(self, variables: Any, inputs: jax.Array) -> tuple[Any, PyTree]:
        """Returns the logits in training, and the buffers after it."""
        others = [name for name in variables if name != "params"]
        words = dict(self.training_words)
        return self.module.apply(  # type: ignore[no-any-return]
            variables, inputs, mutable=others, **words
        )


@dataclasses.dataclass(frozen=True, eq=False)
class NnxNetwork:
    """An nnx module with its own parameters; equal only to itself."""

    graph: Any
    params: Any
    others: Any  # statistics and keys
    words: Words
    eager: ClassVar[bool] = True

    def init(self, key: Key, inputs: jax.Array) -> Any:
        """Returns the module's own parameters and statistics."""
        from flax import nnx

        del key, inputs
        found = {"params": nnx.to_pure_dict(self.params)}
        statistics = nnx.to_pure_dict(self.others)
        return found | ({STATISTICS: statistics} if statistics else {})

    def apply(self, variables: Any, inputs: jax.Array) -> Any:
        """Returns the logits, (batch, outputs)."""
        from flax import nnx

        params, others = (
            jax.tree.map(lambda x: x, s) for s in (self.params, self.others)
        )
        nnx.replace_by_pure_dict(params, variables["params"])
        if STATISTICS in variables:
            nnx.replace_by_pure_dict(others, variables[STATISTICS])
        module = nnx.merge(self.graph, params, others)
        return module(inputs, **dict(self.words))


def from_flax(
    module: Any,
    input_shape: Sequence[int],
    classes: int,
    name: str | None = None,
    loss: str = "cross-entropy",
    call: Mapping[str, Any] | None = None,
    training_call: Mapping[str, Any] | None = None,
    output_layer: str | None = None,
    input_layer: str | None = None,
) -> Model:
    """Makes a flax module a Model: linen (parameters are drawn) or nnx (its own).

    Args:
      module: maps (batch, *input_shape) to logits.
      input_shape: one input; images are (height, width, channels).
      classes: how many; with `loss="binary"` the module has one output, and 2.
      name: of the model, in results; the module's class by default.
      loss: `cross-entropy`, `binary` (one logit) or `squared` (against one-hot).
      call: words that the module is called with, as `{"train": False}`.
      training_call: words in training, where that reads the batch's own statistics
        (batch norm); linen only.
      output_layer: the dense layer that makes the logits; found by default.
      input_layer: a dense layer that reads the input itself; found by default.
    """
    from flax import nnx

    words = tuple(sorted((call or {}).items()))
    network: Network
    if isinstance(module, linen.Module):
        training = tuple(sorted((training_call or {}).items()))
        network = LinenNetwork(module, words, training)
    elif isinstance(module, nnx.Module):
        if training_call is not None:
            raise InputError("training_call is for linen modules only")
        graph, params, others = nnx.split(module, nnx.Param, ...)
        network = NnxNetwork(graph, params, _without_keys(others), words)
    else:
        raise InputError(
            f"from_flax takes a linen or an nnx module, got {type(module).__name__}"
        )
    model = Model(
        name or type(module).__name__,
        network,
        tuple(int(side) for side in input_shape),
        classes,
        coupled=training_call is not None,
        drawn=isinstance(module, linen.Module),
    )
    return with_layers(with_loss(model, loss), output_layer, input_layer)[0]


def _without_keys(others: Any) -> Any:
    """Raises for state that is no array of numbers: keys of dropout, say."""
    for leaf in jax.tree.leaves(others):
        if not jnp.issubdtype(leaf.dtype, jnp.number):
            raise InputError(
                "the module holds random keys (dropout): build it without, in "
                "evaluation"
            )
    return others


class _Probe:
    """A model at its start, a few inputs, and its dense layers."""

    def __init__(self, model: Model) -> None:
        key = jax.random.key(0)
        self.model = model
        self.params = model.init(key)
        self.buffers = model.initial_buffers(key)
        shape = (_BATCH, *model.input_shape)
        self.inputs = jax.random.uniform(jax.random.fold_in(key, 1), shape)
        named = self.params.items() if isinstance(self.params, Mapping) else ()
        self.layers: dict[str, Mapping[str, Any]] = {
            str(name): layer
            for name, layer in named
            if isinstance(layer, Mapping)
            and getattr(layer.get("kernel"), "ndim", 0) == 2
        }

    @functools.cached_property
    def gradient(self) -> Any:
        """The gradient of the first input, with the label 0."""

        def loss(params: PyTree) -> jax.Array:
            target = jax.nn.one_hot(jnp.zeros(1, jnp.int32), self.model.classes)
            logits = self.model.apply(params, self.buffers, self.inputs[:1])
            return jnp.sum(self.model.example_loss(logits, target))

        return jax.grad(loss)(self.params)

    def check_outputs(self) -> None:
        """Raises unless there is a logit for every class."""
        shape = jax.eval_shape(
            self.model.apply, self.params, self.buffers, self.inputs
        ).shape
        if shape != (_BATCH, self.model.classes):
            raise InputError(
                f"model {self.model.name!r} returns logits of shape {shape} for "
                f"{_BATCH} inputs, expected {(_BATCH, self.model.classes)}: check "
                "classes and loss"
            )

    def output_layer(self) -> str | None:
        """Returns the dense layer whose bias moves the logits one for one."""
        classes = self.model.classes
        widths = {classes, 1} if classes == 2 else {classes}
        fits = [
            n for n, layer in self.layers.items() if layer["kernel"].shape[1] in widths
        ]
        sure = [name for name in fits if self._moves_logits(name)]
        if sure:
            return sure[-1]
        bare = [name for name in fits if "bias" not in self.layers[name]]
        return bare[0] if len(bare) == 1 else None

    def _moves_logits(self, name: str) -> bool:
        bias = self.layers[name].get("bias")
        if bias is None:
            return False

        def logits(bias: jax.Array) -> jax.Array:
            changed = {**self.params, name: {**self.params[name], "bias": bias}}
            return self.model.apply(changed, self.buffers, self.inputs)

        step = jnp.arange(1.0, len(bias) + 1)
        _, tangent = jax.jvp(logits, (jnp.asarray(bias),), (step,))
        both = len(bias) == self.model.classes
        expected = step if both else jnp.stack([0 * step[0], step[0]])
        return bool(jnp.max(jnp.abs(tangent - expected)) < _EXACT)

    def input_layer(self, order: Any = None) -> str | None:
        """Returns the dense layer whose kernel's gradient is input times bias' one.

        `order` says which row of the kernel reads which of our inputs.
        """
        pixels = int(np.prod(self.model.input_shape))
        flat = np.asarray(self.inputs[0]).ravel()
        for name, layer in self.layers.items():
            if "bias" not in layer or layer["kernel"].shape[0] != pixels:
                continue
            found = self.gradient[name]
            kernel, bias = np.asarray(found["kernel"]), np.asarray(found["bias"])
            kernel = kernel if order is None else kernel[order]
            scale = np.abs(kernel).max()
            gap = np.abs(kernel - np.outer(flat, bias)).max()
            if scale > 0 and gap < _EXACT * scale:
                return name
        return None

    def is_signed(self, layer: str) -> bool:
        """Whether features of random inputs are negative: kernel over bias gradient."""
        gradient = self.gradient[layer]
        if "bias" not in gradient:
            return False
        bias = np.asarray(gradient["bias"])
        place = int(np.abs(bias).argmax())
        if bias[place] == 0:
            return False
        features = np.asarray(gradient["kernel"])[:, place] / bias[place]
        return bool(features.min() < -_EXACT * np.abs(features).max())


def with_layers(
    model: Model,
    output_layer: str | None = None,
    input_layer: str | None = None,
    channels_first: tuple[int, ...] | None = None,
) -> tuple[Model, tuple[int, ...] | None]:
    """Returns the model with the layers that were named, or found.

    `channels_first` is the shape in which a foreign network flattens its inputs; where
    the input layer reads them so, its rows are returned in the order of our inputs.
    """
    probe = _Probe(model)
    for given in (output_layer, input_layer):
        if given is not None and given not in probe.layers:
            raise unknown_name("dense layer", given, probe.layers)
    probe.check_outputs()
    output_layer = output_layer or probe.output_layer()
    input_layer = input_layer or probe.input_layer()
    rows = None
    if input_layer is None and channels_first is not None:
        numbers = np.arange(np.prod(channels_first)).reshape(channels_first)
        order = np.moveaxis(numbers, 0, -1).ravel()
        input_layer = probe.input_layer(order)
        rows = None if input_layer is None else tuple(order.tolist())
    found = dataclasses.replace(
        model,
        output_layer=output_layer,
        input_layer=input_layer,
        signed_features=output_layer is not None and probe.is_signed(output_layer),
    )
    return found, rows


_FILE = ".py:"


def is_file(text: str) -> bool:
    """Whether a text names a Python file and something in it."""
    return _FILE in text or text.endswith(".py")


def model_for(
    text: str | Model | None,
    input_shape: tuple[int, ...] | None = None,
    classes: int | None = None,
) -> Model:
    """Returns the model of a text: a name of the table, or `path/to/file.py:build`.

    `build()` or `build(input_shape, classes)` returns a Model. A name needs the shape
    and the number of classes of the data. What is a model already is returned as it
    is; no text is `cpl` for images and `mlp` for tables.
    """
    if isinstance(text, Model):
        return text
    if not text:
        text = "cpl" if input_shape and len(input_shape) == 3 else "mlp"
    if is_file(text):
        return _built(text, input_shape, classes)
    if input_shape is None or classes is None:
        known = f", one of {', '.join(MODELS)}," if text in MODELS else ""
        raise InputError(
            f"model {text!r}{known} is built for data of a shape, and there is none to "
            "ask: say --model path/to/file.py:build, whose build() returns a model"
        )
    return build_model(text, input_shape, classes)


def _built(
    text: str, input_shape: tuple[int, ...] | None, classes: int | None
) -> Model:
    path, _, name = text.rpartition(":") if _FILE in text else (text, "", "build")
    build = load_user_object(path, name or "build")
    with users_code():
        if isinstance(build, Model):
            made = build
        elif takes(build, 0):
            made = build()
        else:
            if not takes(build, 2):
                raise InputError(
                    f"{text} must be a function build() or build(input_shape, classes)"
                )
            if input_shape is None:
                raise InputError(
                    f"{text} asks for (input_shape, classes), and there is no data to "
                    "take them from: make it build()"
                )
            made = build(input_shape, classes)
    if not isinstance(made, Model):
        raise InputError(
            f"{text} must return a gradaudit model, as gradaudit.models.from_torch, "
            f"from_flax or from_function make one; got {type(made).__name__}"
        )
    if input_shape is not None and made.input_shape != tuple(input_shape):
        raise InputError(
            f"{text} reads inputs of shape {made.input_shape}, the data has "
            f"{input_shape}"
        )
    if not (classes is None or made.classes >= classes):
        raise InputError(f"{text} has {made.classes} classes, the data {classes}")
    return made
