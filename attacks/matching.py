"""Gradient matching: every published optimisation attack is one value of `Matching`.

The attacker looks for data whose gradient is the one that leaked. This file holds the
choice of parts and what one attack iteration is; the loop that runs it knows neither.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from gradaudit.attacks.base import Attack
from gradaudit.attacks.distances import Distance, SquaredL2
from gradaudit.attacks.ensembles import Coupling, Pooling, Together
from gradaudit.attacks.labels import LabelStrategy, LastLayer
from gradaudit.attacks.lanes import Problem, Reading
from gradaudit.attacks.lbfgs import LBFGS
from gradaudit.attacks.objective import objective
from gradaudit.attacks.optimizers import Best, Optimizer, Progress, Standing
from gradaudit.attacks.priors import Prior, apart, in_nats
from gradaudit.attacks.starts import (
    Initialization,
    Layout,
    Mixed,
    Patterned,
    Start,
    continued,
    first_position,
    layout_of,
    pixel_box,
)
from gradaudit.errors import InputError, at_least
from gradaudit.evidence import Told
from gradaudit.models.model import Model
from gradaudit.types import (
    Key,
    Knowledge,
    LocalTraining,
    Observation,
    PyTree,
    Reconstruction,
    Status,
)

WHOLE_RUN = 2**31 - 1  # a patience that no budget reaches


@dataclasses.dataclass(frozen=True)
class Stop:
    """When an attack on one victim ends; only the attacker's own objective counts.

    `objective` is relative to the distance's own scale (for L2 the squared norm of
    what leaked). `found` is the same where one example leaked: there it may be higher,
    because in a batch the examples with small gradients come last. `patience`:
    iterations in which the best objective must fall by at least `improvement` (a
    share), or the attack counts as stalled.
    """

    iterations: int = 300
    objective: float = 0.0
    found: float = 0.0
    patience: int = 20
    improvement: float = 0.01
    explosion: float = 1e6  # objective / first objective that counts as diverged

    def __post_init__(self) -> None:
        at_least(1, iterations=self.iterations, patience=self.patience)
        for name in ("objective", "found"):
            value = getattr(self, name)
            if not value >= 0:
                raise InputError(f"{name} must not be negative, got {value}")

    def level(self, examples: int) -> float:
        """Returns the relative objective at which so many examples are found."""
        return max(self.objective, self.found) if examples == 1 else self.objective


@dataclasses.dataclass(frozen=True)
class Matching(Attack):
    """An optimisation attack, made of parts."""

    continues: ClassVar[bool] = True
    joint: ClassVar[bool] = True
    init: Initialization = Patterned()
    labels: LabelStrategy = LastLayer()
    distance: Distance = SquaredL2()
    priors: tuple[Prior, ...] = ()
    optimizer: Optimizer = LBFGS()
    box: bool = False  # project onto [0, 1] after every update
    relaxation: Mixed | None = None  # move other numbers, which stay valid
    cyclic: bool = False  # move only input i mod B in attack iteration i
    unroll: bool = True  # replay the client's local steps when there are several
    stop: Stop = Stop()
    restarts: int = 1
    coupling: Coupling | None = None  # restarts learn from each other
    pooling: Pooling | None = None  # one answer of all restarts, in place of the best

    def __post_init__(self) -> None:
        at_least(1, restarts=self.restarts)

    @property
    def trials(self) -> int:
        """One if all restarts of a victim run as one trial."""
        together = self.coupling is not None or self.pooling is not None
        return 1 if together else self.restarts

    @property
    def needs(self) -> frozenset[Knowledge]:  # type: ignore[override]
        """What the parts need to be told."""
        return getattr(self.labels, "needs", frozenset())

    @property
    def iterations(self) -> int:  # type: ignore[override]
        """The budget."""
        return self.stop.iterations

    def budgeted(self, iterations: int | None, restarts: int | None) -> "Matching":
        """Returns the attack with another budget; schedules of its parts follow."""
        limit = self.stop.iterations if iterations is None else iterations
        stop = dataclasses.replace(self.stop, iterations=limit)
        again = self.restarts if restarts is None else restarts
        return dataclasses.replace(self, stop=stop, restarts=again)

    def misfit(self, found: Reconstruction, gradient: PyTree) -> float | None:
        """Returns the objective without its priors, relative to what leaked."""
        if any(hasattr(prior, "told") for prior in self.priors):
            return None  # inputs alone don't tell what such a prior was
        # A prior in nats weighs next to nothing where there is no noise.
        priors = tuple(prior for prior in self.priors if not in_nats(prior))
        inputs = jnp.asarray(found.inputs)
        penalty = sum(float(prior(inputs)) for prior in priors)
        value = max(float(found.objective) - penalty, 0.0)
        return value / float(self.distance.scale(gradient))

    def replays(self, training: LocalTraining) -> bool:
        """Returns whether the attack replays several local steps."""
        return training.local_steps > 1 and self.unroll

    def shared(self, observation: Observation) -> PyTree:
        """Returns what all victims share: the model; limits and weights as data."""
        models = [
            (look.params, look.buffers, look.memory) for look in observation.looks
        ]
        level = self.stop.level(observation.training.examples)
        limits = np.int32(self.stop.iterations), np.float32(level)
        weights = [apart(prior, observation.public)[1] for prior in self.priors]
        return models, limits, np.asarray(weights, np.float32)

    def own(self, observation: Observation) -> tuple[PyTree, ...]:
        """Returns what leaked at every look, and the labels if they are known."""
        return [look.gradient for look in observation.looks], observation.labels

    def problem(self, model: Model, observation: Observation) -> Problem:
        """Returns the search; it does not depend on limits, restarts or weights.

        Restarts that have to do with each other are one search.
        """
        training = observation.training
        if self.cyclic and not training.examples > 1:
            raise InputError(
                "cyclic moves one input of a batch after the other, and this "
                "observation has one input: leave it out"
            )
        replays = self.replays(training)
        start = Start(self.init, self.labels, ordered=replays)
        told = tuple(look.told for look in observation.looks)
        parts = dataclasses.replace(
            self,
            restarts=1,
            coupling=None,
            pooling=None,
            stop=dataclasses.replace(self.stop, iterations=1, objective=0.0, found=0.0),
            priors=tuple(apart(prior)[0] for prior in self.priors),
        )
        form = None if self.relaxation is None else self.relaxation.of(model)
        layout = layout_of(start, model, observation.first(), form)
        one_trial = MatchingProblem(parts, model, training, start, layout, told)
        if self.coupling is None and self.pooling is None:
            return one_trial
        return Together(one_trial, self.restarts, self.coupling, self.pooling, layout)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Searching:
    """What is kept of one victim's search."""

    position: jax.Array
    best: Best
    labels: jax.Array
    iteration: jax.Array
    evaluations: jax.Array
    status: jax.Array
    first_value: jax.Array
    mark_value: jax.Array  # the best objective `patience` iterations ago
    mark_iteration: jax.Array


@dataclasses.dataclass(frozen=True)
class MatchingProblem:
    """One victim's search as the loop runs it; scratch is the optimizer's memory."""

    matching: Matching
    model: Model
    training: LocalTraining
    begin: Start
    layout: Layout
    told: tuple[Told | None, ...]  # at every look: the defense, if handed over

    @property
    def evaluations_per_step(self) -> int:
        """As the optimizer says; one if it says nothing."""
        return int(getattr(self.matching.optimizer, "updates", 1))

    @property
    def alone(self) -> bool:
        """Whether the model is faster with one victim after the other."""
        return self.model.alone

    def start(self, key: Key, shared: PyTree, own: PyTree) -> tuple[Searching, PyTree]:
        """Returns the search at its first position."""
        position, labels = first_position(
            self.begin, self.layout, key, self.model, self._observation(shared, own)
        )
        # What another attack handed in; NaN where there is no such answer.
        for inputs, answered in own[2:]:
            position, labels = continued(
                self.layout, inputs, answered, (position, labels), self.matching.box
            )
        zero = jnp.zeros((), jnp.int32)
        infinite = jnp.asarray(jnp.inf, position.dtype)
        kept = Searching(
            position=position,
            best=Best.start(position),
            labels=labels,
            iteration=zero,
            evaluations=zero,
            status=jnp.asarray(Status.RUNNING, jnp.int32),
            first_value=infinite,
            mark_value=infinite,
            mark_iteration=zero,
        )
        return kept, self.matching.optimizer.init(position)

    def step(
        self, shared: PyTree, own: PyTree, kept: Searching, scratch: PyTree
    ) -> tuple[Searching, PyTree]:
        """Runs one attack iteration and applies the stop rules."""
        observation = self._observation(shared, own)
        _, (budget, level), weights = shared
        at = Standing(kept.position, scratch, kept.best, kept.iteration, budget)
        progress = self._iterate(observation, weights, kept.labels, at)
        scales = [
            self.matching.distance.scale(look.gradient) for look in observation.looks
        ]
        target = level * sum(scales) / len(scales)
        after = _judge(self.matching.stop, budget, target, kept, progress)
        return after, progress.memory

    def read(self, kept: Searching) -> Reading:
        """Returns the best iterate so far, by the attacker's own objective."""
        return Reading(
            inputs=self.layout.images(kept.best.position),
            current=self.layout.images(kept.position),
            labels=self.layout.labels(kept.best.position, kept.labels),
            objective=kept.best.value,
            iterations=kept.iteration,
            evaluations=kept.evaluations,
            status=kept.status,
        )

    def _observation(self, shared: PyTree, own: PyTree) -> Observation:
        models, (gradients, labels) = shared[0], own[:2]
        first, *others = (
            Observation(p, g, b, None, m, training=self.training, told=told)
            for (p, b, m), g, told in zip(models, gradients, self.told, strict=True)
        )
        return dataclasses.replace(first, labels=labels, others=tuple(others))

    def _iterate(
        self,
        observation: Observation,
        weights: jax.Array,
        labels: jax.Array,
        at: Standing,
    ) -> Progress:
        matching, layout = self.matching, self.layout
        evaluate = objective(
            matching.distance,
            matching.priors,
            layout,
            self.model,
            observation,
            matching.replays(self.training),
            labels,
            weights,
        )
        bounded = matching.box or matching.relaxation is not None
        project = pixel_box(layout) if bounded else None
        move = matching.optimizer.iterate
        if not matching.cyclic:
            return move(evaluate, project, at)
        owner = jnp.arange(layout.pixels) // int(np.prod(layout.free[1:]))
        moves = owner == at.iteration % layout.inputs[0]
        mask = jnp.concatenate([moves, jnp.ones(layout.size - layout.pixels, bool)])

        # Another input moves now: what was remembered belongs to another function.
        fresh = matching.optimizer.init(at.position)
        at = dataclasses.replace(at, memory=fresh)
        return move(evaluate.moving(mask), project, at)


def _judge(
    stop: Stop,
    budget: jax.Array | int,
    target: jax.Array,
    before: Searching,
    progress: Progress,
) -> Searching:
    """Applies the stop rules to one victim after an iteration."""
    iteration = before.iteration + 1
    value = progress.best.value
    first = jnp.where(before.iteration == 0, progress.first, before.first_value)
    mark_due = iteration - before.mark_iteration >= stop.patience
    stalled = mark_due & (value > (1.0 - stop.improvement) * before.mark_value)
    exploded = progress.value > stop.explosion * first
    diverged = progress.diverged | exploded | ~jnp.isfinite(value)
    # An optimizer that evaluated once and did not move never will.
    stuck = ~progress.active & (progress.evaluations <= 1)
    # Who has found it is done, whatever the last step did. (A target that overflowed
    # is above everything, infinity included.)
    found = jnp.isfinite(value) & (value <= target)
    status = jnp.select(
        [found, diverged, stalled | stuck, iteration >= budget],
        [Status.CONVERGED, Status.DIVERGED, Status.STALLED, Status.BUDGET],
        Status.RUNNING,
    )
    return Searching(
        position=progress.position,
        best=progress.best,
        labels=before.labels,
        iteration=iteration,
        evaluations=before.evaluations + progress.evaluations,
        status=status.astype(jnp.int32),
        first_value=first,
        mark_value=jnp.where(mark_due, value, before.mark_value),
        mark_iteration=jnp.where(mark_due, iteration, before.mark_iteration),
    )
