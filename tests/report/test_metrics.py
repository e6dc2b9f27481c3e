import functools
import itertools
import math

import numpy as np
import pytest
from scipy.stats import binomtest

from gradaudit.data import load_dataset
from gradaudit.report import metrics

RNG = np.random.default_rng(0)


def test_rmse_of_equal_data_is_zero_and_of_black_and_white_one():
    x = RNG.random(16)
    assert metrics.rmse(x, x) == 0.0
    assert metrics.rmse(np.zeros(3), np.ones(3)) == 1.0


def _matched_rmse(truth, guess):
    """The error of one batch under the best assignment."""
    (ordered,) = metrics.matched(truth[None], guess[None])
    return metrics.rmse(truth.reshape(-1), ordered.reshape(-1))


def test_rmse_of_a_batch_does_not_depend_on_its_order():
    x = RNG.random((5, 4, 4, 1))
    guess = x + 0.01 * RNG.standard_normal(x.shape)
    expected = _matched_rmse(x, guess)
    assert _matched_rmse(x, guess[::-1]) == pytest.approx(expected)
    assert expected < 0.02


def test_the_assignment_is_the_best_one():
    truth = np.asarray([[0.0], [1.0]])
    guess = np.asarray([[0.9], [0.4]])
    # 0.4 -> 0 and 0.9 -> 1 beats the given order
    assert metrics.match(truth, guess).tolist() == [1, 0]


def test_duplicates_in_a_batch_are_matched():
    truth = np.asarray([[0.5], [0.5], [1.0]])
    assert _matched_rmse(truth, np.asarray([[1.0], [0.5], [0.5]])) == 0.0


def test_not_finite_is_infinitely_wrong():
    assert metrics.rmse(np.zeros(2), np.asarray([0.0, np.nan])) == math.inf
    pair = np.asarray([[[0.0], [np.nan]]])
    assert _matched_rmse(np.zeros((2, 1)), pair[0]) == math.inf


def test_psnr_of_the_success_threshold_is_20_db():
    found = metrics.psnr(np.asarray([0.1, 0.0, np.inf]))
    assert found[0] == pytest.approx(20.0)
    assert found[1] == math.inf and found[2] == -math.inf


@pytest.mark.parametrize("shape", [(2, 25, 25, 1), (1, 32, 32, 3), (1, 5, 5, 1)])
def test_ssim_is_one_for_equal_images(shape):
    x = RNG.random((2, *shape)).astype(np.float32)
    assert metrics.ssim(x, x) == pytest.approx([1.0, 1.0])
    other = x.copy()
    other[1] = 1.0 - x[1]
    same, negative = metrics.ssim(x, other)
    assert same == pytest.approx(1.0) and negative < 0.5
    other[0] = np.nan
    assert metrics.ssim(x, other)[0] is None


def test_ssim_of_tables_is_not_defined():
    table = np.zeros((2, 1, 30))
    assert metrics.ssim(table, table) == [None, None]


@pytest.mark.parametrize(("hits", "trials"), [(0, 10), (3, 10), (10, 10), (97, 100)])
def test_the_interval_is_wilsons(hits, trials):
    ours = metrics.rate(hits, trials)
    reference = binomtest(hits, trials).proportion_ci(0.95, "wilson")
    assert ours.value == hits / trials
    assert ours.low == pytest.approx(reference.low, abs=1e-12)
    assert ours.high == pytest.approx(reference.high, abs=1e-12)


MEANS = (0.1, 0.5, 0.9, 0.98)
CORRELATIONS = (0.0, 0.3, 1.0)
DRAWS = ((4, 4), (4, 16), (8, 8), (12, 4))  # draws of so many victims


def drawn(rng, mean, correlation, draws, size):
    """Successes per draw, whose rates are beta with this mean and correlation."""
    if correlation == 1.0:
        return (size * (rng.random(draws) < mean)).tolist()
    if correlation == 0.0:
        return rng.binomial(size, mean, draws).tolist()
    strength = 1 / correlation - 1
    rates = rng.beta(mean * strength, (1 - mean) * strength, draws)
    return rng.binomial(size, rates).tolist()


def coverages(interval, repeats, shapes=DRAWS):
    """How often an interval holds the mean over all networks, in every cell."""
    rng = np.random.default_rng(11)
    cells = {}
    for mean, correlation, (draws, size) in itertools.product(
        MEANS, CORRELATIONS, shapes
    ):
        held = 0
        for _ in range(repeats):
            successes = sorted(drawn(rng, mean, correlation, draws, size))
            found = interval(tuple(successes), size)
            held += found.low <= mean <= found.high
        cells[mean, correlation, draws, size] = held / repeats
    return cells


@functools.cache
def over_draws(successes, size):
    return metrics.rate_over_draws(successes, [size] * len(successes))


@functools.cache
def pooled(successes, size):
    return metrics.rate(sum(successes), size * len(successes))


@pytest.mark.parametrize(
    ("repeats", "shapes"),
    [
        (150, DRAWS),
        pytest.param(1000, (*DRAWS, (12, 16), (6, 10)), marks=pytest.mark.slow),
    ],
    ids=["quick", "slow"],
)
def test_the_interval_over_draws_covers(repeats, shapes):
    """95 % on average; the allowance in a cell is three standard errors of 0.95."""
    cells = coverages(over_draws, repeats, shapes)
    assert np.mean(list(cells.values())) >= 0.94
    least = min(0.90, 0.95 - 3 * math.sqrt(0.95 * 0.05 / repeats))
    assert min(cells.values()) >= least, cells


def test_an_interval_that_pools_the_victims_does_not():
    """The same test rejects Wilson's where victims share their network's fate."""
    cells = coverages(pooled, 150)
    shared = [held for (_, correlation, _, _), held in cells.items() if correlation]
    assert np.mean(list(cells.values())) < 0.85
    assert min(shared) < 0.6
    alone = [held for (_, correlation, _, _), held in cells.items() if not correlation]
    assert np.mean(alone) > 0.9  # it is right where there is nothing to share


@pytest.mark.parametrize(("hits", "trials"), [(0, 10), (3, 10), (10, 10)])
def test_one_draw_has_the_interval_of_independent_victims(hits, trials):
    assert metrics.rate_over_draws([hits], [trials]) == metrics.rate(hits, trials)


def test_the_interval_over_draws_holds_the_rate_and_its_ends():
    for successes in itertools.product((0, 2, 5), repeat=3):
        found = metrics.rate_over_draws(successes, [5, 5, 5])
        assert 0.0 <= found.low <= found.value <= found.high <= 1.0
        assert found.value == sum(successes) / 15
    assert metrics.rate_over_draws([0, 0], [4, 4]).low == 0.0
    assert metrics.rate_over_draws([4, 4], [4, 4]).high == 1.0
    uneven = metrics.rate_over_draws([0, 5, 3], [1, 5, 4])
    assert uneven.value == 8 / 10
    order = metrics.rate_over_draws([5, 3, 0], [5, 4, 1])
    assert (order.low, order.high) == (uneven.low, uneven.high)


def test_guesses_leave_the_victim_out():
    """However many are attacked, its own row helps nobody to guess it."""
    data = load_dataset("cancer")
    rates = []
    for count in (400, 560, 569):
        order = np.random.default_rng(0).permutation(len(data))[:count]
        errors = metrics.guessing_rmse(
            data.inputs[order][:, None], data.labels[order][:, None],
            data.inputs, data.labels,
        )  # fmt: skip
        rates.append({name: float(np.mean(e <= 0.1)) for name, e in errors.items()})
    best = [max(rate.values()) for rate in rates]
    assert len(data) == 569 and min(best) > 0.4
    assert max(best) - min(best) < 0.05
    # By hand, for one of them: the mean of all the others of its class.
    others = np.delete(np.arange(569), order[5])
    same = others[data.labels[others] == data.labels[order[5]]]
    by_hand = np.sqrt(np.mean((data.inputs[same].mean(0) - data.inputs[order[5]]) ** 2))
    assert errors["class mean"][5] == pytest.approx(by_hand, rel=1e-5)


def test_a_batch_is_guessed_without_any_of_its_examples():
    rng = np.random.default_rng(2)
    inputs, labels = rng.random((9, 4)), np.asarray([0, 0, 0, 1, 1, 1, 1, 2, 2])
    rows = np.asarray([[0, 1, 3], [7, 8, 4]])
    errors = metrics.guessing_rmse(inputs[rows], labels[rows], inputs, labels)
    for victim, mine in enumerate(rows):
        rest = np.setdiff1d(np.arange(9), mine)
        by_class = [
            inputs[rest[labels[rest] == label]].mean(0)
            if (labels[rest] == label).any()
            else inputs[rest].mean(0)
            for label in labels[mine]
        ]
        guess = np.stack(by_class)
        guess = guess[metrics.match(inputs[mine], guess)]
        expected = np.sqrt(np.mean(np.square(guess - inputs[mine])))
        assert errors["class mean"][victim] == pytest.approx(expected)
        whole = np.sqrt(np.mean(np.square(inputs[rest].mean(0) - inputs[mine])))
        assert errors["mean"][victim] == pytest.approx(whole)


def test_recovered_labels_count_as_a_multiset():
    truth = np.asarray([[1, 1, 2], [1, 1, 2], [3, 3, 3]])
    guess = np.asarray([[2, 1, 1], [1, 2, 2], [-1, -1, 3]])
    found = metrics.labels_recovered(truth, guess)
    np.testing.assert_allclose(found, [1.0, 2 / 3, 1 / 3])
    silent = metrics.labels_recovered(np.asarray([[3]]), np.asarray([[-1]]))
    assert silent.tolist() == [0.0]


def test_guessing_uses_no_gradient():
    truth = np.stack([np.full((1, 2, 2, 1), 0.5), np.full((1, 2, 2, 1), 0.9)])
    public = np.full((4, 2, 2, 1), 0.9)
    guesses = metrics.guessing_rmse(
        truth, np.asarray([[0], [1]]), public, np.asarray([1, 1, 1, 1])
    )
    assert guesses["grey"][0] == 0.0
    assert guesses["mean"][1] == pytest.approx(0.0)
    assert guesses["class mean"][1] == pytest.approx(0.0)
