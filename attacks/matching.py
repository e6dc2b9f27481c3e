"""Gradient matching: every published optimisation attack is one value of `Matching`.

The attacker looks for data whose gradient is the one that leaked. This file holds
the choice of parts and the objective; the loop that runs it is in `loop`.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from gradaudit import tree
from gradaudit.attacks.base import (
    Best,
    Victims,
    Watcher,
    check_observation,
    examples_of,
)
from gradaudit.attacks.distances import Distance, SquaredL2
from gradaudit.attacks.labels import Joint, LabelStrategy, LastLayer
from gradaudit.attacks.lbfgs import LBFGS, Progress
from gradaudit.attacks.optimizers import Optimizer
from gradaudit.attacks.priors import Prior
from gradaudit.attacks.starts import Initialization, Patterned
from gradaudit.errors import require
from gradaudit.models.gradients import one_hot, unrolled_update
from gradaudit.models.model import Model
from gradaudit.types import Key, Observation, PyTree, Reconstruction

ValueAndGradient = Callable[[jax.Array], tuple[jax.Array, jax.Array]]


@dataclasses.dataclass(frozen=True)
class Stop:
    """When an attack on one victim ends; only the attacker's own objective counts.

    `objective` is relative to the squared norm of what leaked for L2, absolute for
    distances that have no scale. `patience`: iterations in which the best objective
    must fall by at least `improvement` (a share), or the attack counts as stalled.
    """

    iterations: int = 300
    objective: float = 0.0
    patience: int = 20
    improvement: float = 0.01
    explosion: float = 1e6  # objective / first objective that counts as diverged

    def __post_init__(self) -> None:
        for name in ("iterations", "patience"):
            value = getattr(self, name)
            require(value >= 1, f"{name} must be at least 1, got {value}")
        require(
            self.objective >= 0, f"objective must not be negative, got {self.objective}"
        )


@dataclasses.dataclass(frozen=True)
class Matching:
    """An optimisation attack, made of parts."""

    init: Initialization = Patterned()
    labels: LabelStrategy = LastLayer()
    distance: Distance = SquaredL2()
    priors: tuple[Prior, ...] = ()
    optimizer: Optimizer = LBFGS()
    box: bool = False  # project onto [0, 1] after every update
    cyclic: bool = False  # move only input i mod B in attack iteration i
    unroll: bool = True  # replay the client's local steps when there are several
    stop: Stop = Stop()
    restarts: int = 1

    def __post_init__(self) -> None:
        require(self.restarts >= 1, f"restarts must be at least 1, got {self.restarts}")

    def reconstruct(
        self, key: Key, model: Model, observation: Observation
    ) -> Reconstruction:
        """Returns what the attacker hands in for one observation."""
        check_observation(model, observation)
        victims = Victims.single(observation)
        return self.reconstruct_many(key, model, victims).take(0)

    def reconstruct_many(
        self,
        key: Key,
        model: Model,
        victims: Victims,
        slots: int | None = None,
        watcher: Watcher | None = None,
    ) -> Reconstruction:
        """Returns what the attacker hands in for each victim, stacked."""
        from gradaudit.attacks.search import reconstruct_all

        return reconstruct_all(key, model, self, victims, slots, watcher)


@dataclasses.dataclass(frozen=True)
class Layout:
    """How dummy inputs and, if unknown, soft labels lie in one vector."""

    inputs: tuple[int, ...]  # (examples, *input_shape)
    classes: int
    joint: bool

    @property
    def pixels(self) -> int:
        """The number of coordinates that are pixels."""
        return int(np.prod(self.inputs))

    def images(self, position: Any) -> Any:
        """Returns the dummy inputs."""
        return position[: self.pixels].reshape(self.inputs)

    def scores(self, position: Any) -> Any:
        """Returns the unnormalised soft labels (joint only)."""
        return position[self.pixels :].reshape(self.inputs[0], self.classes)


def unrolls(matching: Matching, observation: Observation) -> bool:
    """Returns whether the attack replays several local steps."""
    return observation.local_steps > 1 and matching.unroll


def layout_of(matching: Matching, model: Model, observation: Observation) -> Layout:
    """Returns the layout of one victim's unknowns."""
    shape = (examples_of(observation), *model.input_shape)
    return Layout(shape, model.classes, isinstance(matching.labels, Joint))


def first_position(
    key: Key, matching: Matching, model: Model, observation: Observation
) -> tuple[jax.Array, jax.Array]:
    """Returns where the search starts, and the labels it takes for the true ones."""
    layout = layout_of(matching, model, observation)
    pixel_key, label_key = jax.random.split(key)
    pixels = matching.init(pixel_key, layout.inputs).reshape(-1).astype(jnp.float32)
    labels = matching.labels(label_key, model, observation)
    if labels is not None:
        return pixels, labels
    scores = jax.random.normal(label_key, (layout.inputs[0] * layout.classes,))
    return jnp.concatenate([pixels, scores]), jnp.zeros(layout.inputs[0], jnp.int32)


def final_labels(
    layout: Layout, position: NDArray[np.float32], labels: NDArray[np.int32]
) -> NDArray[np.int32]:
    """Returns the labels that the attacker hands in."""
    if not layout.joint:
        return labels
    return np.asarray(np.argmax(layout.scores(position), axis=-1), np.int32)


def objective(
    matching: Matching, model: Model, observation: Observation, labels: jax.Array
) -> ValueAndGradient:
    """Returns the function position -> (objective, its gradient).

    Reverse over reverse: the two passes share the network's forward and backward
    values, which a directional derivative along the residual computes twice.
    """
    layout = layout_of(matching, model, observation)
    params = observation.params

    def unpack(position: jax.Array) -> tuple[jax.Array, jax.Array]:
        if layout.joint:
            targets = jax.nn.softmax(layout.scores(position))
        else:
            targets = one_hot(labels, layout.classes)
        return layout.images(position), targets

    def penalty(position: jax.Array) -> jax.Array:
        images = layout.images(position)
        return jnp.sum(jnp.stack([prior(images) for prior in matching.priors]))

    def one_step(position: jax.Array) -> PyTree:
        # Without replay, L steps count as one gradient that was added L times.
        return tree.scale(steps, jax.grad(model.loss)(params, *unpack(position)))

    def many_steps(position: jax.Array) -> PyTree:
        images, targets = (
            leaf.reshape(steps, -1, *leaf.shape[1:]) for leaf in unpack(position)
        )
        update = unrolled_update(model, params, images, targets, learning_rate)
        return tree.scale(-1.0 / learning_rate, update)

    steps, learning_rate = observation.local_steps, observation.learning_rate
    guessed = many_steps if unrolls(matching, observation) else one_step

    def total(position: jax.Array) -> jax.Array:
        value = matching.distance(guessed(position), observation.gradient)
        return value + penalty(position) if matching.priors else value

    return jax.value_and_grad(total)


def projection(matching: Matching, layout: Layout) -> Callable[[jax.Array], jax.Array]:
    """Returns the projection after every update: the pixel box, or nothing."""
    if not matching.box:
        return lambda position: position
    is_pixel = np.arange(
        layout.pixels + layout.joint * layout.inputs[0] * layout.classes
    )
    inside = is_pixel < layout.pixels
    return lambda position: jnp.where(inside, jnp.clip(position, 0.0, 1.0), position)


def target_objective(matching: Matching, observation: Observation) -> jax.Array:
    """Returns the objective below which the attacker is satisfied."""
    target = jnp.asarray(matching.stop.objective, jnp.float32)
    if isinstance(matching.distance, SquaredL2):
        target = target * tree.dot(observation.gradient, observation.gradient)
    return target


def iterate(
    matching: Matching,
    model: Model,
    observation: Observation,
    labels: jax.Array,
    iteration: jax.Array,
    position: jax.Array,
    memory: PyTree,
    best: Best,
) -> Progress:
    """Runs one attack iteration on one victim."""
    layout = layout_of(matching, model, observation)
    evaluate = objective(matching, model, observation, labels)
    project = projection(matching, layout)
    if not matching.cyclic:
        return matching.optimizer.iterate(evaluate, project, position, memory, best)
    owner = jnp.arange(layout.pixels) // int(np.prod(layout.inputs[1:]))
    moves = owner == iteration % layout.inputs[0]
    mask = jnp.concatenate([moves, jnp.ones(position.size - layout.pixels, bool)])

    def masked(where: jax.Array) -> tuple[jax.Array, jax.Array]:
        value, gradient = evaluate(where)
        return value, jnp.where(mask, gradient, 0.0)

    # Another input moves now: what was remembered belongs to another function.
    fresh = matching.optimizer.init(position)
    return matching.optimizer.iterate(masked, project, position, fresh, best)
