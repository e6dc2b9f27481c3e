"""The compiled program: every slot searches for one victim, a few iterations a call.

A slot's arithmetic depends on nothing but its own victim, so that neither the order
nor the number of devices changes a result.
"""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradaudit import machine
from gradaudit.attacks import matching as matching_module
from gradaudit.attacks.base import Best, Snapshot, Victims, Watcher
from gradaudit.attacks.matching import Matching, layout_of, unrolls
from gradaudit.models.model import Model
from gradaudit.models.networks import for_shared_weights
from gradaudit.types import Key, Leakage, Observation, PyTree, Reconstruction, Status


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
    """One slot's search (stacked over slots)."""

    position: jax.Array
    memory: PyTree
    best: Best
    labels: jax.Array
    iteration: jax.Array
    evaluations: jax.Array
    status: jax.Array
    budget: jax.Array  # iterations at most
    first_value: jax.Array
    mark_value: jax.Array  # the best objective `patience` iterations ago
    mark_iteration: jax.Array


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def begin(
    model: Model,
    matching: Matching,
    template: Observation,
    params: PyTree,
    budget: jax.Array,
    keys: jax.Array,
    gradients: PyTree,
    labels: jax.Array | None,
) -> State:
    """Returns every slot at the start of its search."""

    def one(
        params: PyTree, budget: jax.Array, key: Key, gradient: PyTree, label: Any
    ) -> State:
        observation = dataclasses.replace(
            template, params=params, gradient=gradient, labels=label
        )
        position, inferred = matching_module.first_position(
            key, matching, model, observation
        )
        zero = jnp.zeros((), jnp.int32)
        infinite = jnp.asarray(jnp.inf, position.dtype)
        return State(
            position=position,
            memory=matching.optimizer.init(position),
            best=Best.start(position),
            labels=inferred,
            iteration=zero,
            evaluations=zero,
            status=jnp.asarray(Status.RUNNING, jnp.int32),
            budget=budget,
            first_value=infinite,
            mark_value=infinite,
            mark_iteration=zero,
        )

    def shard(params: PyTree, budget: jax.Array, *units: Any) -> State:
        return jax.vmap(functools.partial(one, params, budget))(*units)

    result: State = machine.over_units(shard, shared=2)(
        params, budget, keys, gradients, labels
    )
    return result


@functools.partial(jax.jit, donate_argnums=0)
def admit(occupied: PyTree, fresh: PyTree, arrived: jax.Array) -> PyTree:
    """Replaces the slots of the arrived."""

    def choose(old: jax.Array, new: jax.Array) -> jax.Array:
        return jnp.where(arrived.reshape(-1, *[1] * (old.ndim - 1)), new, old)

    return jax.tree.map(choose, occupied, fresh)


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3), donate_argnums=5)
def advance(
    model: Model,
    matching: Matching,
    template: Observation,
    iterations: int,
    params: PyTree,
    state: State,
    gradients: PyTree,
) -> tuple[State, dict[str, jax.Array]]:
    """Runs that many iterations in every slot; returns what each one left."""

    def one(
        params: PyTree, state: State, gradient: PyTree
    ) -> tuple[State, dict[str, jax.Array]]:
        observation = dataclasses.replace(template, params=params, gradient=gradient)
        was_running = state.status == Status.RUNNING
        progress = matching_module.iterate(
            matching,
            model,
            observation,
            state.labels,
            state.iteration,
            state.position,
            state.memory,
            state.best,
        )
        after = _judge(
            matching,
            matching_module.target_objective(matching, observation),
            state,
            progress,
        )
        # The memory is large and of no use to a finished victim: never copied.
        small = dataclasses.replace(after, memory=None)
        kept = jax.tree.map(
            lambda new, old: jnp.where(was_running, new, old),
            small,
            dataclasses.replace(state, memory=None),
        )
        following = dataclasses.replace(kept, memory=after.memory)
        layout = layout_of(matching, model, observation)
        record = {
            "running": was_running,
            "iteration": following.iteration,
            "objective": following.best.value,
            "best": layout.images(following.best.position),
            "current": layout.images(following.position),
        }
        return following, record

    def shard(
        params: PyTree, state: State, gradients: PyTree
    ) -> tuple[State, dict[str, jax.Array]]:
        def step(state: State, _: None) -> tuple[State, dict[str, jax.Array]]:
            return jax.vmap(functools.partial(one, params))(state, gradients)

        return jax.lax.scan(step, state, None, length=iterations)

    result: tuple[State, dict[str, jax.Array]] = machine.over_units(
        shard, shared=1, traced=True
    )(params, state, gradients)
    return result


def _judge(matching: Matching, target: jax.Array, state: State, progress: Any) -> State:
    """Applies the stop rules to one victim after an iteration."""
    stop = matching.stop
    iteration = state.iteration + 1
    value = progress.best.value
    first = jnp.where(state.iteration == 0, value, state.first_value)
    mark_due = iteration - state.mark_iteration >= stop.patience
    stalled = mark_due & (value > (1.0 - stop.improvement) * state.mark_value)
    exploded = progress.value > stop.explosion * first
    diverged = progress.diverged | exploded | ~jnp.isfinite(value)
    # An optimizer that evaluated once and did not move never will.
    stuck = ~progress.active & (progress.evaluations <= 1)
    status = jnp.select(
        [diverged, value <= target, stalled | stuck, iteration >= state.budget],
        [Status.DIVERGED, Status.CONVERGED, Status.STALLED, Status.BUDGET],
        Status.RUNNING,
    )
    return State(
        position=progress.position,
        memory=progress.memory,
        best=progress.best,
        labels=state.labels,
        iteration=iteration,
        evaluations=state.evaluations + progress.evaluations,
        status=status.astype(jnp.int32),
        budget=state.budget,
        first_value=first,
        mark_value=jnp.where(mark_due, value, state.mark_value),
        mark_iteration=jnp.where(mark_due, iteration, state.mark_iteration),
    )


_EVALUATIONS_PER_CALL = 40  # progress about once a second, little waste at the end


def default_slots(model: Model, matching: Matching, examples: int) -> int:
    """Returns how many victims one device attacks at a time.

    On CPU a slot's work should stay in the core's cache; accelerators want width.
    """
    if jax.default_backend() != "cpu":
        return 256
    unknowns = int(np.prod(model.input_shape)) * examples
    return int(np.clip(24 * 1024 // unknowns, 4, 32))


def reconstruct_all(
    key: Key,
    model: Model,
    matching: Matching,
    victims: Victims,
    slots: int | None = None,
    watcher: Watcher | None = None,
) -> Reconstruction:
    """Attacks every victim; returns the attacker-selected results, stacked.

    After Ctrl-C the unfinished are marked INTERRUPTED (and NaN where none began).
    `slots` is the number of victims that one device holds at a time.
    """
    conveyor = _Conveyor(key, model, matching, victims, slots)
    try:
        for snapshot in conveyor.run():
            if watcher is not None:
                watcher(snapshot)
    except KeyboardInterrupt:
        conveyor.collect(everything=True)
    return conveyor.selected()


class _Conveyor:
    """The host's side of the loop: who sits in which slot, and what came out."""

    def __init__(
        self,
        key: Key,
        model: Model,
        matching: Matching,
        victims: Victims,
        slots: int | None,
    ) -> None:
        first = victims.observe(np.zeros(1, np.int64))
        # What does not change the program must not compile it again: who leaked
        # where, how long the search may take, how often it starts.
        self._template = dataclasses.replace(
            first, params=None, gradient=None, labels=None, leakage=Leakage.EXAMPLE
        )
        self._program = dataclasses.replace(
            matching, restarts=1, stop=dataclasses.replace(matching.stop, iterations=1)
        )
        # Replaying local steps gives each victim weights of its own.
        shared = not unrolls(matching, first)
        self._model = for_shared_weights(model) if shared else model
        self._matching, self._victims, self._key = matching, victims, key
        self._params = machine.place(first.params, shared=True)
        self._layout = layout_of(matching, model, first)
        self._total = victims.count * matching.restarts
        wanted = slots or default_slots(model, matching, self._layout.inputs[0])
        devices = machine.device_count()
        each = -(-self._total // devices)
        # As few slots as give the same number of waves: the last is not half empty.
        per_device = wanted if slots else -(-each // -(-each // wanted))
        per_device = min(per_device, each)
        self._trials = np.full(per_device * devices, -1, np.int64)
        self._next = 0
        self._finished = 0
        self._state: State | None = None
        self._gradients: PyTree = None
        per_iteration = getattr(matching.optimizer, "updates", 1)
        self._iterations = max(1, _EVALUATIONS_PER_CALL // per_iteration)
        self._out = self._blank()

    def run(self) -> Iterator[Snapshot]:
        """Advances until nobody is left, yielding what happened."""
        self._fill()
        while (self._trials >= 0).any():
            self._state, record = advance(
                self._model,
                self._program,
                self._template,
                self._iterations,
                self._params,
                self._state,
                self._gradients,
            )
            trials = self._trials.copy()
            self.collect()
            yield Snapshot(
                trials=trials,
                iteration=np.asarray(record["iteration"]),
                running=np.asarray(record["running"]) & (trials >= 0),
                objective=np.asarray(record["objective"]),
                best=np.asarray(record["best"]),
                current=np.asarray(record["current"]),
                finished=self._finished,
                total=self._total,
            )
            self._fill()

    def collect(self, everything: bool = False) -> None:
        """Takes the results of finished slots (or all of them) and empties them."""
        # Ctrl-C may come when a call has taken the state and not returned it.
        if self._state is None or self._state.status.is_deleted():
            return
        status = np.asarray(self._state.status)
        done = (self._trials >= 0) & (everything | (status != Status.RUNNING))
        if not done.any():
            return
        where, state = self._trials[done], self._state
        positions = np.asarray(state.best.position)[done]
        labels = np.asarray(state.labels)[done]
        for trial, position, inferred in zip(where, positions, labels, strict=True):
            self._out.inputs[trial] = self._layout.images(position)
            self._out.labels[trial] = matching_module.final_labels(
                self._layout, position, inferred
            )
        self._out.objective[where] = np.asarray(state.best.value)[done]
        self._out.iterations[where] = np.asarray(state.iteration)[done]
        self._out.evaluations[where] = np.asarray(state.evaluations)[done]
        running = status[done] == Status.RUNNING
        self._out.status[where] = np.where(running, Status.INTERRUPTED, status[done])
        self._trials[done] = -1
        self._finished += int(done.sum())

    def selected(self) -> Reconstruction:
        """Returns the best restart of each victim by the attacker's own objective."""
        restarts = self._matching.restarts
        by_victim = self._out.objective.reshape(-1, restarts)
        choice = np.argmin(np.nan_to_num(by_victim, nan=np.inf), axis=1)
        chosen = np.arange(len(choice)) * restarts + choice
        result = self._out.take(chosen)
        # What it cost is the sum over restarts; the rest belongs to the chosen one.
        spent = self._out.evaluations.reshape(-1, restarts).sum(axis=1)
        return dataclasses.replace(result, evaluations=spent)

    def _fill(self) -> None:
        free = np.flatnonzero(self._trials < 0)
        arriving = np.arange(self._next, min(self._next + len(free), self._total))
        if not len(arriving):
            return
        self._next += len(arriving)
        seats = free[: len(arriving)]
        self._trials[seats] = arriving
        victims, restarts = np.divmod(arriving, self._matching.restarts)
        observed = self._victims.observe(victims)
        keys = _trial_keys(
            self._key, self._seated(victims, seats), self._seated(restarts, seats)
        )
        arrived = np.zeros(len(self._trials), bool)
        arrived[seats] = True
        gradients, labels = jax.tree.map(
            lambda leaf: machine.place(self._seated(leaf, seats)),
            (observed.gradient, observed.labels),
        )
        fresh = begin(
            self._model,
            self._program,
            self._template,
            self._params,
            np.int32(self._matching.stop.iterations),
            machine.place(keys),
            gradients,
            labels,
        )
        if self._state is None:
            self._state, self._gradients = fresh, gradients
        else:
            self._state, self._gradients = admit(
                (self._state, self._gradients),
                (fresh, gradients),
                machine.place(arrived),
            )

    def _seated(self, values: Any, seats: Any) -> Any:
        """Spreads values over the slots, so that shapes never change."""
        host = np.asarray(values)
        spread = np.zeros((len(self._trials), *host.shape[1:]), host.dtype)
        spread[seats] = host
        return spread

    def _blank(self) -> Reconstruction:
        count, examples = self._total, self._layout.inputs[0]
        return Reconstruction(
            inputs=np.full((count, *self._layout.inputs), np.nan, np.float32),
            labels=np.full((count, examples), -1, np.int32),
            objective=np.full(count, np.nan, np.float32),
            iterations=np.zeros(count, np.int32),
            evaluations=np.zeros(count, np.int32),
            status=np.full(count, Status.INTERRUPTED, np.int32),
        )


@jax.jit
def _trial_keys(key: Key, victims: jax.Array, restarts: jax.Array) -> jax.Array:
    def one(victim: jax.Array, restart: jax.Array) -> Key:
        return jax.random.fold_in(jax.random.fold_in(key, victim), restart)

    return jax.vmap(one)(victims, restarts)
