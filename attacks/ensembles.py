"""What the restarts of one victim have to do with each other.

They run as one trial. A coupling and a pooling are parts of `Matching`. The order of a
batch's examples is arbitrary, so that restarts are aligned before anything is compared.
"""

import dataclasses
import functools
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from gradaudit.attacks.lanes import Problem, Reading, masked_step
from gradaudit.attacks.starts import Layout
from gradaudit.errors import InputError
from gradaudit.types import Key, PyTree, Status

_FAR = 1e30  # squared, of what is not finite


class Coupling(Protocol):
    """Lets the trials of one victim learn from each other; frozen and hashable."""

    def couple(self, layout: Layout, kept: Any) -> Any:
        """Returns the trials' kept states, stacked, after they were coupled."""


class Pooling(Protocol):
    """Makes one answer of what the trials of one victim found; frozen and hashable."""

    def pool(
        self, layout: Layout, inputs: jax.Array, objectives: jax.Array
    ) -> jax.Array:
        """Returns inputs (examples, *shape) of (trials, examples, *shape).

        In the order of the trial with the lowest objective, whose labels they keep.
        """


@dataclasses.dataclass(frozen=True)
class Together:
    """A problem whose trial is `trials` trials of another one, coupled at every step.

    What is handed in is what `pooling` makes of them; without it, the best.

    Guarantee: without a coupling each of them is the trial that it would have been
    alone.
    """

    problem: Problem
    trials: int
    coupling: Coupling | None = None
    pooling: Pooling | None = None
    layout: Any = None  # of the vectors in which the trials lie

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
        if self.coupling is not None:
            moved = self.coupling.couple(self.layout, moved)
        return moved, scratch

    def read(self, kept: PyTree) -> Reading:
        """Returns the best trial by its own objective, or the pool; costs are added."""
        each = jax.vmap(self.problem.read)(kept)
        best = jnp.argmin(jnp.nan_to_num(each.objective, nan=jnp.inf))
        chosen: Reading = jax.tree.map(lambda leaf: leaf[best], each)
        if self.pooling is not None:
            pooled = self.pooling.pool(self.layout, each.inputs, each.objective)
            chosen = dataclasses.replace(chosen, inputs=pooled)
        going = jnp.any(each.status == Status.RUNNING)
        return dataclasses.replace(
            chosen,
            iterations=jnp.max(each.iterations),
            evaluations=jnp.sum(each.evaluations),
            status=jnp.where(going, int(Status.RUNNING), chosen.status),
        )


@dataclasses.dataclass(frozen=True)
class Consistency:
    """Group consistency (Yin et al. 2021): restarts are drawn towards their mean.

    After every iteration each moves by `weight` of the way: the step of the penalty
    weight / 2 x squared distance to the mean. Without the paper's registration, which
    pictures of this size don't need.
    """

    weight: float = 0.01

    def __post_init__(self) -> None:
        if not 0 <= self.weight <= 1:
            raise InputError(f"weight must lie in [0, 1], got {self.weight}")

    def couple(self, layout: Layout, kept: Any) -> Any:
        """Returns the searches, drawn towards the mean of those that still run."""
        count = len(kept.position)
        free = kept.position[:, : layout.pixels].reshape(count, *layout.free)
        order = alignments(free, _best(kept.best.value))
        ordered = _in_order(free, order)
        running = kept.status == Status.RUNNING
        weights = running / jnp.maximum(jnp.sum(running), 1)
        mean = jnp.tensordot(weights.astype(free.dtype), ordered, axes=1)
        pulled = ordered + self.weight * (mean - ordered)
        back = _in_order(pulled, jnp.argsort(order, axis=1))
        moved = back.reshape(count, -1)
        whole = jnp.concatenate([moved, kept.position[:, layout.pixels :]], axis=1)
        position = jnp.where(running[:, None], whole, kept.position)
        return dataclasses.replace(kept, position=position)


@dataclasses.dataclass(frozen=True)
class MedianVote:
    """The median of numbers, the value with most votes of categories (TabLeak).

    Votes are shares: a restart that is not sure votes for several values. Those that
    diverged have no vote.
    """

    def pool(
        self, layout: Layout, inputs: jax.Array, objectives: jax.Array
    ) -> jax.Array:
        """Returns the pooled inputs, as private data can be."""
        best = _best(objectives)
        order = alignments(inputs, best)
        ordered = _in_order(inputs, order)
        valid = jnp.isfinite(objectives).reshape(-1, *[1] * (inputs.ndim - 1))
        ordered = jnp.where(valid, ordered, inputs[best])
        if layout.form is None:
            return jnp.median(ordered, axis=0)
        return layout.form.pooled(ordered)


def _best(objectives: jax.Array) -> jax.Array:
    return jnp.argmin(jnp.nan_to_num(objectives, nan=jnp.inf, posinf=jnp.inf))


def _in_order(batches: jax.Array, order: jax.Array) -> jax.Array:
    """Returns (trials, examples, ...) with the examples of each in its order."""
    index = order.reshape(*order.shape, *[1] * (batches.ndim - 2))
    return jnp.take_along_axis(batches, index, axis=1)


def alignments(batches: jax.Array, best: jax.Array) -> jax.Array:
    """Returns for each batch the order that makes it most like the best one.

    (trials, examples, ...) to (trials, examples); greedy, nearest pairs first.
    """
    flat = batches.reshape(*batches.shape[:2], -1)
    return jax.vmap(lambda one: _nearest(flat[best], one))(flat)


def _nearest(reference: jax.Array, other: jax.Array) -> jax.Array:
    """Returns the index of `other` for each row of the reference, each once."""
    count = len(reference)
    if count == 1:
        return jnp.zeros(1, jnp.int32)
    apart = jnp.sum(jnp.square(reference[:, None] - other[None]), axis=-1)
    apart = jnp.nan_to_num(apart, nan=_FAR, posinf=_FAR)

    def pair(_: int, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        left, chosen = state
        row, column = jnp.unravel_index(jnp.argmin(left), left.shape)
        left = left.at[row].set(jnp.inf).at[:, column].set(jnp.inf)
        return left, chosen.at[row].set(column.astype(jnp.int32))

    start = apart, jnp.zeros(count, jnp.int32)
    chosen: jax.Array = jax.lax.fori_loop(0, count, pair, start)[1]
    return chosen
