"""What every attack shares: its signature, and what the attacker can check."""

import dataclasses
from collections.abc import Callable
from typing import Protocol, Self

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from gradaudit import tree
from gradaudit.errors import InputError, require
from gradaudit.models.model import Model
from gradaudit.types import Key, Observation, Reconstruction


@dataclasses.dataclass(frozen=True)
class Victims:
    """What an attacker can ask for: the observations of some victims, stacked.

    `observe(ids)` returns an Observation whose gradient (and labels, if known) have
    a leading axis of len(ids); the parameters are shared by all.
    """

    count: int
    observe: Callable[[NDArray[np.int64]], Observation]

    @classmethod
    def single(cls, observation: Observation) -> Self:
        """Returns the one victim of one observation."""
        gradient, labels = jax.tree.map(
            lambda leaf: np.asarray(leaf)[None],
            (observation.gradient, observation.labels),
        )
        stacked = dataclasses.replace(observation, gradient=gradient, labels=labels)
        return cls(1, lambda ids: stacked)


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """The iterates of a few attack iterations: (iterations, slots, ...), and whose."""

    trials: NDArray[np.int64]  # (slots,) victim * restarts + restart; -1 = empty
    iteration: NDArray[np.int32]  # (iterations, slots) how many were run, from 1
    running: NDArray[np.bool_]  # (iterations, slots) whether the entry counts
    objective: NDArray[np.float32]  # (iterations, slots) attacker's best so far
    best: NDArray[np.float32]  # (iterations, slots, examples, *shape) selected
    current: NDArray[np.float32]  # (iterations, slots, examples, *shape)
    finished: int  # trials that are done
    total: int


# Somebody who looks at a run from outside; attacks never hear back.
Watcher = Callable[[Snapshot], None]


class Attack(Protocol):
    """An attack: a frozen dataclass; closed-form and iterative ones share this."""

    def reconstruct(
        self, key: Key, model: Model, observation: Observation
    ) -> Reconstruction:
        """Returns what the attacker hands in for one observation."""

    def reconstruct_many(
        self,
        key: Key,
        model: Model,
        victims: Victims,
        slots: int | None = None,
        watcher: Watcher | None = None,
    ) -> Reconstruction:
        """Returns what the attacker hands in for each victim, stacked."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Best:
    """The iterate that the attacker would hand in: lowest own objective so far."""

    position: jax.Array
    value: jax.Array

    @classmethod
    def start(cls, position: jax.Array) -> Self:
        """Returns a best that any finite value improves on."""
        return cls(position, jnp.asarray(jnp.inf, position.dtype))

    def improve(self, position: jax.Array, value: jax.Array) -> "Best":
        """Returns the better of the two; NaN never wins."""
        better = value < self.value
        return Best(
            jnp.where(better, position, self.position),
            jnp.where(better, value, self.value),
        )


def examples_of(observation: Observation) -> int:
    """Returns how many inputs the attacker has to rebuild."""
    return observation.batch_size * observation.local_steps


def check_observation(model: Model, observation: Observation) -> None:
    """Raises in words when no attack could work on what leaked (host side)."""
    structures = map(jax.tree.structure, (observation.params, observation.gradient))
    if len(set(structures)) > 1:
        raise InputError(
            "the leaked gradient does not have the structure of the parameters: "
            f"expected tensors {', '.join(tree.names(observation.params))}, "
            f"got {', '.join(tree.names(observation.gradient)) or 'none'}"
        )
    for name, parameter, leaf in zip(
        tree.names(observation.params),
        jax.tree.leaves(observation.params),
        jax.tree.leaves(observation.gradient),
        strict=True,
    ):
        require(
            parameter.shape == leaf.shape,
            f"the leaked gradient of {name} must have shape {parameter.shape}, "
            f"got {leaf.shape}",
        )
        require(
            bool(jnp.all(jnp.isfinite(leaf))),
            f"the leaked gradient of {name} holds NaN or infinity: nothing can be "
            "rebuilt from it; check the training step that produced it",
        )
    require(
        bool(tree.global_norm(observation.gradient) > 0),
        "the leaked gradient is zero everywhere: it holds no information",
    )
    if observation.labels is not None:
        check_labels(model, observation.labels, examples_of(observation))


def check_labels(model: Model, labels: jax.Array, count: int) -> None:
    """Raises unless these are `count` labels of the model."""
    require(
        labels.shape == (count,),
        f"{count} known labels were expected, got shape {labels.shape}",
    )
    outside = (labels < 0) | (labels >= model.classes)
    if bool(jnp.any(outside)):
        value = int(labels[jnp.argmax(outside)])
        raise InputError(f"known label {value} is outside [0, {model.classes})")
