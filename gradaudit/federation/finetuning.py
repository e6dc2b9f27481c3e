"""Public fine-tuning: the server trains on data of its own after each round."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import optax

from gradaudit.errors import require
from gradaudit.kernels import batch_gradient, one_hot
from gradaudit.types import Key, Model, PyTree


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PublicData:
    """The server's own examples, and how it learns from them (one epoch of SGD)."""

    inputs: jax.Array  # (examples, *input_shape)
    labels: jax.Array  # (examples,)
    batch_size: int = dataclasses.field(default=50, metadata={"static": True})
    learning_rate: float = dataclasses.field(default=0.05, metadata={"static": True})


def fine_tune(model: Model, key: Key, params: PyTree, public: PublicData) -> PyTree:
    """Returns the parameters after one epoch in random order; a rest is left out."""
    require(
        len(public.inputs) >= public.batch_size,
        f"{len(public.inputs)} public examples are fewer than a batch of "
        f"{public.batch_size}",
    )
    return _epoch(model, key, params, public)


@functools.partial(jax.jit, static_argnums=0)
def _epoch(model: Model, key: Key, params: PyTree, public: PublicData) -> PyTree:
    optimizer = optax.sgd(public.learning_rate)
    steps = len(public.inputs) // public.batch_size
    order = jax.random.permutation(key, len(public.inputs))
    batches = order[: steps * public.batch_size].reshape(steps, public.batch_size)

    def step(
        carry: tuple[PyTree, optax.OptState], chosen: jax.Array
    ) -> tuple[tuple[PyTree, optax.OptState], None]:
        params, memory = carry
        targets = one_hot(public.labels[chosen], model.classes)
        gradient = batch_gradient(model, params, public.inputs[chosen], targets)
        change, memory = optimizer.update(gradient, memory, params)
        return (optax.apply_updates(params, change), memory), None

    (params, _), _ = jax.lax.scan(step, (params, optimizer.init(params)), batches)
    return jax.tree.map(jnp.asarray, params)
