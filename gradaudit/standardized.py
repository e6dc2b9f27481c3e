"""Features with mean 0 and deviation 1, inside the model.

Data stays in [0, 1], as attacks and metrics expect; the model sees what trains well.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradaudit.data import Dataset
from gradaudit.types import Key, Model, Network

_SMALLEST = 1e-3  # a feature that hardly varies is not blown up


@dataclasses.dataclass(frozen=True)
class Standardized:
    """A network that reads (inputs - mean) / deviation, feature by feature."""

    network: Network
    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    def init(self, key: Key, inputs: jax.Array) -> Any:
        """Returns the network's variables."""
        return self.network.init(key, self._scaled(inputs))

    def apply(self, variables: Any, inputs: jax.Array) -> Any:
        """Returns the logits, (batch, classes)."""
        return self.network.apply(variables, self._scaled(inputs))

    def _scaled(self, inputs: jax.Array) -> jax.Array:
        shape = inputs.shape[1:]
        mean = jnp.asarray(self.mean, inputs.dtype).reshape(shape)
        return (inputs - mean) / jnp.asarray(self.deviation).reshape(shape)


def standardize(model: Model, data: Dataset) -> Model:
    """Returns the model with the data's own means and deviations in front.

    The statistics become part of the model, which every client and adversary knows.
    """
    flat = data.inputs.reshape(len(data), -1).astype(np.float64)
    network = Standardized(
        network=model.network,
        mean=tuple(flat.mean(axis=0).tolist()),
        deviation=tuple(np.maximum(flat.std(axis=0), _SMALLEST).tolist()),
    )
    # The first dense layer no longer reads the input itself.
    return dataclasses.replace(
        model, name=f"{model.name}, standardized", network=network, input_layer=None
    )
