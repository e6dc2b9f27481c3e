"""Exact inversion of a dense first layer with bias, or of patches: no iterations.

For z = W x + b every row k has dL/dW_k = dL/dz_k * x and dL/db_k = dL/dz_k, so that
x is their quotient wherever the bias' gradient is not zero.

A transformer reads patches x_t and adds learned positions p_t to W x_t: dL/dp_t is
dL/dz_t of every patch, and dL/dW = sum_t x_t dL/dz_t is a linear system for the patches
(Lu et al. 2022, APRIL).
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from gradaudit import machine
from gradaudit.attacks.base import Attack
from gradaudit.attacks.labels import LabelStrategy, LastLayer
from gradaudit.attacks.lanes import Reading
from gradaudit.errors import InputError
from gradaudit.models.deep_networks import from_patches
from gradaudit.models.model import Model
from gradaudit.types import Key, LocalTraining, Observation, PyTree, Status

_ROUNDING = 1e-6  # of the largest singular value: below it float32 holds no signal


@dataclasses.dataclass(frozen=True)
class Analytic(Attack):
    """The closed form for one example: a dense first layer, or patches with positions.

    Guarantee: exact up to rounding; of patches, what their gradients tell apart.
    """

    exact: ClassVar[bool] = True
    labels: LabelStrategy = LastLayer()

    def unfit(self, model: Model, observation: Observation) -> str:
        """Returns in words why there is no closed form, if so."""
        layer, examples = model.input_layer, observation.training.examples
        if layer is None and model.patches is None:
            return (
                f"the analytic attack inverts a dense layer that reads the input, and "
                f"model {model.name!r} has none (its first layer is a convolution): "
                "choose --method cpl, or --model mlp"
            )
        if layer is not None and "bias" not in observation.params[layer]:
            return (
                f"the analytic attack divides by the bias' gradient, and layer "
                f"{layer!r} has no bias"
            )
        if examples != 1:
            return (
                f"the analytic attack inverts the gradient of one example; this one "
                f"mixes {examples}: choose --method cpl"
            )
        return ""

    def problem(self, model: Model, observation: Observation) -> "Inversion":
        """Returns the inversion, or raises in words why there can be none."""
        why = self.unfit(model, observation)
        if why:
            raise InputError(why)
        return Inversion(self.labels, model, observation.training)


@dataclasses.dataclass(frozen=True)
class Inversion:
    """A problem that is solved when it starts; the loop only has to collect it."""

    labels: LabelStrategy
    model: Model
    training: LocalTraining
    evaluations_per_step: int = dataclasses.field(default=40, init=False)

    def start(self, key: Key, shared: PyTree, own: PyTree) -> tuple[Reading, PyTree]:
        """Returns the exact input."""
        params, buffers = shared
        gradient, known = own
        seen = Observation(params, gradient, buffers, known, training=self.training)
        inputs = self._inputs(gradient)
        finite = jnp.all(jnp.isfinite(inputs))
        inputs = jnp.where(finite, inputs, 0.5).reshape(1, *self.model.input_shape)
        labels = self.labels(key, self.model, seen)
        zero = jnp.zeros((), jnp.int32)
        status = jnp.where(finite, int(Status.CONVERGED), int(Status.DIVERGED))
        kept = Reading(
            inputs=inputs,
            current=inputs,
            labels=jnp.full(1, -1, jnp.int32) if labels is None else labels,
            objective=jnp.where(finite, 0.0, jnp.inf).astype(jnp.float32),
            iterations=zero,
            evaluations=zero,
            status=status.astype(jnp.int32),
        )
        return kept, ()

    def _inputs(self, gradient: PyTree) -> jax.Array:
        patches = self.model.patches
        if self.model.input_layer is not None or patches is None:
            layer = gradient[self.model.input_layer]
            row = jnp.argmax(jnp.abs(layer["bias"]))  # the best conditioned quotient
            quotient: jax.Array = layer["kernel"][:, row] / layer["bias"][row]
            return quotient
        slopes, kernel = gradient[patches.positions], gradient[patches.layer]["kernel"]
        rows = _least_squares(slopes.T, kernel.T)
        return from_patches(rows, patches.side, self.model.input_shape)

    def step(
        self, shared: PyTree, own: PyTree, kept: Reading, scratch: PyTree
    ) -> tuple[Reading, PyTree]:
        """Returns what is known already."""
        return kept, scratch

    def read(self, kept: Reading) -> Reading:
        """Returns what is known already."""
        return kept


@machine.alone
def _least_squares(slopes: jax.Array, kernel: jax.Array) -> jax.Array:
    solved: jax.Array = jnp.linalg.lstsq(slopes, kernel, rcond=_ROUNDING)[0]
    return solved
