"""Exact inversion of a dense first layer with bias: no iterations.

For z = W x + b every row k has dL/dW_k = dL/dz_k * x and dL/db_k = dL/dz_k, so that
x is their quotient wherever the bias' gradient is not zero.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from gradaudit.attacks.base import (
    Snapshot,
    Victims,
    Watcher,
    check_observation,
    examples_of,
)
from gradaudit.attacks.labels import LabelStrategy, LastLayer
from gradaudit.errors import InputError, require
from gradaudit.models.model import Model
from gradaudit.types import Key, Observation, PyTree, Reconstruction, Status

_CHUNK = 256


@dataclasses.dataclass(frozen=True)
class Analytic:
    """The closed-form attack; works for one example on a dense first layer."""

    labels: LabelStrategy = LastLayer()

    def reconstruct(
        self, key: Key, model: Model, observation: Observation
    ) -> Reconstruction:
        """Returns the exact input, or words why there can be none."""
        check_observation(model, observation)
        self.check(model, observation)
        return _invert(self, model, key, observation)

    def reconstruct_many(
        self,
        key: Key,
        model: Model,
        victims: Victims,
        slots: int | None = None,
        watcher: Watcher | None = None,
    ) -> Reconstruction:
        """Returns the exact inputs, a chunk of victims at a time."""
        chunk = min(slots or _CHUNK, victims.count)
        parts = []
        for start in range(0, victims.count, chunk):
            # The last chunk overlaps the one before it: one shape, one trace.
            ids = np.arange(chunk) + min(start, victims.count - chunk)
            observed = victims.observe(ids)
            self.check(model, observed)
            part = _invert_chunk(self, model, key, ids, observed)
            parts.append(part.take(ids >= start))
            if watcher is not None:
                watcher(_snapshot(ids, part, start + chunk, victims.count))
        stacked: Reconstruction = jax.tree.map(
            lambda *leaves: np.concatenate(leaves), *parts
        )
        return stacked

    def check(self, model: Model, observation: Observation) -> None:
        """Raises in words where the closed form does not exist."""
        layer = model.input_layer
        if layer is None:
            raise InputError(
                f"the analytic attack inverts a dense layer that reads the input, and "
                f"model {model.name!r} has none (its first layer is a convolution): "
                "choose --method cpl, or --model mlp"
            )
        require(
            "bias" in observation.params[layer],
            f"the analytic attack divides by the bias' gradient, and layer {layer!r} "
            "has no bias",
        )
        examples = examples_of(observation)
        require(
            examples == 1,
            f"the analytic attack inverts the gradient of one example; this one mixes "
            f"{examples}: choose --method cpl",
        )


@functools.partial(jax.jit, static_argnums=(0, 1))
def _invert_chunk(
    attack: Analytic,
    model: Model,
    key: Key,
    ids: jax.Array,
    observed: Observation,
) -> Reconstruction:
    def one(
        victim: jax.Array, gradient: PyTree, labels: jax.Array | None
    ) -> Reconstruction:
        observation = dataclasses.replace(observed, gradient=gradient, labels=labels)
        return _invert(attack, model, jax.random.fold_in(key, victim), observation)

    return jax.vmap(one)(ids, observed.gradient, observed.labels)


def _invert(
    attack: Analytic, model: Model, key: Key, observation: Observation
) -> Reconstruction:
    layer = observation.gradient[model.input_layer]
    row = jnp.argmax(jnp.abs(layer["bias"]))  # the best conditioned quotient
    inputs = layer["kernel"][:, row] / layer["bias"][row]
    finite = jnp.all(jnp.isfinite(inputs))
    labels = attack.labels(key, model, observation)
    zero = jnp.zeros((), jnp.int32)
    return Reconstruction(
        inputs=jnp.where(finite, inputs, 0.5).reshape(1, *model.input_shape),
        labels=jnp.zeros(1, jnp.int32) if labels is None else labels,
        objective=jnp.zeros(()),
        iterations=zero,
        evaluations=zero,
        status=jnp.where(finite, Status.CONVERGED, Status.DIVERGED).astype(jnp.int32),
    )


def _snapshot(
    ids: np.ndarray, part: Reconstruction, finished: int, total: int
) -> Snapshot:
    inputs = np.asarray(part.inputs)[None]
    return Snapshot(
        trials=ids,
        iteration=np.zeros((1, len(ids)), np.int32),
        running=np.ones((1, len(ids)), bool),
        objective=np.asarray(part.objective)[None],
        best=inputs,
        current=inputs,
        finished=min(finished, total),
        total=total,
    )
