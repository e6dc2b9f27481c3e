"""Gradients: of a batch, of each example, kept as factors, through local steps."""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradaudit import tree
from gradaudit.models.model import INPUTS, Model
from gradaudit.types import PyTree


def one_hot(labels: jax.Array, classes: int) -> jax.Array:
    """Returns labels as rows of 0 and 1, float32."""
    return jax.nn.one_hot(labels, classes, dtype=jnp.float32)


def batch_gradient(
    model: Model,
    params: PyTree,
    buffers: PyTree,
    inputs: jax.Array,
    targets: jax.Array,
) -> PyTree:
    """Returns the gradient of the mean loss; targets are (batch, classes)."""
    return jax.grad(model.loss)(params, buffers, inputs, targets)


@functools.partial(jax.jit, static_argnums=0)
def per_example_gradients(
    model: Model,
    params: PyTree,
    buffers: PyTree,
    inputs: jax.Array,
    targets: jax.Array,
) -> PyTree:
    """Returns every example's own gradient, with a leading example axis."""
    model.check_apart(
        "per-example gradients were asked for", "Take the batch's (batch_gradient)."
    )

    def one(example: jax.Array, target: jax.Array) -> PyTree:
        return batch_gradient(model, params, buffers, example[None], target[None])

    if model.alone and jax.default_backend() == "cpu":
        return jax.lax.map(lambda pair: one(*pair), (inputs, targets))
    return jax.vmap(one)(inputs, targets)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Outer:
    """A tensor (units, rows, columns) whose units are left[u] right[u]^T."""

    left: jax.Array  # (units, rows)
    right: jax.Array  # (units, columns)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the tensor."""
        return (*self.left.shape, self.right.shape[-1])

    @property
    def dtype(self) -> jnp.dtype:
        """The type of its numbers."""
        return jnp.result_type(self.left, self.right)

    def written_out(self) -> jax.Array:
        """Returns the tensor itself."""
        return self.left[:, :, None] * self.right[:, None, :]


Units = jax.Array | Outer


def is_outer(value: object) -> bool:
    """Returns whether a leaf of a tree is factored."""
    return isinstance(value, Outer)


def dense_layers(model: Model) -> tuple[str, ...]:
    """Returns the dense layers whose inputs the network hands out."""
    layers: tuple[str, ...] = getattr(model.network, "dense_layers", ())
    return layers


def factored_gradients(
    model: Model,
    params: PyTree,
    buffers: PyTree,
    inputs: jax.Array,
    targets: jax.Array,
) -> tuple[jax.Array, PyTree]:
    """Returns every example's loss and gradient; dense kernels as `Outer`.

    A network takes part by naming its `dense_layers` and sowing their inputs.
    """
    network: Any = model.network  # flax: only its modules name dense layers
    layers = dense_layers(model)

    def loss(params: PyTree, example: jax.Array, target: jax.Array) -> Any:
        logits, seen = network.apply(
            {"params": params, **buffers}, example[None], mutable=[INPUTS]
        )
        rows = {layer: seen[INPUTS][layer]["inputs"][0][0] for layer in layers}
        return model.example_loss(logits, target[None])[0], rows

    def one(example: jax.Array, target: jax.Array) -> Any:
        return jax.value_and_grad(loss, has_aux=True)(params, example, target)

    (losses, rows), gradients = jax.vmap(one)(inputs, targets)
    # The kernels' own gradients are used by nobody: under jit they are not computed.
    for layer in layers:
        outer = Outer(rows[layer], gradients[layer]["bias"])
        gradients[layer] = {**gradients[layer], "kernel": outer}
    return losses, gradients


def unrolled_update(
    model: Model,
    params: PyTree,
    buffers: PyTree,
    inputs: jax.Array,
    targets: jax.Array,
    learning_rate: float,
) -> PyTree:
    """Returns the update of L steps of plain SGD, differentiable in the data.

    Args:
      model: the model.
      params: the parameters that the client received.
      buffers: likewise; in training they are read or ignored, never followed: where
        the batch's own statistics count, the running ones change no gradient.
      inputs: the batches in the order of the steps, (steps, batch, *input_shape).
      targets: their target weights, (steps, batch, classes).
      learning_rate: the client's.

    Returns:
      Parameters after local training minus `params`.
    """

    def step(
        current: PyTree, batch: tuple[jax.Array, jax.Array]
    ) -> tuple[PyTree, None]:
        gradient = batch_gradient(model, current, buffers, *batch)
        return tree.subtract(current, tree.scale(learning_rate, gradient)), None

    final, _ = jax.lax.scan(step, params, (inputs, targets))
    return tree.subtract(final, params)


_KINKS = frozenset({"max", "min", "abs", "select_n", "clamp", "reduce_window_max"})


def has_kinks(model: Model, params: PyTree, buffers: PyTree) -> bool:
    """Returns whether the logits have kinks: rectifiers, pooling by the largest.

    Gradients jump there, and so does everything that compares gradients. Softmax inside
    of a network takes a maximum too, without a kink: it counts as one here.
    """
    one = np.zeros((1, *model.input_shape), np.float32)
    traced = jax.make_jaxpr(model.apply)(params, buffers, one)
    return not _KINKS.isdisjoint(_operations(traced.jaxpr))


def _operations(program: Any) -> Iterator[str]:
    """Yields the names of a traced program's operations, and of its parts'."""
    for equation in program.eqns:
        yield equation.primitive.name
        for value in jax.tree.leaves(
            list(equation.params.values()), is_leaf=lambda part: hasattr(part, "eqns")
        ):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from _operations(inner)
