"""What the restarts of one victim have to do with each other.

Each is a part of `Matching`. The order of a batch's examples is arbitrary, so that
restarts are aligned before anything is compared.
"""

import dataclasses
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from gradaudit.attacks.problem import Couple, Pool
from gradaudit.attacks.starts import Layout
from gradaudit.errors import InputError
from gradaudit.types import Status

_FAR = 1e30  # squared, of what is not finite


class Coupling(Protocol):
    """Lets restarts learn from each other while they search."""

    def couple(self, layout: Layout) -> Couple:
        """Returns the coupling for trials that lie so in their vectors."""


class Pooling(Protocol):
    """Makes one answer of all restarts."""

    def pool(self, layout: Layout) -> Pool:
        """Returns the pool for trials that lie so in their vectors."""


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

    def couple(self, layout: Layout) -> "Drawn":
        """Returns the coupling."""
        return Drawn(self.weight, layout)


@dataclasses.dataclass(frozen=True)
class Drawn:
    """Trials that are drawn towards the mean of those that still run."""

    weight: float
    layout: Layout

    def __call__(self, kept: Any) -> Any:
        """Returns the searches, moved."""
        layout, count = self.layout, len(kept.position)
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

    Votes are shares: a restart that is not sure votes for several values.
    """

    def pool(self, layout: Layout) -> "Voted":
        """Returns the pool."""
        return Voted(layout)


@dataclasses.dataclass(frozen=True)
class Voted:
    """One answer of aligned restarts; those that diverged have no vote."""

    layout: Layout

    def __call__(self, inputs: jax.Array, objectives: jax.Array) -> jax.Array:
        """Returns the pooled inputs, as private data can be."""
        best = _best(objectives)
        order = alignments(inputs, best)
        ordered = _in_order(inputs, order)
        valid = jnp.isfinite(objectives).reshape(-1, *[1] * (inputs.ndim - 1))
        ordered = jnp.where(valid, ordered, inputs[best])
        form = self.layout.form
        return jnp.median(ordered, axis=0) if form is None else form.pooled(ordered)


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
