"""The loop, written once: hundreds of victims stream through fixed slots.

Between two calls of the compiled program (`slots.py`) the finished victims leave, the
next ones take their slots, progress is told, and Ctrl-C ends the run with what there
is. Memory depends on the number of slots only.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from gradaudit import parallel
from gradaudit.attacks import matching as matching_module
from gradaudit.attacks.base import Snapshot, Victims, Watcher
from gradaudit.attacks.matching import Matching, layout_of, unrolls
from gradaudit.attacks.slots import State, admit, advance, begin
from gradaudit.models import for_shared_weights
from gradaudit.types import Key, Leakage, Model, PyTree, Reconstruction, Status

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
        self._params = parallel.place(first.params, shared=True)
        self._layout = layout_of(matching, model, first)
        self._total = victims.count * matching.restarts
        wanted = slots or default_slots(model, matching, self._layout.inputs[0])
        devices = parallel.device_count()
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
            lambda leaf: parallel.place(self._seated(leaf, seats)),
            (observed.gradient, observed.labels),
        )
        fresh = begin(
            self._model,
            self._program,
            self._template,
            self._params,
            np.int32(self._matching.stop.iterations),
            parallel.place(keys),
            gradients,
            labels,
        )
        if self._state is None:
            self._state, self._gradients = fresh, gradients
        else:
            self._state, self._gradients = admit(
                (self._state, self._gradients),
                (fresh, gradients),
                parallel.place(arrived),
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
