"""flax modules as models: linen draws its parameters, nnx has them already."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import linen

from gradaudit.errors import InputError, require
from gradaudit.models.end_layers import found_layers
from gradaudit.models.losses import with_loss
from gradaudit.models.model import Model, Network
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
        require(training_call is None, "training_call is for linen modules only")
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
        require(
            jnp.issubdtype(leaf.dtype, jnp.number),
            "the module holds random keys (dropout): build it without, in evaluation",
        )
    return others
