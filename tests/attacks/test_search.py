"""The loop on a problem that is no gradient matching: it runs anything iterative."""

import ast
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradaudit.attacks import lanes, search
from gradaudit.attacks.ensembles import Together
from gradaudit.attacks.lanes import Reading
from gradaudit.attacks.search import search_all
from gradaudit.types import Status

KEY = jax.random.key(0)
SIZE = 5


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Descent:
    """What is kept of one descent."""

    position: jax.Array
    value: jax.Array
    iteration: jax.Array
    status: jax.Array


@dataclasses.dataclass(frozen=True)
class Bowl:
    """Gradient descent on the squared distance to a target; own = the target."""

    rate: float = 0.25
    budget: int = 12
    evaluations_per_step: int = 1

    def start(self, key, shared, own):
        position = shared + jax.random.normal(key, own.shape)
        none = jnp.zeros((), jnp.int32)
        running = jnp.asarray(Status.RUNNING, jnp.int32)
        return Descent(position, jnp.asarray(jnp.inf), none, running), ()

    def step(self, shared, own, kept, scratch):
        position = kept.position - 2 * self.rate * (kept.position - own)
        value = jnp.sum(jnp.square(position - own))
        iteration = kept.iteration + 1
        status = jnp.select(
            [~jnp.isfinite(value), value < 1e-9, iteration >= self.budget],
            [int(Status.DIVERGED), int(Status.CONVERGED), int(Status.BUDGET)],
            int(Status.RUNNING),
        )
        return Descent(position, value, iteration, status.astype(jnp.int32)), scratch

    def read(self, kept):
        picture = kept.position[None]
        return Reading(
            inputs=picture,
            current=picture,
            labels=jnp.zeros(1, jnp.int32),
            objective=kept.value,
            iterations=kept.iteration,
            evaluations=kept.iteration,
            status=kept.status,
        )


def targets(count):
    return np.random.default_rng(1).normal(size=(count, SIZE)).astype(np.float32)


def solve(
    problem, count=6, restarts=1, slots=2, watcher=None, wanted=None, only=None, **more
):
    goals = targets(count) if wanted is None else wanted
    return search_all(
        KEY,
        problem,
        jnp.zeros(SIZE),
        lambda ids: goals[ids],
        np.arange(len(goals)) if only is None else only,
        restarts,
        slots,
        watcher,
        **more,
    )


def start_of(victim, restart):
    key = jax.random.fold_in(jax.random.fold_in(KEY, victim), restart)
    return np.asarray(jax.random.normal(key, (SIZE,)))


def test_any_problem_runs_and_ends_where_its_own_rules_say():
    result = solve(Bowl())
    goals = targets(6)
    for victim in range(6):
        expected = goals[victim] + 0.5**12 * (start_of(victim, 0) - goals[victim])
        np.testing.assert_allclose(result.inputs[victim, 0], expected, atol=1e-6)
    np.testing.assert_array_equal(result.iterations, 12)
    assert (result.status == Status.BUDGET).all()
    done = solve(Bowl(budget=100))
    assert (done.status == Status.CONVERGED).all()
    assert (done.iterations < 40).all()  # frozen from there on
    assert (done.objective < 1e-9).all()


@pytest.mark.parametrize("slots", [1, 2, 5, 6, 50])
def test_slots_do_not_change_the_answer(slots):
    expected, found = solve(Bowl(), slots=6), solve(Bowl(), slots=slots)
    np.testing.assert_array_equal(found.inputs, expected.inputs)
    np.testing.assert_array_equal(found.objective, expected.objective)


def test_some_of_the_victims_have_the_numbers_that_they_have_among_all():
    everybody, told = solve(Bowl(), restarts=2), []
    calls = []
    some = solve(
        Bowl(),
        restarts=2,
        watcher=calls.append,
        only=np.asarray([1, 4, 5]),
        ended=lambda victims, found: told.append((victims, found)),
    )
    np.testing.assert_array_equal(some.inputs, everybody.inputs[[1, 4, 5]])
    seen = {int(trial) for call in calls for trial in call.trials if trial >= 0}
    assert seen == {2, 3, 8, 9, 10, 11}  # victim * restarts + restart
    assert np.concatenate([victims for victims, _ in told]).tolist() == [1, 4, 5]
    handed = np.concatenate([found.inputs for _, found in told])
    np.testing.assert_array_equal(handed, some.inputs)


def test_what_did_not_end_stays_in_its_slot_over_many_calls():
    calls = []
    problem = Bowl(rate=0.01, budget=3 * search._EVALUATIONS_PER_CALL + 1)
    result = solve(problem, count=4, slots=2, watcher=calls.append)
    assert len(calls) == 2 * 4  # two at a time, four calls each
    np.testing.assert_array_equal(result.iterations, problem.budget)
    counted = sum(int(call.running.sum()) for call in calls)
    assert counted == 4 * problem.budget  # after the end nothing counts


def test_the_restart_with_the_lowest_own_objective_is_handed_in():
    result = solve(Bowl(), restarts=4)
    goals = targets(6)
    for victim in range(6):
        starts = np.stack([start_of(victim, restart) for restart in range(4)])
        far = np.sum(np.square(starts - goals[victim]), axis=1)
        shrunk = 0.5**12 * (starts[far.argmin()] - goals[victim])
        np.testing.assert_allclose(
            result.inputs[victim, 0], goals[victim] + shrunk, atol=1e-6
        )
    np.testing.assert_array_equal(result.evaluations, 4 * 12)  # what it cost in all


def test_a_victim_that_diverges_at_once_has_a_place_in_the_result():
    goals = targets(4)
    goals[1] = np.inf
    result = solve(Bowl(), wanted=goals)
    assert result.status[1] == Status.DIVERGED and not np.isfinite(result.objective[1])
    assert (np.delete(result.status, 1) == Status.BUDGET).all()


@dataclasses.dataclass(frozen=True)
class Follow:
    """Every trial goes on from the best one."""

    def couple(self, layout, kept):
        best = jnp.argmin(kept.value)
        return dataclasses.replace(
            kept, position=jnp.broadcast_to(kept.position[best], kept.position.shape)
        )


def together_starts(victim, trials):
    """`Together` folds the trial into the key of the victim's only restart."""
    key = jax.random.fold_in(jax.random.fold_in(KEY, victim), 0)
    draw = lambda trial: jax.random.normal(jax.random.fold_in(key, trial), (SIZE,))  # noqa: E731
    return np.stack([np.asarray(draw(trial)) for trial in range(trials)])


def test_trials_that_are_not_coupled_are_independent_ones():
    result = solve(Together(Bowl(), 3), slots=4)
    goals = targets(6)
    for victim in range(6):
        starts = together_starts(victim, 3)
        far = np.sum(np.square(starts - goals[victim]), axis=1)
        shrunk = 0.5**12 * (starts[far.argmin()] - goals[victim])
        np.testing.assert_allclose(
            result.inputs[victim, 0], goals[victim] + shrunk, atol=1e-6
        )
    np.testing.assert_array_equal(result.evaluations, 3 * 12)
    np.testing.assert_array_equal(result.iterations, 12)


def test_trials_of_one_victim_may_influence_each_other():
    """Only one of the two descends; the other gets there by following it."""
    problem = Together(Bowl(budget=3), 2, Follow())
    key, shared, own = KEY, jnp.zeros(SIZE), jnp.ones(SIZE)
    kept, scratch = problem.start(key, shared, own)
    assert (kept.position[0] != kept.position[1]).all()
    kept, _ = jax.jit(problem.step)(shared, own, kept, scratch)
    np.testing.assert_array_equal(kept.position[0], kept.position[1])
    alone = Together(Bowl(budget=3), 2)
    kept, _ = jax.jit(alone.step)(shared, own, *alone.start(key, shared, own))
    assert (kept.position[0] != kept.position[1]).all()
    # ... and through the loop, with the couplings of one victim kept apart.
    coupled, free = (solve(Together(Bowl(), 3, how), 4) for how in (Follow(), None))
    np.testing.assert_allclose(coupled.objective, free.objective, rtol=1e-3, atol=1e-12)


def test_a_trial_of_several_that_has_ended_is_frozen():
    @dataclasses.dataclass(frozen=True)
    class Uneven(Bowl):
        def start(self, key, shared, own):
            kept, scratch = super().start(key, shared, own)
            late = jnp.where(kept.position[0] > own[0], 5, 0)  # some end sooner
            return dataclasses.replace(kept, iteration=late.astype(jnp.int32)), scratch

    problem = Together(Uneven(budget=8), 4)
    kept, scratch = problem.start(KEY, jnp.zeros(SIZE), jnp.zeros(SIZE))
    begun = np.asarray(kept.iteration)
    assert len(set(begun.tolist())) == 2
    step = jax.jit(problem.step)
    for _ in range(3):
        kept, scratch = step(jnp.zeros(SIZE), jnp.zeros(SIZE), kept, scratch)
    ended = np.asarray(kept.position)[begun == 5]
    assert problem.read(kept).status == Status.RUNNING  # while any of them runs
    for _ in range(5):
        kept, scratch = step(jnp.zeros(SIZE), jnp.zeros(SIZE), kept, scratch)
    np.testing.assert_array_equal(np.asarray(kept.position)[begun == 5], ended)
    assert problem.read(kept).status == Status.BUDGET


def interrupted(at):
    """Returns a watcher that presses Ctrl-C in its `at`-th call."""
    calls = []

    def watch(snapshot):
        calls.append(snapshot)
        if len(calls) == at:
            raise KeyboardInterrupt

    return watch


def test_ctrl_c_tells_the_unfinished_from_the_never_begun():
    slow = Bowl(rate=0.01, budget=search._EVALUATIONS_PER_CALL + 5)
    result = solve(slow, count=6, slots=2, watcher=interrupted(at=1))
    assert (result.status[:2] == Status.INTERRUPTED).all()
    assert (result.status[2:] == Status.MISSING).all()
    assert np.isfinite(result.objective[:2]).all()
    assert np.isnan(result.inputs[2:]).all() and (result.labels[2:] == -1).all()


def test_a_victim_whose_restarts_were_cut_short_is_interrupted():
    """The first restart is done and the others never began: more was asked for."""
    result = solve(Bowl(), count=2, restarts=3, slots=1, watcher=interrupted(at=1))
    assert result.status.tolist() == [Status.INTERRUPTED, Status.MISSING]
    assert np.isfinite(result.objective[0])


def test_ctrl_c_when_all_is_done_is_not_lost():
    with pytest.raises(KeyboardInterrupt) as caught:
        solve(Bowl(), count=2, slots=2, watcher=interrupted(at=1))
    assert (caught.value.args[0].status == Status.BUDGET).all()


def test_ctrl_c_before_the_first_evaluation_leaves_nobody_begun(monkeypatch):
    def never(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(lanes, "advance", never)
    result = solve(Bowl(), count=4, slots=2)
    assert (result.status == Status.MISSING).all()


def imported(root, name):
    nodes = ast.walk(ast.parse((root / "attacks" / f"{name}.py").read_text()))
    names = set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names


def test_the_loop_and_the_matching_do_not_know_each_other(root):
    room = "gradaudit.attacks."
    loop = ("lanes", "search")
    for name in loop:
        mine = {n for n in imported(root, name) if n.startswith(room)}
        assert {n.removeprefix(room).split(".")[0] for n in mine} <= set(loop), name
    others = ("matching", "objective", "optimizers", "lbfgs", "labels", "distances")
    for name in (*others, "priors", "starts"):
        taken = {n for n in imported(root, name) if n.startswith(room)}
        # The words in which a problem says how it is; nothing that runs one.
        taken -= {f"{room}lanes.{word}" for word in ("Problem", "Reading")}
        assert not {n for n in taken if n.startswith((room + "search", room + "lanes"))}
