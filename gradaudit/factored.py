"""Per-example gradients of dense kernels, kept as the two factors they are made of.

An example's gradient of a dense kernel is the outer product of the layer's input and
the gradient of its bias. Clipping needs its norm (the product of two norms) and the
weighted sum over examples (one matmul); neither needs the products written out, which
for the last layer of a small network are most of the memory that DP-SGD moves.
"""

import dataclasses
from typing import Any

import jax

from gradaudit.types import Model, PyTree

INPUTS = "dense_inputs"  # the collection in which a network hands them out


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
    model: Model, params: PyTree, inputs: jax.Array, targets: jax.Array
) -> tuple[jax.Array, PyTree]:
    """Returns every example's loss and gradient; dense kernels as `Outer`.

    A network takes part by naming its `dense_layers` and sowing their inputs.
    """
    network: Any = model.network  # flax: only its modules name dense layers
    layers = dense_layers(model)

    def loss(params: PyTree, example: jax.Array, target: jax.Array) -> Any:
        logits, seen = network.apply(
            {"params": params}, example[None], mutable=[INPUTS]
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
