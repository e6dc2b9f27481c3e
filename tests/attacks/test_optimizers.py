"""What an update is: Adam as optax has it, the box, and how a search is judged."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from gradaudit.attacks.lbfgs import LBFGS
from gradaudit.attacks.matching import Searching, Stop, _judge
from gradaudit.attacks.optimizers import Adam, Best, LineSearchLBFGS, Progress, Standing
from gradaudit.types import Status

WEIGHTS = jnp.asarray([1.0, 3.0, 0.5, 7.0])
MINIMUM = jnp.asarray([0.3, -0.8, 2.0, 0.6])
START = jnp.asarray([0.9, 0.2, 0.1, 0.0])
BUDGET = 24


def bowl(position):
    """A quadratic with another curvature along every axis."""
    away = position - MINIMUM
    return 0.5 * jnp.vdot(away, WEIGHTS * away), WEIGHTS * away


def box(position):
    return jnp.clip(position, 0.0, 1.0)


def walk(optimizer, iterations, project=None, budget=BUDGET):
    """Returns every position and the optimizer's last memory."""
    position, memory, best = START, optimizer.init(START), Best.start(START)
    positions, iterate = [START], jax.jit(optimizer.iterate, static_argnums=(0, 1))
    for index in range(iterations):
        done = jnp.asarray(index, jnp.int32)
        at = Standing(position, memory, best, done, budget)
        progress = iterate(bowl, project, at)
        position, memory, best = progress.position, progress.memory, progress.best
        positions.append(position)
    return np.stack(positions), memory


@pytest.mark.parametrize("decays", [False, True])
@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("project", [None, box], ids=["free", "box"])
def test_adam_takes_the_steps_of_optax(signed, decays, project):
    rate = 0.1
    falls = {BUDGET * eighths // 8: 0.1 for eighths in (3, 5, 7)}
    schedule = optax.piecewise_constant_schedule(rate, falls) if decays else rate
    reference = optax.adam(schedule)
    position, state, expected = START, reference.init(START), [START]
    for _ in range(BUDGET):
        gradient = bowl(position)[1]
        direction = jnp.sign(gradient) if signed else gradient
        update, state = reference.update(direction, state)
        position = optax.apply_updates(position, update)
        position = position if project is None else project(position)
        expected.append(position)
    ours, _ = walk(Adam(rate, signed=signed, decays=decays), BUDGET, project)
    np.testing.assert_allclose(ours, np.stack(expected), atol=2e-6)


def test_lbfgs_remembers_what_was_moved_in_the_box():
    positions, memory = walk(LBFGS(updates=1, history=10), 6, box)
    moved = np.diff(positions, axis=0)
    kept = int(memory.pairs.count)
    assert kept >= 3
    np.testing.assert_allclose(memory.pairs.steps[:kept], moved[:kept], atol=1e-7)
    free, _ = walk(LBFGS(updates=1, history=10), 1)
    # ... and the box really cut a step, or nothing was tested.
    assert (positions[1:] == box(positions[1:])).all()
    unclipped = (
        positions[:-1] - np.stack([bowl(jnp.asarray(p))[1] for p in positions])[:-1]
    )
    assert (unclipped != box(unclipped)).any() and len(free) == 2
    changes = np.stack([bowl(jnp.asarray(p))[1] for p in positions[: kept + 1]])
    np.testing.assert_allclose(
        memory.pairs.changes[:kept], np.diff(changes, axis=0), atol=1e-6
    )
    curvatures = np.sum(moved[:kept] * np.diff(changes, axis=0), axis=1)
    np.testing.assert_allclose(memory.pairs.curvature[:kept], curvatures, rtol=1e-4)


def test_in_the_box_the_constrained_minimum_is_found():
    positions, _ = walk(LBFGS(), 12, box)
    np.testing.assert_allclose(positions[-1], box(MINIMUM), atol=1e-3)


@pytest.mark.parametrize(
    "optimizer", [LBFGS(), LBFGS(updates=3), Adam(), LineSearchLBFGS()], ids=repr
)
def test_the_first_value_is_that_of_the_first_evaluation(optimizer):
    memory, best = optimizer.init(START), Best.start(START)
    at = Standing(START, memory, best, jnp.zeros((), jnp.int32), BUDGET)
    progress = optimizer.iterate(bowl, None, at)
    np.testing.assert_allclose(progress.first, bowl(START)[0], rtol=1e-6)


def judged(stop=Stop(), target=0.0, first=10.0, best=1.0, value=1.0, **changes):  # noqa: B008
    """Judges a first iteration that went from `first` to `best`, ending at `value`."""
    number = lambda x: jnp.asarray(x, jnp.float32)  # noqa: E731
    before = Searching(
        position=START,
        best=Best.start(START),
        labels=jnp.zeros(1, jnp.int32),
        iteration=jnp.zeros((), jnp.int32),
        evaluations=jnp.zeros((), jnp.int32),
        status=jnp.asarray(Status.RUNNING, jnp.int32),
        first_value=number(jnp.inf),
        mark_value=number(jnp.inf),
        mark_iteration=jnp.zeros((), jnp.int32),
    )
    progress = Progress(
        position=START,
        memory=(),
        best=Best(START, number(best)),
        active=jnp.asarray(True),
        evaluations=jnp.asarray(20, jnp.int32),
        value=number(value),
        diverged=jnp.asarray(False),
        first=number(first),
    )
    progress = dataclasses.replace(progress, **changes)
    return _judge(stop, stop.iterations, number(target), before, progress)


def test_an_explosion_is_measured_from_the_first_evaluation():
    """In 20 updates the best fell by 1e9; a last value of the first's size is calm."""
    after = judged(first=10.0, best=1e-8, value=10.0)
    assert float(after.first_value) == 10.0
    assert after.status == Status.RUNNING
    assert judged(first=10.0, best=1e-8, value=2e7).status == Status.DIVERGED


def test_who_has_found_it_is_done_whatever_the_last_step_did():
    broke = {"diverged": jnp.asarray(True), "value": jnp.asarray(jnp.nan)}
    assert judged(target=1e-3, best=1e-4, **broke).status == Status.CONVERGED
    assert judged(target=1e-3, best=1e-2, **broke).status == Status.DIVERGED
    assert judged(target=1e-3, best=1e-4).status == Status.CONVERGED
    # A target that overflowed is met by nobody.
    assert judged(target=jnp.inf, best=jnp.inf, **broke).status == Status.DIVERGED
