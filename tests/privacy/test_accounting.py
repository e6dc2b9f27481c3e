"""Properties of the accounting methods, each over all of them."""

import itertools
import math
import tracemalloc

import dp_accounting
import numpy as np
import pytest
from dp_accounting import dp_event, pld, rdp
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats

import gradaudit.privacy as accounting
from gradaudit.errors import InputError
from gradaudit.privacy import METHODS, account, gaussian, pure, renyi, spend
from gradaudit.privacy.calibrate import (
    calibrate,
    exhausted_at,
    first_reaching,
    read_log,
)
from gradaudit.privacy.loss import LossDistribution
from gradaudit.privacy.methods import RENYI

DELTA = 1e-5
EVERY_METHOD = pytest.mark.parametrize("method", METHODS)
# PLD is read off a grid that depends on the question: equal up to its resolution.
GRID = 2e-3

sigmas = st.floats(0.7, 30)
rates = st.floats(0.002, 1.0)
counts = st.integers(1, 3000)
few = settings(max_examples=12, deadline=None, derandomize=True)


def eps(method, events, delta=DELTA):
    return spend(method, events, delta).epsilon


@EVERY_METHOD
@few
@given(sigma=sigmas, q=rates, steps=counts, more=st.floats(1.05, 3))
def test_more_noise_and_more_delta_cost_less(method, sigma, q, steps, more):
    here = eps(method, gaussian(sigma, q, steps))
    slack = 1 + GRID
    assert eps(method, gaussian(sigma * more, q, steps)) <= here * slack
    assert eps(method, gaussian(sigma, q, steps), DELTA * more) <= here * slack


@EVERY_METHOD
@few
@given(sigma=sigmas, q=rates, steps=counts, more=st.floats(1.05, 3))
@example(sigma=0.703125, q=0.84375, steps=148, more=2.0)
def test_more_sampling_and_more_steps_cost_more(method, sigma, q, steps, more):
    here = eps(method, gaussian(sigma, q, steps))
    slack = 1 - GRID
    assert eps(method, gaussian(sigma, min(1.0, q * more), steps)) >= here * slack
    assert eps(method, gaussian(sigma, q, math.ceil(steps * more))) >= here * slack


@few
@given(sigma=sigmas, q=rates, steps=counts)
def test_loss_distribution_is_below_renyi_is_below_moments(sigma, q, steps):
    answers = account(gaussian(sigma, q, steps), DELTA)
    assert answers["pld"] <= answers["rdp"] * (1 + 1e-9)
    assert answers["rdp"] <= answers["moments"]


@EVERY_METHOD
def test_k_fold_composition_of_one_step_is_k_steps(method):
    one = gaussian(3.0, 0.02, 1)
    several = sum(itertools.repeat(one, 39), one)
    assert eps(method, several) == pytest.approx(
        eps(method, gaussian(3.0, 0.02, 40)), rel=1e-9
    )


@EVERY_METHOD
def test_splitting_or_reordering_a_schedule_changes_nothing(method):
    noise = np.linspace(2, 9, 60)
    whole = gaussian(noise, 0.02)
    split = gaussian(noise[37:], 0.02) + gaussian(noise[:37], 0.02)
    assert eps(method, split) == pytest.approx(eps(method, whole), rel=1e-9)
    assert eps(method, whole.between(0, 37) + whole.between(37, 60)) == pytest.approx(
        eps(method, whole), rel=1e-9
    )


@EVERY_METHOD
def test_calibrate_then_account_returns_the_target(method):
    sigma = calibrate(1.5, 0.01, 2000, DELTA, method)
    assert eps(method, gaussian(sigma, 0.01, 2000)) == pytest.approx(1.5, rel=1e-3)


@EVERY_METHOD
def test_curve_ends_at_the_total_and_stop_is_where_it_crosses(method):
    events = gaussian(np.linspace(8, 4, 120), 0.05)
    curve = METHODS[method].curve(events, DELTA)
    assert len(curve) == 120
    assert curve[-1] == pytest.approx(eps(method, events), rel=GRID)
    assert np.all(np.diff(curve) >= 0)
    target = curve[-1] * 0.8
    stop = exhausted_at(target, events, DELTA, method)
    assert eps(method, events.first(stop.step)) > target * (1 - GRID)
    assert eps(method, events.first(stop.step - 1)) <= target * (1 + GRID)
    assert exhausted_at(curve[-1] * 1.1, events, DELTA, method).step is None


def test_divergences_are_the_library_s():
    orders = list(renyi.DENSE_ORDERS)
    for sigma, q in ((6, 0.01), (1.1, 0.3), (0.5, 0.02), (40, 1.0)):
        library = rdp.RdpAccountant(orders)
        library.compose(
            dp_event.PoissonSampledDpEvent(q, dp_event.GaussianDpEvent(sigma))
        )
        ours = renyi.dense_curves(gaussian(sigma, q))[0]
        # Where the library's series does not converge, no amplification is counted.
        bounded = np.minimum(library.rdp, np.asarray(orders) / (2 * sigma**2))
        np.testing.assert_allclose(ours, bounded, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("q", [0.1, 0.3, 0.84375, 0.99])
def test_sampling_never_adds_to_a_divergence(q):
    """The library's fractional orders are infinite or wrong for little noise."""
    for sigma in (0.3, 0.703125, 1.1, 2.0):
        sampled, full = (renyi.dense_curves(gaussian(sigma, r))[0] for r in (q, 1.0))
        assert np.all(sampled <= full * (1 + 1e-9))


@pytest.mark.parametrize("weakest", [0.8, pytest.param(3.0, marks=pytest.mark.slow)])
def test_many_noise_scales_are_an_upper_bound_by_chords_and_tight(weakest):
    noise = np.linspace(weakest, 12, 105)
    each = [renyi.dense_curves(gaussian(sigma, 0.02))[0] for sigma in noise]
    exact = RENYI.convert(np.sum(each, axis=0), DELTA)
    ours = eps("rdp", gaussian(noise, 0.02))
    assert exact * (1 - 1e-9) <= ours <= exact * 1.002


def test_many_noise_scales_are_an_upper_bound_by_rounding_and_tight():
    events = gaussian(np.linspace(4, 12, 150), 0.05)
    exact = LossDistribution(scales=1000).epsilon(events, DELTA)
    errors = [
        LossDistribution(scales=scales).epsilon(events, DELTA) / exact - 1
        for scales in (32, 64)
    ]
    assert 0 < errors[1] < errors[0] < 0.03
    # The error falls as 1 / scales, so the default of 256 is within 0.5 %.
    assert errors[1] * 64 / LossDistribution().scales < 0.005


@pytest.mark.parametrize(
    ("sigma", "q", "steps"),
    [
        (6, 0.01, 10_000),
        (1, 1, 1),
        pytest.param(2, 0.1, 50, marks=pytest.mark.slow),
        (0.6, 0.01, 9),
    ],
)
def test_loss_distribution_agrees_with_the_library_on_a_fine_grid(sigma, q, steps):
    library = pld.PLDAccountant(
        value_discretization_interval=1e-4 if sigma < 2 else 2e-5
    )
    event = dp_event.PoissonSampledDpEvent(q, dp_event.GaussianDpEvent(sigma))
    library.compose(event, steps)
    exact = library.get_epsilon(DELTA)
    assert eps("pld", gaussian(sigma, q, steps)) == pytest.approx(exact, rel=0.002)


def renyi_bound_of_a_fixed_size(sigma, q, steps):
    """As the library offers it: Renyi, replacing one, without replacement."""
    relation = dp_accounting.NeighboringRelation.REPLACE_ONE
    library = rdp.RdpAccountant(list(range(2, 65)), neighboring_relation=relation)
    event = dp_event.SampledWithoutReplacementDpEvent(
        1000, round(1000 * q), dp_event.GaussianDpEvent(sigma)
    )
    return library.compose(event, steps).get_epsilon(DELTA)


@pytest.mark.parametrize(
    ("sigma", "q", "steps"), [(3, 0.01, 300), (3, 0.1, 3), (3, 0.1, 100), (1, 0.1, 20)]
)
def test_a_fixed_size_costs_more_than_coins_and_less_than_the_library_s_bound(
    sigma, q, steps
):
    ours = eps("pld", gaussian(sigma, q, steps, fixed=True))
    # Coins are worst in one direction only; here each step may have its own.
    assert eps("pld", gaussian(sigma, q, steps)) * 1.001 < ours
    assert ours <= renyi_bound_of_a_fixed_size(sigma, q, steps)
    assert ours <= eps("pld", gaussian(sigma, 1.0, steps))


@pytest.mark.parametrize("q", [0.01, 0.2])
def test_a_fixed_size_is_a_bound_for_real_data(q):
    """One release of a sum of numbers in [-1, 1], one replaced: exact by integration.

    The others are all -1, so that a batch without the unit differs the most. Counted
    with the noise of adding or removing (sigma, not sigma / 2) it would be no bound.
    """
    sigma, x = 3.0, np.linspace(-60, 60, 200_001)

    def density(value):
        without, within = (stats.norm.pdf(x, mean, sigma) for mean in (-1.0, value))
        return (1 - q) * without + q * within

    densities = density(1.0), density(-1.0)
    broken = False
    for epsilon in (0.01, 0.05, 0.2):
        for first, second in (densities, densities[::-1]):
            delta = np.trapezoid(np.maximum(first - math.exp(epsilon) * second, 0), x)
            if delta > 1e-12:
                held = eps("pld", gaussian(sigma / 2, q, fixed=True), delta)
                assert held >= epsilon * (1 - 1e-3)
                broken |= eps("pld", gaussian(sigma, q, fixed=True), delta) < epsilon
    assert broken


def test_only_methods_that_bound_a_fixed_size_answer_for_it():
    answers = account(gaussian(3, 0.01, 100, fixed=True), DELTA)
    assert set(answers.methods) == {"base", "advanced", "optimal", "pld"}
    assert answers.relation == "replace one example"
    with pytest.raises(InputError, match="does not bound draws of a fixed size"):
        spend("moments", gaussian(3, 0.01, 100, fixed=True), DELTA)
    assert not gaussian(3, 1.0, 2, fixed=True).fixed.any()


def test_two_stage_composition_equals_one_stage():
    loss = METHODS["pld"]
    below, above = gaussian(6, 0.01, 9_999), gaussian(6, 0.01, 10_001)
    between = (loss.epsilon(below, DELTA) + loss.epsilon(above, DELTA)) / 2
    assert loss.epsilon(gaussian(6, 0.01, 10_000), DELTA) == pytest.approx(
        between, rel=1e-6
    )


def test_orders_that_do_not_converge_are_left_out_in_silence(capfd, caplog):
    for method in ("moments", "rdp"):
        assert 0 < eps(method, gaussian(1.1, 0.3, 10)) < 50
    assert not caplog.records
    assert capfd.readouterr().err == ""


def test_pure_releases_never_cost_more_than_their_sum():
    for epsilon, q, steps in ((0.1, 1.0, 100), (1.0, 0.5, 10), (3.0, 0.01, 1000)):
        answers = account(pure(epsilon, q, steps), DELTA)
        total = steps * math.log1p(q * math.expm1(epsilon))
        assert answers["base"] == pytest.approx(total)
        assert answers["pld"] <= total * (1 + 1e-6)
        assert answers["pld"] <= answers["rdp"] * (1 + 1e-3)
        assert answers.methods["base"].delta == 0.0


def test_pure_and_gaussian_releases_compose():
    mixed = gaussian(4, 0.05, 100) + pure(0.05, 1.0, 10)
    for method in METHODS:
        assert eps(method, mixed) > eps(method, gaussian(4, 0.05, 100))


def test_composition_theorems_spend_more_delta_than_stated():
    answers = account(gaussian(6, 0.01, 10_000), DELTA).methods
    assert answers["base"].delta == pytest.approx(1e-3)
    assert answers["advanced"].delta == pytest.approx(1.01e-3)
    assert answers["optimal"].delta == pytest.approx(1.01e-3)
    for method in ("zcdp", "moments", "rdp", "pld"):
        assert answers[method].delta == DELTA


def test_methods_that_are_no_bound_are_named():
    """The printed zCDP formula breaks for little noise; the others never do."""
    assert account(gaussian(6, 0.01, 1000), DELTA).notes == ()
    broken = account(gaussian(0.5, 0.01, 100), DELTA)
    assert broken["zcdp"] < broken["pld"]
    assert broken.notes == (
        "zcdp lies below the tight value here: it is not a bound for these steps.",
    )


@pytest.mark.slow
def test_ten_thousand_different_scales_are_within_half_a_percent():
    events = gaussian(15.757 * np.exp(-1.662e-4 * np.arange(10_000)), 0.01)
    fine = LossDistribution(scales=1536).epsilon(events, DELTA)
    assert fine < eps("pld", events) < fine * 1.005


def test_the_tight_truth_beside_the_published_number():
    answers = account(gaussian(6, 0.01, 10_000), DELTA)
    assert answers["moments"] == pytest.approx(0.823, abs=5e-4)
    assert answers["rdp"] == pytest.approx(0.659, abs=1e-3)
    assert answers["pld"] == pytest.approx(0.601, abs=1e-3)


@pytest.mark.parametrize("sigma", [1e-3, 1e-8, 1e-160, 1e-300])
def test_tiny_noise_is_infinite_with_a_reason_not_a_crash(sigma):
    answers = account(gaussian(sigma, 0.01, 100), DELTA).methods
    assert math.isinf(answers["pld"].epsilon)
    for spent in answers.values():
        assert not math.isnan(spent.epsilon)
        assert math.isinf(spent.epsilon) == ("so small" in spent.reason)


BAD = {
    "sigma must be positive": lambda: gaussian(0.0, 0.01, 10),
    "got nan": lambda: gaussian(math.nan, 0.01, 10),
    "sigma must be positive and finite, got inf": lambda: gaussian(math.inf, 0.01, 10),
    "got -1.0 in step 1": lambda: gaussian([2.0, -1.0], 0.01),
    "q must lie in (0, 1], got 0.0": lambda: gaussian(6, 0.0, 10),
    "q must lie in (0, 1], got 1.5": lambda: gaussian(6, 1.5, 10),
    "steps must be at least 1, got 0": lambda: gaussian(6, 0.01, 0),
    "sigma must be one number or 5 numbers": lambda: gaussian([1.0, 2.0], 0.01, 5),
    "delta must lie in (0, 1), got 0": lambda: account(gaussian(6, 0.01, 10), 0),
    "delta must lie in (0, 1), got nan": lambda: account(
        gaussian(6, 0.01, 10), math.nan
    ),
    "unknown convention 'papre'; did you mean 'paper'": lambda: account(
        gaussian(6, 0.01, 10), convention="papre"
    ),
    "unknown accounting method 'moment'": lambda: calibrate(1, 0.1, 1, method="moment"),
    "target epsilon must be positive": lambda: calibrate(-1, 0.1, 1),
    "it never goes below": lambda: calibrate(0.01, 0.01, 10, method="moments"),
    "is never reached in the training log; the best is 0.5": lambda: first_reaching(
        [(1, 0.3), (2, 0.5)], 0.9
    ),
}


@pytest.mark.parametrize("message", BAD)
def test_bad_input_is_refused_in_words(message):
    with pytest.raises(InputError) as caught:
        BAD[message]()
    assert message in str(caught.value)


def test_fixed_noise_std_under_a_falling_sensitivity_costs_less():
    """std = 24 with S = C = 4 is sigma = 6; a smaller S is a larger sigma."""
    trace = np.linspace(4, 1, 100)
    fixed = accounting.from_sensitivity_trace(24, np.full(100, 4.0), 0.01)
    falling = accounting.from_sensitivity_trace(24, trace, 0.01)
    for method in METHODS:
        assert eps(method, fixed) == pytest.approx(eps(method, gaussian(6, 0.01, 100)))
        assert eps(method, falling) < eps(method, fixed)


def test_epsilon_at_a_target_accuracy_comes_from_the_log(tmp_path):
    """Wei et al. 2023, Table 7: the target is reached in round 11 of 100 steps."""
    path = tmp_path / "log.csv"
    path.write_text("round,accuracy\n9,\n10,0.91\n11,0.93\n12,0.92\n")
    rounds = first_reaching(read_log(path), 0.928)
    assert rounds == 11
    spent = eps("moments", gaussian(6, 0.01, 10_000).first(rounds * 100))
    assert round(spent, 3) == 0.285


def test_a_log_without_the_columns_is_refused(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("epoch,loss\n1,2\n")
    with pytest.raises(InputError, match="needs the columns accuracy and round"):
        read_log(path)
    with pytest.raises(InputError, match="can't read the training log"):
        read_log(tmp_path / "none.csv")


@pytest.mark.parametrize("content", [b"\xd0\xff", b"a\0b\n", b"accuracy,round\n0.5"])
def test_a_log_that_is_no_table_is_refused(tmp_path, content):
    path = tmp_path / "log.csv"
    path.write_bytes(content)
    with pytest.raises(InputError, match="the training log"):
        read_log(path)


def test_next_to_no_noise_is_told_without_gigabytes():
    """The losses of many steps would spread over a grid of millions of points."""
    tracemalloc.start()
    try:
        for noise in (0.004, 0.0015):
            events = gaussian(noise, 0.01, 10_000)
            assert LossDistribution().epsilon(events, 1e-5) == math.inf
        assert tracemalloc.get_traced_memory()[1] < 50e6
    finally:
        tracemalloc.stop()
    assert 1e5 < LossDistribution().epsilon(gaussian(0.02, 0.01, 10_000), 1e-5) < 1e6
