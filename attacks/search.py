"""The loop, written once over anything iterative: victims stream through fixed slots.

Every slot searches for one victim, a few iterations a call of one compiled program.
Between two calls the finished leave, the next ones take their slots, progress is told,
and Ctrl-C ends the run with what there is. A slot's arithmetic depends on nothing but
its own victim, so that neither the order nor the number of devices changes a result;
memory depends on the number of slots only; only scalars leave the devices in a call.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from gradaudit import machine
from gradaudit.types import Key, PyTree, Reconstruction, Status

_CUT_SHORT = (Status.INTERRUPTED, Status.MISSING)
_EVALUATIONS_PER_CALL = 40  # progress about once a second, little waste at the end


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Reading:
    """What anybody may see of one trial: what it would hand in, and how it is."""

    inputs: jax.Array  # (examples, *input_shape) attacker-selected
    current: jax.Array  # (examples, *input_shape) where the search stands
    labels: jax.Array  # (examples,)
    objective: jax.Array  # () of `inputs`; infinite while nothing finite was seen
    iterations: jax.Array  # ()
    evaluations: jax.Array  # ()
    status: jax.Array  # () a Status; the loop goes on while it is RUNNING


class Problem(Protocol):
    """Something iterative: pure functions of one trial; frozen, hashable, static.

    `shared` is the same for all trials of a run, `own` is the victim's. A trial is a
    pair (kept, scratch): `kept` is frozen when the trial has ended, `scratch` (a large
    memory, say) is of no use to it any more and may hold anything.
    """

    @property
    def evaluations_per_step(self) -> int:
        """About how many evaluations of the objective a step costs."""

    def start(self, key: Key, shared: PyTree, own: PyTree) -> tuple[PyTree, PyTree]:
        """Returns a trial before its first step."""

    def step(
        self, shared: PyTree, own: PyTree, kept: PyTree, scratch: PyTree
    ) -> tuple[PyTree, PyTree]:
        """Returns the trial after one attack iteration."""

    def read(self, kept: PyTree) -> Reading:
        """Returns what may be seen of the trial."""


class Couple(Protocol):
    """Lets the trials of one victim learn from each other; frozen and hashable."""

    def __call__(self, kept: PyTree) -> PyTree:
        """Returns the trials' kept states, stacked, after they were coupled."""


@dataclasses.dataclass(frozen=True)
class Together:
    """A problem whose trial is `trials` trials of another one, coupled at every step.

    Guarantee: with a coupling that changes nothing, each of them is the trial that it
    would have been alone.
    """

    problem: Problem
    trials: int
    couple: Couple

    @property
    def evaluations_per_step(self) -> int:
        """The sum over the trials."""
        return self.trials * self.problem.evaluations_per_step

    def start(self, key: Key, shared: PyTree, own: PyTree) -> tuple[PyTree, PyTree]:
        """Starts every trial with a key of its own."""

        def one(index: jax.Array) -> tuple[PyTree, PyTree]:
            return self.problem.start(jax.random.fold_in(key, index), shared, own)

        return jax.vmap(one)(jnp.arange(self.trials))

    def step(
        self, shared: PyTree, own: PyTree, kept: PyTree, scratch: PyTree
    ) -> tuple[PyTree, PyTree]:
        """Moves the trials that still run, then couples them all."""
        step = functools.partial(_masked_step, self.problem, shared, own)
        moved, scratch = jax.vmap(step)(kept, scratch)
        return self.couple(moved), scratch

    def read(self, kept: PyTree) -> Reading:
        """Returns the best trial by its own objective; costs are added."""
        each = jax.vmap(self.problem.read)(kept)
        best = jnp.argmin(jnp.nan_to_num(each.objective, nan=jnp.inf))
        chosen: Reading = jax.tree.map(lambda leaf: leaf[best], each)
        going = jnp.any(each.status == Status.RUNNING)
        return dataclasses.replace(
            chosen,
            iterations=jnp.max(each.iterations),
            evaluations=jnp.sum(each.evaluations),
            status=jnp.where(going, int(Status.RUNNING), chosen.status),
        )


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """A few attack iterations of all slots, and whose they are.

    Pictures stay on the devices until somebody asks for them.
    """

    trials: NDArray[np.int64]  # (slots,) victim * restarts + restart; -1 = empty
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
Fetch = Callable[[NDArray[np.int64]], PyTree]  # victims' ids -> what is theirs, stacked


def search_all(
    key: Key,
    problem: Problem,
    shared: PyTree,
    fetch: Fetch,
    count: int,
    restarts: int = 1,
    slots: int | None = None,
    watcher: Watcher | None = None,
) -> Reconstruction:
    """Runs the problem for every victim; returns what is handed in, stacked.

    Each victim gets `restarts` independent trials, and the one with the lowest own
    objective is handed in. After Ctrl-C the unfinished are INTERRUPTED and those that
    were never begun MISSING; if there are none, `Stopped` hands it on with the result.
    `slots` is how many trials a device holds at a time.
    """
    conveyor = _Conveyor(key, problem, shared, fetch, count, restarts, slots)
    try:
        for snapshot in conveyor.run():
            if watcher is not None:
                watcher(snapshot)
    except KeyboardInterrupt:
        conveyor.collect(everything=True)
        if not is_cut_short(result := conveyor.selected()):
            raise Stopped(result) from None
    return conveyor.selected()


def is_cut_short(result: Reconstruction) -> bool:
    """Returns whether a victim is not done: Ctrl-C came before."""
    return bool(np.isin(np.asarray(result.status), _CUT_SHORT).any())


def default_slots(unknowns: int) -> int:
    """Returns how many trials of so many unknowns one device runs at a time.

    On CPU a slot's work should stay in the core's cache; accelerators want width.
    """
    if jax.default_backend() != "cpu":
        return 256
    return int(np.clip(24 * 1024 // unknowns, 4, 32))


def _masked_step(
    problem: Problem, shared: PyTree, own: PyTree, kept: PyTree, scratch: PyTree
) -> tuple[PyTree, PyTree]:
    running = problem.read(kept).status == Status.RUNNING
    moved, scratch = problem.step(shared, own, kept, scratch)
    frozen = jax.tree.map(lambda new, old: jnp.where(running, new, old), moved, kept)
    return frozen, scratch


@functools.partial(jax.jit, static_argnums=0)
def _begun(problem: Problem, key: Key, shared: PyTree, own: PyTree) -> Reading:
    return problem.read(problem.start(key, shared, own)[0])


@functools.partial(jax.jit, static_argnums=0)
def _begin(problem: Problem, shared: PyTree, keys: jax.Array, own: PyTree) -> PyTree:
    def shard(shared: PyTree, keys: jax.Array, own: PyTree) -> PyTree:
        return jax.vmap(lambda key, mine: problem.start(key, shared, mine))(keys, own)

    return machine.over_units(shard, shared=1)(shared, keys, own)


@functools.partial(jax.jit, donate_argnums=0)
def _admit(occupied: PyTree, fresh: PyTree, arrived: jax.Array) -> PyTree:
    """Replaces the slots of the arrived."""

    def choose(old: jax.Array, new: jax.Array) -> jax.Array:
        return jnp.where(arrived.reshape(-1, *[1] * (old.ndim - 1)), new, old)

    return jax.tree.map(choose, occupied, fresh)


@functools.partial(jax.jit, static_argnums=(0, 1), donate_argnums=3)
def _advance(
    problem: Problem, iterations: int, shared: PyTree, trial: PyTree, own: PyTree
) -> tuple[PyTree, dict[str, jax.Array]]:
    """Runs that many iterations in every slot; returns what each one left."""

    def one(
        shared: PyTree, trial: tuple[PyTree, PyTree], mine: PyTree
    ) -> tuple[PyTree, dict[str, jax.Array]]:
        was_running = problem.read(trial[0]).status == Status.RUNNING
        trial = _masked_step(problem, shared, mine, *trial)
        seen = problem.read(trial[0])
        record = {
            "running": was_running,
            "iteration": seen.iterations,
            "objective": seen.objective,
            "best": seen.inputs,
            "current": seen.current,
        }
        return trial, record

    def shard(shared: PyTree, trial: PyTree, own: PyTree) -> Any:
        def step(trial: PyTree, _: None) -> tuple[PyTree, dict[str, jax.Array]]:
            return jax.vmap(functools.partial(one, shared))(trial, own)

        return jax.lax.scan(step, trial, None, length=iterations)

    result: tuple[PyTree, dict[str, jax.Array]] = machine.over_units(
        shard, shared=1, traced=True
    )(shared, trial, own)
    return result


@functools.partial(jax.jit, static_argnums=0)
def _read(problem: Problem, kept: PyTree) -> Reading:
    return jax.vmap(problem.read)(kept)


@functools.partial(jax.jit, static_argnums=0)
def _status(problem: Problem, kept: PyTree) -> jax.Array:
    return jax.vmap(lambda one: problem.read(one).status)(kept)


@jax.jit
def _trial_keys(key: Key, victims: jax.Array, restarts: jax.Array) -> jax.Array:
    def one(victim: jax.Array, restart: jax.Array) -> Key:
        return jax.random.fold_in(jax.random.fold_in(key, victim), restart)

    return jax.vmap(one)(victims, restarts)


class _Conveyor:
    """The host's side of the loop: who sits in which slot, and what came out."""

    def __init__(
        self,
        key: Key,
        problem: Problem,
        shared: PyTree,
        fetch: Fetch,
        count: int,
        restarts: int,
        slots: int | None,
    ) -> None:
        self._key, self._problem, self._fetch = key, problem, fetch
        self._shared = machine.place(shared, shared=True)
        self._restarts = restarts
        self._total = count * restarts
        self._shape = self._abstract(key, problem, shared)
        wanted = slots or default_slots(self._shape.inputs.size)
        devices = machine.device_count()
        each = -(-self._total // devices)
        # As few slots as give the same number of waves: the last is not half empty.
        per_device = wanted if slots else -(-each // -(-each // wanted))
        self._trials = np.full(min(per_device, each) * devices, -1, np.int64)
        self._next = self._finished = 0
        self._trial: tuple[PyTree, PyTree] | None = None
        self._own: PyTree = None
        self._iterations = max(1, _EVALUATIONS_PER_CALL // problem.evaluations_per_step)
        self._out = self._blank()

    def _abstract(self, key: Key, problem: Problem, shared: PyTree) -> Any:
        own = jax.tree.map(lambda leaf: leaf[0], self._fetch(np.zeros(1, np.int64)))
        shapes: Any = _begun.eval_shape
        return shapes(problem, key, shared, own)

    def run(self) -> Iterator[Snapshot]:
        """Advances until nobody is left, yielding what happened."""
        self._fill()
        while (self._trials >= 0).any():
            self._trial, record = _advance(
                self._problem, self._iterations, self._shared, self._trial, self._own
            )
            trials = self._trials.copy()
            self.collect()
            yield Snapshot(
                trials=trials,
                iteration=np.asarray(record["iteration"]),
                running=np.asarray(record["running"]) & (trials >= 0),
                objective=np.asarray(record["objective"]),
                best=record["best"],
                current=record["current"],
                finished=self._finished,
                total=self._total,
            )
            self._fill()

    def collect(self, everything: bool = False) -> None:
        """Takes the results of finished slots (or all of them) and empties them."""
        # Ctrl-C may come when a call has taken the state and not returned it.
        if self._trial is None or any(
            leaf.is_deleted() for leaf in jax.tree.leaves(self._trial[0])
        ):
            return
        status = np.asarray(_status(self._problem, self._trial[0]))
        done = (self._trials >= 0) & (everything | (status != Status.RUNNING))
        if not done.any():
            return
        seen = jax.tree.map(np.asarray, _read(self._problem, self._trial[0]))
        # A start that was never evaluated is no answer: its victim was not begun.
        done &= (status != Status.RUNNING) | (seen.iterations > 0)
        where = self._trials[done]
        for name in ("inputs", "labels", "objective", "iterations", "evaluations"):
            getattr(self._out, name)[where] = getattr(seen, name)[done]
        running = status[done] == Status.RUNNING
        self._out.status[where] = np.where(running, Status.INTERRUPTED, status[done])
        self._trials[done] = -1
        self._finished += int(done.sum())

    def selected(self) -> Reconstruction:
        """Returns the best restart of each victim by the attacker's own objective."""
        by_victim = self._out.objective.reshape(-1, self._restarts)
        choice = np.argmin(np.nan_to_num(by_victim, nan=np.inf), axis=1)
        chosen = np.arange(len(choice)) * self._restarts + choice
        # What it cost is the sum over restarts; the rest belongs to the chosen one.
        spent = self._out.evaluations.reshape(-1, self._restarts).sum(axis=1)
        picked = self._out.take(chosen)
        ended = self._out.status.reshape(-1, self._restarts)
        begun = (ended != Status.MISSING).any(axis=1)
        cut = begun & np.isin(ended, _CUT_SHORT).any(axis=1)
        status = np.where(cut, np.int32(Status.INTERRUPTED), picked.status)
        return dataclasses.replace(picked, evaluations=spent, status=status)

    def _fill(self) -> None:
        free = np.flatnonzero(self._trials < 0)
        arriving = np.arange(self._next, min(self._next + len(free), self._total))
        if not len(arriving):
            return
        self._next += len(arriving)
        seats = free[: len(arriving)]
        self._trials[seats] = arriving
        victims, restarts = np.divmod(arriving, self._restarts)
        keys = _trial_keys(
            self._key, self._seated(victims, seats), self._seated(restarts, seats)
        )
        arrived = np.zeros(len(self._trials), bool)
        arrived[seats] = True
        own = jax.tree.map(lambda leaf: self._seated(leaf, seats), self._fetch(victims))
        keys, own, arrived = machine.place((keys, own, arrived))
        fresh = _begin(self._problem, self._shared, keys, own)
        if self._trial is None:
            self._trial, self._own = fresh, own
        else:
            self._trial, self._own = _admit(
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
