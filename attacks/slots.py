"""The compiled program: every slot searches for one victim, a few iterations a call.

A slot's arithmetic depends on nothing but its own victim, so that neither the order
nor the number of devices changes a result.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from gradaudit import parallel
from gradaudit.attacks import matching as matching_module
from gradaudit.attacks.base import Best
from gradaudit.attacks.matching import Matching, layout_of
from gradaudit.types import Key, Model, Observation, PyTree, Status


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

    result: State = parallel.over_units(shard, shared=2)(
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

    result: tuple[State, dict[str, jax.Array]] = parallel.over_units(
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
