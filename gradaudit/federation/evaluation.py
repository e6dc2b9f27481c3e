"""Accuracy and loss of a model on data that no client holds."""

import functools

import jax
import jax.numpy as jnp

from gradaudit.kernels import one_hot
from gradaudit.types import Model, PyTree

_BATCH = 250


@functools.partial(jax.jit, static_argnums=0)
def evaluate(
    model: Model, params: PyTree, inputs: jax.Array, labels: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Returns (accuracy, mean loss); memory does not grow with the examples."""

    def one(example: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        image, label = example
        logits = model.apply(params, image[None])
        loss = model.example_loss(logits, one_hot(label[None], model.classes))[0]
        return jnp.argmax(logits[0]) == label, loss

    correct, losses = jax.lax.map(
        one, (inputs, labels), batch_size=min(_BATCH, len(inputs))
    )
    return jnp.mean(correct.astype(jnp.float32)), jnp.mean(losses)
