"""What a client's update would be, had it held the attacker's dummy data."""

import jax
import jax.numpy as jnp

from gradaudit import tree
from gradaudit.kernels import batch_gradient
from gradaudit.types import Model, PyTree


def accumulated_gradient(
    model: Model,
    params: PyTree,
    inputs: jax.Array,
    targets: jax.Array,
    local_steps: int,
    learning_rate: float,
) -> PyTree:
    """Replays L plain SGD steps; returns -update / learning_rate.

    `inputs` (L * B, *shape) are taken B by B, in order. For L = 1 this is the batch
    gradient.
    """

    def batches(values: jax.Array) -> jax.Array:
        return values.reshape(local_steps, -1, *values.shape[1:])

    def step(total: PyTree, batch: tuple[jax.Array, jax.Array]) -> tuple[PyTree, None]:
        moved = jax.tree.map(lambda p, g: p - learning_rate * g, params, total)
        gradient = batch_gradient(model, moved, *batch)
        return jax.tree.map(jnp.add, total, gradient), None

    start = tree.scale(0.0, params)
    total, _ = jax.lax.scan(step, start, (batches(inputs), batches(targets)))
    return total
