import math

import numpy as np
import pytest
from scipy.stats import binomtest

from gradaudit.audit.outcome import Picture
from gradaudit.report import figures, metrics

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
    assert metrics.psnr(0.1) == pytest.approx(20.0)
    assert metrics.psnr(0.0) == math.inf


@pytest.mark.parametrize("shape", [(2, 25, 25, 1), (1, 32, 32, 3), (1, 5, 5, 1)])
def test_ssim_is_one_for_equal_images(shape):
    x = RNG.random(shape).astype(np.float32)
    assert metrics.ssim(x, x) == pytest.approx(1.0)
    assert metrics.ssim(x, 1.0 - x) < 0.5


def test_ssim_of_tables_is_not_defined():
    assert metrics.ssim(np.zeros((1, 30)), np.zeros((1, 30))) is None


@pytest.mark.parametrize(("hits", "trials"), [(0, 10), (3, 10), (10, 10), (97, 100)])
def test_the_interval_is_wilsons(hits, trials):
    ours = metrics.rate(hits, trials)
    reference = binomtest(hits, trials).proportion_ci(0.95, "wilson")
    assert ours.value == hits / trials
    assert ours.low == pytest.approx(reference.low, abs=1e-12)
    assert ours.high == pytest.approx(reference.high, abs=1e-12)


def test_recovered_labels_count_as_a_multiset():
    recovered = metrics.labels_recovered
    assert recovered(np.asarray([1, 1, 2]), np.asarray([2, 1, 1])) == 1.0
    assert recovered(np.asarray([1, 1, 2]), np.asarray([1, 2, 2])) == pytest.approx(
        2 / 3
    )
    assert recovered(np.asarray([3]), np.asarray([-1])) == 0.0


def test_guessing_uses_no_gradient():
    truth = np.stack([np.full((1, 2, 2, 1), 0.5), np.full((1, 2, 2, 1), 0.9)])
    public = np.full((4, 2, 2, 1), 0.9)
    guesses = metrics.guessing_rmse(
        truth, np.asarray([[0], [1]]), public, np.asarray([1, 1, 1, 1])
    )
    assert guesses["grey"][0] == 0.0
    assert guesses["mean"][1] == pytest.approx(0.0)
    assert guesses["class mean"][1] == pytest.approx(0.0)


def test_a_picture_shows_a_batch_in_the_order_of_the_truth():
    truth = np.random.default_rng(0).random((3, 4, 4, 1), np.float32)
    found = truth[[2, 0, 1]]
    picture = Picture(0, truth, {1: found}, found, 0.0)
    for example in range(3):
        private, *iterates = figures._film(picture, example, [1, 2])
        for image in iterates:
            np.testing.assert_array_equal(image, private)
