"""The loop, written once over anything iterative: victims stream through fixed slots.

Every slot searches for one victim, a few iterations a call of one compiled program.
Between two calls the finished leave, the next ones take their slots, progress is told,
and Ctrl-C ends the run with what there is. Memory depends on the number of slots only;
only scalars leave the devices in a call. A
trial's numbers depend on the trial alone: see `lanes`.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from gradaudit import machine
from gradaudit.attacks import lanes
from gradaudit.attacks.lanes import Problem
from gradaudit.types import Key, PyTree, Reconstruction, Status

Ids = NDArray[np.int64]
CUT_SHORT = (Status.INTERRUPTED, Status.MISSING)
_EVALUATIONS_PER_CALL = 40  # progress about once a second, little waste at the end


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """A few attack iterations of all slots, and whose they are.

    Pictures stay on the devices until somebody asks for them.
    """

    trials: Ids  # (slots,) victim * restarts + restart; -1 = empty
    iteration: NDArray[np.int32]  # (iterations, slots) how many were run, from 1
    running: NDArray[np.bool_]  # (iterations, slots) whether the entry counts
    objective: NDArray[np.float32]  # (iterations, slots) attacker's best so far
    best: jax.Array  # (iterations, slots, examples, *shape) selected
    current: jax.Array  # (iterations, slots, examples, *shape)
    finished: int  # trials that are done
    total: int


class Stopped(KeyboardInterrupt):
    """Ctrl-C that came when every victim was done; holds the whole Reconstruction."""


# Somebody who looks at a run from outside; attacks never hear back.
Watcher = Callable[[Snapshot], None]
Fetch = Callable[[Ids], PyTree]  # victims' ids -> what is theirs, stacked
# Is told who has just ended, and what was handed in for them, stacked.
Ended = Callable[[Ids, Reconstruction], None]


def search_all(
    key: Key,
    problem: Problem,
    shared: PyTree,
    fetch: Fetch,
    victims: Ids,
    restarts: int = 1,
    slots: int | None = None,
    watcher: Watcher | None = None,
    ended: Ended | None = None,
) -> Reconstruction:
    """Runs the problem for these victims; returns what is handed in, stacked.

    A victim's numbers follow from its own, whoever else is there. Each victim gets
    `restarts` independent trials, and the one with the lowest own objective is handed
    in. After Ctrl-C the unfinished are INTERRUPTED and those that were never begun
    MISSING; if there are none, `Stopped` hands it on with the result. `slots` is how
    many trials a device holds at a time; `ended` hears of each victim when its last
    trial is done and was watched.
    """
    conveyor = _Conveyor(key, problem, shared, fetch, victims, restarts, slots)
    try:
        for snapshot in conveyor.run():
            if watcher is not None:
                watcher(snapshot)
            if ended is not None:
                conveyor.tell(ended)
    except KeyboardInterrupt:
        conveyor.collect(everything=True)
        if not is_cut_short(result := conveyor.selected()):
            raise Stopped(result) from None
    return conveyor.selected()


def is_cut_short(result: Reconstruction) -> bool:
    """Returns whether a victim is not done: Ctrl-C came before."""
    return bool(np.isin(np.asarray(result.status), CUT_SHORT).any())


class _Conveyor:
    """The host's side of the loop: who sits in which slot, and what came out."""

    def __init__(
        self,
        key: Key,
        problem: Problem,
        shared: PyTree,
        fetch: Fetch,
        victims: Ids,
        restarts: int,
        slots: int | None,
    ) -> None:
        self._key, self._problem, self._fetch = key, problem, fetch
        self._shared = machine.place(shared, shared=True)
        self._victims, self._restarts = victims, restarts
        self._total = len(victims) * restarts
        self._told = np.zeros(len(victims), bool)
        one = jax.tree.map(lambda leaf: leaf[0], fetch(np.zeros(1, np.int64)))
        abstract: Any = lanes.begun.eval_shape
        self._shape = abstract(problem, key, shared, one)
        wanted = slots or lanes.default_slots(self._shape.inputs.size)
        devices = machine.device_count()
        each = -(-self._total // devices)
        self._lanes = lanes.default_lanes(wanted, getattr(problem, "alone", False))
        # As few slots as give the same number of waves: the last is not half empty.
        per_device = wanted if slots else -(-each // -(-each // wanted))
        per_device = -(-min(per_device, each) // self._lanes) * self._lanes
        self._trials = np.full(per_device * devices, -1, np.int64)
        self._next = self._finished = 0
        self._trial: tuple[PyTree, PyTree] | None = None
        self._own: PyTree = None
        self._iterations = max(1, _EVALUATIONS_PER_CALL // problem.evaluations_per_step)
        self._out = self._blank()

    def run(self) -> Iterator[Snapshot]:
        """Advances until nobody is left, yielding what happened."""
        self._fill()
        while (self._trials >= 0).any():
            self._trial, record = lanes.advance(
                self._problem,
                self._lanes,
                self._iterations,
                self._shared,
                self._trial,
                self._own,
            )
            # Several CPU devices share a pool of threads: one program that
            # is sent while another still runs there, and both may wait for ever.
            jax.block_until_ready(record)  # type: ignore[no-untyped-call]
            trials = self._trials.copy()
            self.collect()
            yield Snapshot(
                trials=self._numbered(trials),
                iteration=np.asarray(record["iteration"]),
                running=np.asarray(record["running"]) & (trials >= 0),
                objective=np.asarray(record["objective"]),
                best=record["best"],
                current=record["current"],
                finished=self._finished,
                total=self._total,
            )
            self._fill()

    def _numbered(self, trials: Ids) -> Ids:
        """Returns trials with the numbers that they have among all victims."""
        victims, restarts = np.divmod(np.maximum(trials, 0), self._restarts)
        numbers = self._victims[victims] * self._restarts + restarts
        return np.where(trials >= 0, numbers, -1)

    def tell(self, ended: Ended) -> None:
        """Tells of the victims whose last trial is done since it was told."""
        status = self._out.status.reshape(-1, self._restarts)
        fresh = (status != Status.MISSING).all(axis=1) & ~self._told
        if fresh.any():
            self._told |= fresh
            ended(self._victims[fresh], self.selected(np.flatnonzero(fresh)))

    def collect(self, everything: bool = False) -> None:
        """Takes the results of finished slots (or all of them) and empties them."""
        # Ctrl-C may come when a call has taken the state and not returned it.
        if self._trial is None or any(
            leaf.is_deleted() for leaf in jax.tree.leaves(self._trial[0])
        ):
            return
        status = np.asarray(lanes.status_of(self._problem, self._trial[0]))
        done = (self._trials >= 0) & (everything | (status != Status.RUNNING))
        if not done.any():
            return
        seen = jax.tree.map(np.asarray, lanes.read(self._problem, self._trial[0]))
        # A start that was never evaluated is no answer: its victim was not begun.
        done &= (status != Status.RUNNING) | (seen.iterations > 0)
        where = self._trials[done]
        for name in ("inputs", "labels", "objective", "iterations", "evaluations"):
            getattr(self._out, name)[where] = getattr(seen, name)[done]
        running = status[done] == Status.RUNNING
        self._out.status[where] = np.where(running, Status.INTERRUPTED, status[done])
        self._trials[done] = -1
        self._finished += int(done.sum())

    def selected(self, rows: Ids | None = None) -> Reconstruction:
        """Returns the best restart of each victim by the attacker's own objective."""
        which = np.arange(len(self._victims)) if rows is None else rows
        by_victim = self._out.objective.reshape(-1, self._restarts)[which]
        choice = np.argmin(np.nan_to_num(by_victim, nan=np.inf), axis=1)
        chosen = which * self._restarts + choice
        # What it cost is the sum over restarts; the rest belongs to the chosen one.
        spent = self._out.evaluations.reshape(-1, self._restarts)[which].sum(axis=1)
        picked = self._out.take(chosen)
        ended = self._out.status.reshape(-1, self._restarts)[which]
        begun = (ended != Status.MISSING).any(axis=1)
        cut = begun & np.isin(ended, CUT_SHORT).any(axis=1)
        status = np.where(cut, np.int32(Status.INTERRUPTED), picked.status)
        return dataclasses.replace(
            picked, evaluations=spent, status=status, trial=choice
        )

    def _fill(self) -> None:
        free = np.flatnonzero(self._trials < 0)
        arriving = np.arange(self._next, min(self._next + len(free), self._total))
        if not len(arriving):
            return
        self._next += len(arriving)
        seats = free[: len(arriving)]
        self._trials[seats] = arriving
        rows, restarts = np.divmod(arriving, self._restarts)
        victims = self._victims[rows]
        keys = lanes.trial_keys(
            self._key, self._seated(victims, seats), self._seated(restarts, seats)
        )
        arrived = np.zeros(len(self._trials), bool)
        arrived[seats] = True
        own = jax.tree.map(lambda leaf: self._seated(leaf, seats), self._fetch(victims))
        keys, own, arrived = machine.place((keys, own, arrived))
        fresh = lanes.begin(self._problem, self._lanes, self._shared, keys, own)
        jax.block_until_ready(fresh)  # type: ignore[no-untyped-call]  # as in `run`
        if self._trial is None:
            self._trial, self._own = fresh, own
        else:
            self._trial, self._own = lanes.admit(
                (self._trial, self._own), (fresh, own), arrived
            )

    def _seated(self, values: Any, seats: Any) -> Any:
        """Spreads values over the slots, so that shapes never change."""
        host = np.asarray(values)
        spread = np.zeros((len(self._trials), *host.shape[1:]), host.dtype)
        spread[seats] = host
        return spread

    def _blank(self) -> Reconstruction:
        count, shape = self._total, self._shape.inputs.shape
        return Reconstruction(
            inputs=np.full((count, *shape), np.nan, np.float32),
            labels=np.full((count, *self._shape.labels.shape), -1, np.int32),
            objective=np.full(count, np.nan, np.float32),
            iterations=np.zeros(count, np.int32),
            evaluations=np.zeros(count, np.int32),
            status=np.full(count, Status.MISSING, np.int32),
        )
