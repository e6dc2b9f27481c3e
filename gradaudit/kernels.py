"""The compiled kernels: gradients of a batch and of each of its examples."""

import functools

import jax
import jax.numpy as jnp

from gradaudit.errors import InputError, require
from gradaudit.types import HostOrDevice, Model, PyTree


def one_hot(labels: jax.Array, classes: int) -> jax.Array:
    """Returns labels as rows of 0 and 1, float32."""
    return jax.nn.one_hot(labels, classes, dtype=jnp.float32)


def batch_gradient(
    model: Model, params: PyTree, inputs: jax.Array, targets: jax.Array
) -> PyTree:
    """Returns the gradient of the mean loss; targets are (batch, classes)."""
    return jax.grad(model.loss)(params, inputs, targets)


@functools.partial(jax.jit, static_argnums=0)
def per_example_gradients(
    model: Model, params: PyTree, inputs: jax.Array, targets: jax.Array
) -> PyTree:
    """Returns every example's own gradient, with a leading example axis."""

    def one(example: jax.Array, target: jax.Array) -> PyTree:
        return batch_gradient(model, params, example[None], target[None])

    return jax.vmap(one)(inputs, targets)


def check_batch(model: Model, inputs: HostOrDevice, labels: HostOrDevice) -> None:
    """Raises unless inputs and labels fit the model (host side, before jit)."""
    if tuple(inputs.shape[1:]) != model.input_shape:
        raise InputError(
            f"model {model.name!r} reads inputs of shape {model.input_shape}, "
            f"got {tuple(inputs.shape[1:])}"
        )
    require(len(inputs) > 0, "the batch is empty")
    require(
        labels.shape == (len(inputs),),
        f"{len(inputs)} inputs need labels of shape ({len(inputs)},), "
        f"got {labels.shape}",
    )
    require(bool(jnp.all(jnp.isfinite(inputs))), "the inputs hold NaN or infinity")
    outside = (labels < 0) | (labels >= model.classes)
    if bool(jnp.any(outside)):
        value = int(labels[jnp.argmax(outside)])
        raise InputError(f"label {value} is outside [0, {model.classes})")
