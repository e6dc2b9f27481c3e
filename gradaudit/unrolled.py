"""A client's local training as a pure function of its data.

The victim's side and the attacker's side of a multi-step update meet here: with the
true batches in the true order it is exactly what the client sends.
"""

import jax

from gradaudit import tree
from gradaudit.kernels import batch_gradient
from gradaudit.types import Model, PyTree


def unrolled_update(
    model: Model,
    params: PyTree,
    inputs: jax.Array,
    targets: jax.Array,
    learning_rate: float,
) -> PyTree:
    """Returns the update of L steps of plain SGD, differentiable in the data.

    Args:
      model: the model.
      params: the parameters that the client received.
      inputs: the batches in the order of the steps, (steps, batch, *input_shape).
      targets: their target weights, (steps, batch, classes).
      learning_rate: the client's.

    Returns:
      Parameters after local training minus `params`.
    """

    def step(
        current: PyTree, batch: tuple[jax.Array, jax.Array]
    ) -> tuple[PyTree, None]:
        gradient = batch_gradient(model, current, *batch)
        return tree.subtract(current, tree.scale(learning_rate, gradient)), None

    final, _ = jax.lax.scan(step, params, (inputs, targets))
    return tree.subtract(final, params)
