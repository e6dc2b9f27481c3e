"""What the loop runs: a problem, its trials, and what may be seen of them."""

import dataclasses
import functools
from typing import Protocol

import jax
import jax.numpy as jnp

from gradaudit.types import Key, PyTree, Status


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


class Pool(Protocol):
    """Makes one answer of what the trials of one victim found; frozen and hashable."""

    def __call__(self, inputs: jax.Array, objectives: jax.Array) -> jax.Array:
        """Returns inputs (examples, *shape) of (trials, examples, *shape).

        In the order of the trial with the lowest objective, whose labels they keep.
        """


@dataclasses.dataclass(frozen=True)
class Alone:
    """No coupling: trials that are only pooled."""

    def __call__(self, kept: PyTree) -> PyTree:
        """Returns the trials as they are."""
        return kept


@dataclasses.dataclass(frozen=True)
class Together:
    """A problem whose trial is `trials` trials of another one, coupled at every step.

    What is handed in is what `pool` makes of them; without it, the best.

    Guarantee: with a coupling that changes nothing, each of them is the trial that it
    would have been alone.
    """

    problem: Problem
    trials: int
    couple: Couple = Alone()
    pool: Pool | None = None

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
        step = functools.partial(masked_step, self.problem, shared, own)
        moved, scratch = jax.vmap(step)(kept, scratch)
        return self.couple(moved), scratch

    def read(self, kept: PyTree) -> Reading:
        """Returns the best trial by its own objective, or the pool; costs are added."""
        each = jax.vmap(self.problem.read)(kept)
        best = jnp.argmin(jnp.nan_to_num(each.objective, nan=jnp.inf))
        chosen: Reading = jax.tree.map(lambda leaf: leaf[best], each)
        if self.pool is not None:
            pooled = self.pool(each.inputs, each.objective)
            chosen = dataclasses.replace(chosen, inputs=pooled)
        going = jnp.any(each.status == Status.RUNNING)
        return dataclasses.replace(
            chosen,
            iterations=jnp.max(each.iterations),
            evaluations=jnp.sum(each.evaluations),
            status=jnp.where(going, int(Status.RUNNING), chosen.status),
        )


def masked_step(
    problem: Problem, shared: PyTree, own: PyTree, kept: PyTree, scratch: PyTree
) -> tuple[PyTree, PyTree]:
    """Moves a trial that still runs; what is kept of an ended one stays."""
    running = problem.read(kept).status == Status.RUNNING
    moved, scratch = problem.step(shared, own, kept, scratch)
    frozen = jax.tree.map(lambda new, old: jnp.where(running, new, old), moved, kept)
    return frozen, scratch
