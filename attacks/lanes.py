"""What the loop runs, a problem, and its compiled programs.

A compiler rounds a product of matrices differently for other widths, and a search
amplifies that. So a program is always `lanes` trials wide, and goes over the slots of
a device lanes by lanes. Guarantee: on CPU a trial's numbers depend on nothing but the
trial: not on the slots, the devices, its neighbours or how many there are.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from gradaudit import machine
from gradaudit.types import Key, PyTree, Status

_STATE = 1000  # bytes that a trial keeps per unknown: L-BFGS, 100 pairs in float32
_LANES = 2  # on CPU: nearly the fastest for many, and few don't wait for empty ones


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


def masked_step(
    problem: Problem, shared: PyTree, own: PyTree, kept: PyTree, scratch: PyTree
) -> tuple[PyTree, PyTree]:
    """Moves a trial that still runs; what is kept of an ended one stays."""
    running = problem.read(kept).status == Status.RUNNING
    moved, scratch = problem.step(shared, own, kept, scratch)
    frozen = jax.tree.map(lambda new, old: jnp.where(running, new, old), moved, kept)
    return frozen, scratch


def default_slots(unknowns: int) -> int:
    """Returns how many trials of so many unknowns one device runs at a time.

    On CPU a slot's work should stay in the core's cache; accelerators want width.
    """
    if jax.default_backend() != "cpu":
        known = jax.local_devices()[0].memory_stats() or {}
        return slots_of_memory(known.get("bytes_limit"), unknowns)
    return int(np.clip(24 * 1024 // unknowns, 4, 32))


def slots_of_memory(memory: int | None, unknowns: int) -> int:
    """Returns how many trials an accelerator of so many bytes holds: a power of two.

    An eighth of it is for what they keep; evaluations have the rest. More than 4,096
    would be no faster.
    """
    if memory is None:
        return 256
    fits = memory // 8 // (_STATE * unknowns)
    return 1 << (int(np.clip(fits, 1, 4096)).bit_length() - 1)


def default_lanes(slots: int, alone: bool = False) -> int:
    """Returns how many trials one program holds: a constant, or the numbers change.

    One, if the model is faster `alone`. Accelerators want width: theirs is the number
    of slots, and numbers repeat for the same number of slots.
    """
    if jax.default_backend() != "cpu":
        return slots
    return 1 if alone else _LANES


def _by_lanes(function: Callable[..., Any], lanes: int, *slotted: PyTree) -> Any:
    """Calls a function of `lanes` slots for all slots, one call after the other."""
    groups = jax.tree.map(
        lambda leaf: leaf.reshape(-1, lanes, *leaf.shape[1:]), slotted
    )
    return jax.lax.map(lambda group: function(*group), groups)


def _joined(leaf: jax.Array) -> jax.Array:
    """Returns (slots, ...) of (groups, lanes, ...)."""
    return leaf.reshape(-1, *leaf.shape[2:])


@functools.partial(jax.jit, static_argnums=0)
def begun(problem: Problem, key: Key, shared: PyTree, own: PyTree) -> Reading:
    """Reads one trial before its first step."""
    return problem.read(problem.start(key, shared, own)[0])


@machine.briefly(static_argnums=(0, 1))
def begin(
    problem: Problem, lanes: int, shared: PyTree, keys: jax.Array, own: PyTree
) -> PyTree:
    """Starts a trial in every slot."""

    def shard(shared: PyTree, keys: jax.Array, own: PyTree) -> PyTree:
        def start(keys: jax.Array, own: PyTree) -> PyTree:
            return jax.vmap(problem.start, in_axes=(0, None, 0))(keys, shared, own)

        return jax.tree.map(_joined, _by_lanes(start, lanes, keys, own))

    return machine.over_units(shard, shared=1)(shared, keys, own)


@functools.partial(jax.jit, donate_argnums=0)
def admit(occupied: PyTree, fresh: PyTree, arrived: jax.Array) -> PyTree:
    """Replaces the slots of the arrived."""

    def choose(old: jax.Array, new: jax.Array) -> jax.Array:
        return jnp.where(arrived.reshape(-1, *[1] * (old.ndim - 1)), new, old)

    return jax.tree.map(choose, occupied, fresh)


@functools.partial(jax.jit, static_argnums=(0, 1, 2), donate_argnums=4)
def advance(
    problem: Problem,
    lanes: int,
    iterations: int,
    shared: PyTree,
    trial: PyTree,
    own: PyTree,
) -> tuple[PyTree, dict[str, jax.Array]]:
    """Runs that many iterations in every slot; returns what each one left."""

    def shard(shared: PyTree, trial: PyTree, own: PyTree) -> Any:
        def few(trial: PyTree, own: PyTree) -> tuple[PyTree, dict[str, jax.Array]]:
            def step(trial: PyTree, _: None) -> tuple[PyTree, dict[str, jax.Array]]:
                running = status_of(problem, trial[0]) == Status.RUNNING
                move = jax.vmap(functools.partial(masked_step, problem, shared))
                # Lanes that have all ended cost nothing.
                trial = jax.lax.cond(
                    running.any(), move, lambda own, *ended: ended, own, *trial
                )
                seen = read(problem, trial[0])
                return trial, {
                    "running": running,
                    "iteration": seen.iterations,
                    "objective": seen.objective,
                    "best": seen.inputs,
                    "current": seen.current,
                }

            return jax.lax.scan(step, trial, None, length=iterations)

        trial, record = _by_lanes(few, lanes, trial, own)
        by_iteration = jax.tree.map(
            lambda leaf: jnp.moveaxis(leaf, 0, 1).reshape(
                iterations, -1, *leaf.shape[3:]
            ),
            record,
        )
        return jax.tree.map(_joined, trial), by_iteration

    result: tuple[PyTree, dict[str, jax.Array]] = machine.over_units(
        shard, shared=1, traced=True
    )(shared, trial, own)
    return result


@functools.partial(jax.jit, static_argnums=0)
def read(problem: Problem, kept: PyTree) -> Reading:
    """Reads all slots."""
    return jax.vmap(problem.read)(kept)


@functools.partial(jax.jit, static_argnums=0)
def status_of(problem: Problem, kept: PyTree) -> jax.Array:
    """Reads how all slots are."""
    return jax.vmap(lambda one: problem.read(one).status)(kept)


@jax.jit
def trial_keys(key: Key, victims: jax.Array, restarts: jax.Array) -> jax.Array:
    """Returns the keys of trials: addressed by victim and restart."""

    def one(victim: jax.Array, restart: jax.Array) -> Key:
        return jax.random.fold_in(jax.random.fold_in(key, victim), restart)

    return jax.vmap(one)(victims, restarts)
