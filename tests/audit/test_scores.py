"""The evaluator: only scalars come to the host, and scoring is one computation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradaudit.attacks import Adam, Matching, Stop, search
from gradaudit.attacks.search import Snapshot
from gradaudit.audit import scores
from gradaudit.audit.scores import Evaluator
from gradaudit.report import metrics
from gradaudit.types import Reconstruction, Status, Victim
from tests.attacks.attack_cases import digit_victims

RNG = np.random.default_rng(0)
SHAPE = (6, 6, 1)
SLOTS, STEPS = 5, 8


class Fetched:
    """numpy, noting how much of every jax array comes to the host."""

    def __init__(self):
        self.sizes = []

    def __getattr__(self, name):
        found = getattr(np, name)
        if not callable(found) or isinstance(found, type):
            return found

        def noting(*arguments, **options):
            given = jax.tree.leaves((arguments, options))
            self.sizes += [x.size for x in given if isinstance(x, jax.Array)]
            return found(*arguments, **options)

        return noting


@pytest.fixture
def fetched(monkeypatch):
    noted = Fetched()
    for module in (scores, search):
        monkeypatch.setattr(module, "np", noted)
    return noted


def snapshot(batch=1, first_iteration=1):
    pictures = RNG.random((STEPS, SLOTS, batch, *SHAPE)).astype(np.float32)
    count = np.arange(first_iteration, first_iteration + STEPS, dtype=np.int32)
    return Snapshot(
        trials=np.arange(SLOTS),
        iteration=np.repeat(count[:, None], SLOTS, axis=1),
        running=np.ones((STEPS, SLOTS), bool),
        objective=RNG.random((STEPS, SLOTS)).astype(np.float32),
        best=jnp.asarray(pictures),
        current=jnp.asarray(pictures[:, ::-1]),
        finished=0,
        total=SLOTS,
    )


def truth(batch=1, count=SLOTS):
    inputs = RNG.random((count, batch, *SHAPE)).astype(np.float32)
    return Victim(inputs, RNG.integers(0, 10, (count, batch)))


def evaluator(private, pictured):
    count = len(private.inputs)
    return Evaluator(np.arange(count), 0, private, 1, 0.1, pictured)


PIXELS = int(np.prod(SHAPE))


@pytest.mark.parametrize("batch", [1, 2])
def test_nothing_but_scalars_is_fetched_when_nobody_looks(fetched, batch):
    watcher = evaluator(truth(batch), pictured=0)
    watcher.watch(snapshot(batch))
    assert fetched.sizes  # the distances, at least
    assert max(fetched.sizes) <= STEPS * SLOTS * batch**2 < STEPS * SLOTS * PIXELS


def test_pictures_are_fetched_for_the_shown_victims_only(fetched):
    watcher = evaluator(truth(), pictured=2)
    seen = snapshot()
    watcher.watch(seen)
    pictures = [size for size in fetched.sizes if size == PIXELS]
    shown = [
        iteration for iteration in range(1, STEPS + 1) if iteration in (1, 2, 4, 8)
    ]
    # Each picture by itself, counted at its cut on the device and at its fetch.
    assert len(pictures) == 2 * len(shown)
    assert max(fetched.sizes) <= STEPS * SLOTS
    for victim in range(SLOTS):
        frames = watcher.trace_of(victim, 0).frames
        assert sorted(frames) == (shown if victim < 2 else [])
        for iteration, frame in frames.items():
            np.testing.assert_array_equal(frame, seen.best[iteration - 1, victim])


def test_calls_of_the_loop_in_which_nobody_ends_fetch_scalars_only(fetched):
    model, victims, _ = digit_victims(4, "mlp")
    # Forty iterations a call, no end before the budget's: three calls without one.
    stop = Stop(iterations=130, patience=1000)
    patient = Matching(optimizer=Adam(0.01), stop=stop)
    calls = []

    def watch(_):
        calls.append(max(fetched.sizes))
        fetched.sizes.clear()

    patient.reconstruct_many(jax.random.key(0), model, victims, 4, watch)
    assert len(calls) == 4
    scalars = 4 * 40  # slots x iterations of a call
    assert all(size <= scalars for size in calls[:-1])
    assert calls[-1] == 4 * 64  # what is handed in, once, at the end


@pytest.mark.parametrize("batch", [1, 3])
def test_what_is_noted_of_every_iterate_is_its_error(batch):
    private, seen = truth(batch), snapshot(batch)
    watcher = evaluator(private, pictured=0)
    watcher.watch(seen)
    for victim in range(SLOTS):
        selected = [
            _error(private.inputs[victim], np.asarray(seen.best)[step, victim])
            for step in range(STEPS)
        ]
        others = [
            _error(private.inputs[victim], np.asarray(seen.current)[step, victim])
            for step in range(STEPS)
        ]
        trace = watcher.trace_of(victim, 0)
        np.testing.assert_allclose(list(trace.rmse), selected, rtol=1e-5)
        assert trace.oracle == pytest.approx(min(selected + others), rel=1e-5)


def _error(private, guess):
    order = metrics.match(private, np.clip(guess, 0, 1))
    return np.sqrt(np.mean(np.square(private - np.clip(guess, 0, 1)[order])))


@pytest.mark.parametrize("batch", [1, 3])
def test_scoring_all_at_once_equals_scoring_each_alone(batch):
    private = truth(batch, count=7)
    order = RNG.permutation(batch)
    near = private.inputs[:, order] + 0.08 * RNG.standard_normal(private.inputs.shape)
    near[3] = 1.7  # outside the range
    near[4] = np.nan
    status = np.full(7, Status.BUDGET)
    status[5] = Status.MISSING
    handed_in = Reconstruction(
        inputs=near.astype(np.float32),
        labels=private.labels[:, order],
        objective=np.where(np.arange(7) == 2, np.inf, 0.5),
        iterations=np.full(7, 3),
        evaluations=np.full(7, 60),
        status=status,
        trial=np.zeros(7, int),
    )
    found = evaluator(private, 0).score(handed_in, np.arange(7))
    assert [score.victim for score in found] == [0, 1, 2, 3, 4, 6]
    for score in found:
        mine, guess = private.inputs[score.victim], handed_in.inputs[score.victim]
        raw = guess[metrics.match(mine, guess)]
        clipped = np.clip(raw, 0, 1)
        if score.victim == 4:
            assert score.rmse == score.rmse_raw == np.inf and not score.success
            continue
        expected = np.sqrt(np.mean(np.square(mine - clipped)))
        assert score.rmse == pytest.approx(expected, rel=1e-5)
        unclipped = np.sqrt(np.mean(np.square(mine - raw)))
        assert score.rmse_raw == pytest.approx(unclipped, rel=1e-5)
        each = np.sqrt(np.mean(np.square(mine - clipped), axis=(1, 2, 3)))
        found_nothing = score.victim == 2  # its objective was never finite
        assert score.success == (expected <= 0.1 and not found_nothing)
        rebuilt = 0 if found_nothing else int((each <= 0.1).sum())
        assert score.examples_rebuilt == rebuilt
        assert score.label_accuracy == 1.0


def test_a_draw_in_which_nobody_was_begun_has_no_scores():
    private = truth()
    blank = Reconstruction(
        inputs=np.full((SLOTS, 1, *SHAPE), np.nan, np.float32),
        labels=np.full((SLOTS, 1), -1),
        objective=np.full(SLOTS, np.nan),
        iterations=np.zeros(SLOTS, int),
        evaluations=np.zeros(SLOTS, int),
        status=np.full(SLOTS, Status.MISSING),
    )
    assert evaluator(private, 0).score(blank, np.arange(SLOTS)) == []


def test_batches_have_each_examples_error_and_gradient_norm():
    import gradaudit as ga

    asked = {"dataset": "digits", "model": "dpfl-2conv", "victims": 2, "draws": 1}
    batch = ga.attack(**asked, type=1, batch_size=3, iterations=2)
    for score in batch.scores:
        assert len(score.gradient_norms) == len(score.rmse_by_example) == 3
        assert min(score.gradient_norms) > 0
        mean = np.sqrt(np.mean(np.square(score.rmse_by_example)))
        np.testing.assert_allclose(mean, score.rmse, rtol=1e-5)
        rebuilt = sum(error <= 0.1 for error in score.rmse_by_example)
        assert rebuilt == score.examples_rebuilt
    assert "gradient_norms" in batch.rows()["trials.csv"][0]
    alone = ga.attack(**asked, iterations=1).scores[0]
    assert alone.gradient_norms == () == alone.rmse_by_example
