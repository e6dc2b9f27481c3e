"""Losses other than cross-entropy: one logit for two classes, and squared errors."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from gradaudit.errors import unknown_name
from gradaudit.models.model import Model, Network, cross_entropy
from gradaudit.types import Key, PyTree


def squared_error(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """Returns mean((logits - targets)^2) over the outputs, one number per example."""
    return jnp.mean(jnp.square(logits - targets), axis=-1)


@dataclasses.dataclass(frozen=True)
class OneLogit:
    """A network with one logit z, read as the logits (0, z) of two classes.

    Cross-entropy of these is the binary cross-entropy of z.
    """

    network: Any
    eager: ClassVar[bool] = True  # asks the network, which knows best

    def init(self, key: Key, inputs: jax.Array) -> Any:
        """Returns the network's variables."""
        return self.network.init(key, inputs)

    def apply(self, variables: Any, inputs: jax.Array) -> Any:
        """Returns (batch, 2)."""
        return _two(self.network.apply(variables, inputs))

    def train(self, variables: Any, inputs: jax.Array) -> tuple[Any, PyTree]:
        """Returns (batch, 2) in training, and the buffers, of a coupled network."""
        logits, buffers = self.network.train(variables, inputs)
        return _two(logits), buffers

    @property
    def arrange(self) -> Any:
        """How the network reads named tensors; None if it has no names of its own."""
        return getattr(self.network, "arrange", None)


def _two(logits: jax.Array) -> jax.Array:
    single = logits.reshape(logits.shape[0], 1)
    return jnp.concatenate([jnp.zeros_like(single), single], axis=-1)


LOSSES = ("cross-entropy", "binary", "squared")


def with_loss(model: Model, loss: str) -> Model:
    """Returns the model trained by a loss of the table."""
    if loss not in LOSSES:
        raise unknown_name("loss", loss, LOSSES)
    if loss == "squared":
        return dataclasses.replace(model, example_loss=squared_error)
    if loss == "binary":
        network: Network = OneLogit(model.network)
        return dataclasses.replace(
            model, network=network, classes=2, example_loss=cross_entropy
        )
    return dataclasses.replace(model, example_loss=cross_entropy)
