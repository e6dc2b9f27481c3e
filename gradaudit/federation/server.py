"""The server: per-client transforms, then the new model from the weighted clients."""

import jax
import jax.numpy as jnp

from gradaudit.config import Aggregation, Weighting
from gradaudit.types import PyTree


def client_weights(weighting: Weighting, sizes: jax.Array) -> jax.Array:
    """Returns each client's weight, (clients,) float32."""
    if weighting is Weighting.EXAMPLES:
        return sizes.astype(jnp.float32)
    return jnp.ones(sizes.shape, jnp.float32)


def weighted_sum(
    aggregation: Aggregation, params: PyTree, updates: PyTree, weights: jax.Array
) -> PyTree:
    """Returns the weighted sum over clients of their updates, or of their models."""

    def total(update: jax.Array, received: jax.Array) -> jax.Array:
        sent = update
        if aggregation is Aggregation.FED_AVG:
            sent = received + update
        return jnp.tensordot(weights, sent, axes=1)

    return jax.tree.map(total, updates, params)


def aggregate(
    aggregation: Aggregation, params: PyTree, total: PyTree, weight: jax.Array
) -> PyTree:
    """Returns the new model from the weighted sum; no clients leave it unchanged."""

    def new(received: jax.Array, summed: jax.Array) -> jax.Array:
        mean = summed / jnp.maximum(weight, 1e-30)
        if aggregation is Aggregation.FED_SGD:
            mean = received + mean
        return jnp.where(weight > 0, mean, received)

    return jax.tree.map(new, params, total)
