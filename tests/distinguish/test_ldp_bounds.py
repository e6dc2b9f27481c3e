"""Estimates and bounds: the published formula, validity, ceilings, verdicts."""

import math

import jax
import numpy as np
import pytest

from gradaudit.distinguish.bounds import (
    Verdict,
    ceiling,
    empirical_epsilon,
    judge,
    library_estimates,
    lower_bound,
    trials_needed,
)
from gradaudit.distinguish.game import Errors, Trials
from gradaudit.distinguish.whitebox import by_cosine, pair_law, play_white
from gradaudit.errors import InputError


def dummy_law(epsilon: float):
    one = np.full(100, 0.1)
    return pair_law(np.stack([one, -one]), epsilon, 1.0)


def test_equation_3():
    # The example of section 3.1, which the paper rounds to 2.0.
    assert empirical_epsilon(0.1, 0.2) == pytest.approx(math.log(8))
    assert empirical_epsilon(0.5, 0.5) == 0.0
    assert empirical_epsilon(0.0, 0.1) == math.inf
    assert empirical_epsilon(0.0, 1.0) == 0.0
    assert empirical_epsilon(0.6, 0.6) < 0


@pytest.mark.parametrize(
    "epsilon", [*(pytest.param(e, marks=pytest.mark.slow) for e in (0.5, 3.0)), 1.0]
)
def test_the_bound_is_a_bound(epsilon):
    """200 audits of a known ε: at most 7 % of the 95 % bounds exceed it."""
    law = dummy_law(epsilon)
    bounds, points = [], []
    for seed in range(200):
        errors = play_white(jax.random.key(seed), law, by_cosine, 2_000).errors()
        bounds.append(lower_bound(errors))
        points.append(empirical_epsilon(errors.fp, errors.fn))
    assert np.mean(np.array(bounds) > epsilon) <= 0.07
    assert np.mean(bounds) > 0.6 * epsilon  # and not an empty one
    # The point estimate fails the same test: the test can fail.
    assert np.mean(np.array(points) > epsilon) > 0.3


@pytest.mark.parametrize("delta", [0.0, 1e-5])
@pytest.mark.parametrize("trials", [100, 10_000, 1_000_000])
def test_ceiling_is_reached_without_errors_and_never_passed(trials, delta):
    half = trials // 2
    top = ceiling(trials, delta=delta)
    perfect = lower_bound(Errors(half, 0, half, 0), delta=delta)
    assert perfect == pytest.approx(top, rel=1e-6)
    assert lower_bound(Errors(half, 1, half, 0), delta=delta) <= top
    assert top == pytest.approx(math.log(half / 3.7), abs=0.1)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0, 12.0])
def test_trials_needed_is_the_smallest_number(epsilon):
    needed = trials_needed(epsilon)
    assert ceiling(needed) > epsilon >= ceiling(needed - 2)


def test_verdicts():
    assert judge(1.0, 1.1, 10_000) is Verdict.REFUTED
    assert judge(1.0, 0.9, 10_000) is Verdict.CONSISTENT
    assert judge(9.0, 5.0, 1_000) is Verdict.CANNOT_TELL


def test_library_estimates_agree_with_ours_on_the_worst_case():
    trials = play_white(jax.random.key(0), dummy_law(2.0), by_cosine, 100_000)
    estimates = library_estimates(trials)
    assert set(estimates) == {"split", "one_run", "raw"}
    assert estimates["one_run"] == pytest.approx(2.0, abs=0.1)
    assert set(library_estimates(trials, delta=1e-5)) == {
        "split",
        "one_run",
        "raw",
        "gdp",
        "one_run_fdp",
    }


def test_trials_refuse_what_is_no_measurement():
    with pytest.raises(InputError, match="1 of 2 trials gave a score that is NaN"):
        Trials(np.array([True, False]), np.array([1.0, np.nan], np.float32))
    with pytest.raises(InputError, match="never randomized one of the two"):
        Trials(np.array([True, True]), np.array([1.0, 2.0], np.float32))
