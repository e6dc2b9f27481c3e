"""Your own model: from a function, from flax, from torch, or from a Python file."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import linen

from gradaudit.errors import InputError
from gradaudit.models.adapters_torch import from_torch
from gradaudit.models.end_layers import found_layers
from gradaudit.models.model import Model, Network, from_function, with_loss
from gradaudit.models.networks import MODELS, build_model
from gradaudit.text import load_user_object, takes, users_code
from gradaudit.types import Key, PyTree

STATISTICS = "nnx"  # the collection of an nnx module's other state
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
    model = with_loss(model, loss)
    found = found_layers(model, output_layer, input_layer)
    return dataclasses.replace(
        model,
        output_layer=found.output_layer,
        input_layer=found.input_layer,
        signed_features=found.signed,
    )


def _without_keys(others: Any) -> Any:
    """Raises for state that is no array of numbers: keys of dropout, say."""
    for leaf in jax.tree.leaves(others):
        if not jnp.issubdtype(leaf.dtype, jnp.number):
            raise InputError(
                "the module holds random keys (dropout): build it without, in "
                "evaluation"
            )
    return others


__all__ = ["from_flax", "from_function", "from_torch", "is_file", "model_for"]

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
