"""The certificate: known values, nobody above it, sharp, silent where it must be."""

import dataclasses
import itertools
import math
import subprocess
import sys

import numpy as np
import pytest
from scipy import stats

from gradaudit import defenses
from gradaudit.data import load_dataset
from gradaudit.errors import InputError
from gradaudit.federation.setting import Batches, Setting, paper_setting
from gradaudit.privacy import PrivacyPlan, gaussian, pure
from gradaudit.privacy import certificate as certificates
from gradaudit.privacy.certificate import (
    DATA_DEPENDENT,
    NO_BOUND,
    NO_MECHANISM,
    READ_BEFORE,
    SHARED_DRAW,
    among,
    bound,
    certificate,
    gaussian_bound,
    least_sigma,
    near,
    profile_bound,
)
from gradaudit.privacy.loss import LossDistribution

ONE = Setting(
    clients=1, clients_per_round=1, local_steps=1, batch_size=3, rounds=1, examples=3
)


def plan(text="fed-cdp", setting=ONE, tensors=10):
    return PrivacyPlan(defenses.parse(text), setting, tensors=tensors)


def certified(text, type, candidates=10, looks=1, setting=ONE):
    return certificate(
        plan(text, setting), type=type, candidates=candidates, looks=looks
    )


@pytest.mark.parametrize(
    "sigma, candidates, value",
    [(6, 10, 0.225), (6, 100, 0.036), (3, 10, 0.410), (3, 100, 0.102), (1, 10, 0.970)],
)
def test_known_values_of_ten_tensors(sigma, candidates, value):
    found = certified(f"fed-cdp:sigma={sigma}", 2, candidates)
    assert found.value == pytest.approx(value, abs=6e-4)
    assert found.kappa == 1 / candidates


def by_profile(events, kappa):
    delta = LossDistribution(resolution=certificates._RESOLUTION).profile(events)
    return profile_bound(kappa, delta)[0]


@pytest.mark.parametrize("sigma", [0.25, 0.5, 1, 2, 5, 20])
def test_closed_form_and_profile_agree_and_the_profile_is_never_below(sigma):
    """Small sigma needs negative epsilons: with positive ones only it is off by 10 %"""
    for n in (2, 3, 10, 100, 10_000):
        exact = gaussian_bound(1 / n, 1 / sigma)
        loose = by_profile(gaussian(sigma, 1.0), 1 / n)
        assert exact <= loose <= 1.01 * exact, n


def test_without_negative_epsilons_the_profile_would_be_loose():
    delta = LossDistribution().profile(gaussian(1 / 3, 1.0))
    positive = min(0.5 * math.exp(e) + delta(e) for e in np.linspace(0, 5, 200))
    assert positive > 1.01 * gaussian_bound(0.5, 3)


def worst_case_power(rng, noise, rate, steps, kappa, count=400_000):
    """Power at level kappa of the best test of `with` against `without`, simulated."""

    def loss(x):
        shifted = np.exp(x / noise - 1 / (2 * noise**2))
        return np.log1p(rate * (shifted - 1)).sum(axis=1)

    without = loss(rng.normal(size=(count, steps)))
    drawn = rng.random((count, steps)) < rate
    present = loss(rng.normal(size=(count, steps)) + drawn / noise)
    return float((present > np.quantile(without, 1 - kappa)).mean())


@pytest.mark.parametrize(
    "noise, rate, steps", [(0.5, 0.3, 1), (1.0, 0.1, 10), (0.7, 0.5, 5), (2.0, 0.9, 3)]
)
def test_subsampled_bound_is_the_power_of_the_worst_case_pair(noise, rate, steps):
    rng = np.random.default_rng(0)
    for n in (2, 10, 50):
        power = worst_case_power(rng, noise, rate, steps, 1 / n)
        found, _ = bound(1 / n, gaussian(noise, rate, steps))
        assert found == pytest.approx(power, rel=0.02, abs=0.003)


def test_nobody_beats_the_bound_of_fixed_batches():
    """Two candidates +C and -C, everybody else -C: nearly the worst for replacing."""
    rng = np.random.default_rng(1)
    held, batch, steps, sigma, count = 4, 2, 3, 1.2, 300_000
    setting = dataclasses.replace(
        ONE, examples=held, batch_size=batch, local_steps=steps, batches=Batches.FIXED
    )
    text = f"fed-cdp:clip=1,sigma={sigma},scope=global,noise_at=batch"
    found = certificate(plan(text, setting), type=1, candidates=2).value
    rate = batch / held

    def density(x, own):
        away = np.exp(-((x + batch) ** 2) / (2 * sigma**2))
        inside = np.exp(-((x + batch - 1 - own) ** 2) / (2 * sigma**2))
        return np.log((1 - rate) * away + rate * inside).sum(axis=1)

    truth = rng.choice([-1, 1], count)
    drawn = rng.random((count, steps)) < rate
    mean = np.where(drawn, truth[:, None] - (batch - 1), -batch)
    read = mean + sigma * rng.normal(size=(count, steps))
    picked = np.where(density(read, 1) > density(read, -1), 1, -1)
    success = (picked == truth).mean()
    assert success <= found
    # Counting one C instead of two would be broken by it.
    single, _ = bound(0.5, gaussian(sigma, rate, steps))
    assert success > single


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
def test_pure_releases_have_their_two_sided_bound(epsilon):
    for n in (2, 10, 100):
        exact = min(math.exp(epsilon) / n, 1 - math.exp(-epsilon) * (1 - 1 / n))
        assert bound(1 / n, pure(epsilon, 1.0, 1))[0] == pytest.approx(exact, rel=0.01)


@pytest.mark.parametrize("n, mu", [(2, 1.0), (10, 0.5), (10, 3.0), (100, 2.0)])
def test_a_simplex_nearly_reaches_it_and_nothing_passes_it(n, mu):
    rng = np.random.default_rng(2)
    corners = np.eye(n) - 1 / n
    corners *= mu / np.linalg.norm(corners, axis=1, keepdims=True)
    apart = rng.normal(size=(n, 5))
    apart *= mu / np.linalg.norm(apart, axis=1, keepdims=True)
    limit, count = gaussian_bound(1 / n, mu), 100_000
    for shapes, least in ((corners, 0.8), (apart, 0.0)):
        truth = rng.integers(0, n, count)
        read = shapes[truth] + rng.normal(size=(count, shapes.shape[1]))
        success = ((read @ shapes.T).argmax(axis=1) == truth).mean()
        error = 3 * math.sqrt(limit / count)
        assert success <= limit + error
        assert success - 1 / n >= least * (limit - 1 / n) - error


def test_views_count_batches_steps_looks_and_the_best_place():
    mu = math.sqrt(10) / 6
    wider = dataclasses.replace(ONE, batch_size=3, local_steps=2, examples=6)

    def deviations(text, type, looks=1, setting=wider):
        value = certified(text, type, 10, looks, setting).value
        return stats.norm.ppf(value) - stats.norm.ppf(0.1)

    assert deviations("fed-cdp", 2) == pytest.approx(mu)
    assert deviations("fed-cdp", 2, looks=9) == pytest.approx(3 * mu)
    assert deviations("fed-cdp", 1) == pytest.approx(mu * math.sqrt(3 * 2))
    assert deviations("fed-cdp:noise_at=batch", 0) == pytest.approx(
        mu * 3 * math.sqrt(2)
    )
    assert deviations("fed-cdp:scope=global", 2) == pytest.approx(1 / 6)
    assert deviations("fed-sdp-client", 1, looks=4) == pytest.approx(2 * mu)
    assert deviations("fed-sdp", 0) == pytest.approx(mu)
    # Two places: the update's noise alone says more than six noisy examples.
    both = "fed-cdp + fed-sdp-client"
    assert deviations(both, 1) == pytest.approx(mu)
    assert deviations(both, 2) == pytest.approx(mu)


def test_whole_training_counts_the_plan_and_secret_batches_help():
    setting = dataclasses.replace(paper_setting("mnist"), batches=Batches.POISSON)
    values = [
        certificate(plan("fed-cdp", setting), type=t, candidates=10).value
        for t in range(3)
    ]
    assert 0.1 < values[0] == values[1] < values[2] < 1
    fixed = dataclasses.replace(setting, batches=Batches.FIXED)
    replaced = certificate(plan("fed-cdp", fixed), type=1, candidates=10).value
    assert replaced > values[1]


REASONS = {
    ("none", 2): NO_MECHANISM,
    ("prune", 1): NO_MECHANISM,
    ("fed-sdp", 1): READ_BEFORE,
    ("fed-sdp-client", 2): READ_BEFORE,
    ("fed-alpha-cdp", 2): DATA_DEPENDENT,
    ("gaussian-noise", 1): NO_BOUND,
    ("fed-cdp:noise_at=batch", 2): SHARED_DRAW,
}


@pytest.mark.parametrize("text, type", REASONS)
def test_no_certificate_says_why(text, type):
    found = certified(text, type)
    assert found.value is None
    assert found.reason == REASONS[text, type]
    assert found.to_dict()["value"] is None


@pytest.mark.parametrize("text", ["lip", "dssgd-noise"])
def test_noise_on_some_layers_certifies_nothing(text):
    found = certified(text, 1)
    assert found.value is None and "the rest is released as it is" in found.reason


def test_no_noise_in_one_round_certifies_nothing():
    found = certified("fed-cdp:sigma=0", 2)
    assert found.value is None and "multiplier is 0" in found.reason


@pytest.mark.parametrize("name", list(defenses.PRESETS))
@pytest.mark.parametrize("type", range(3))
def test_every_preset_has_a_bound_or_a_reason(name, type):
    for looks in (1, None):
        found = certified(name, type, 10, looks)
        assert (found.value is None) == bool(found.reason)
        if found.value is not None:
            assert 0.1 <= found.value <= 1
            assert found.method and found.assumptions


def test_more_looks_and_less_noise_never_certify_less():
    values = [
        [certified(f"fed-cdp:sigma={s}", 2, 10, k).value for k in (1, 2, 5, 20)]
        for s in (8, 4, 2, 1)
    ]
    assert np.all(np.diff(values, axis=0) >= 0) and np.all(np.diff(values, axis=1) >= 0)


# The prior of a reconstruction.


def clusters(rng, count, share=0.2):
    """A ball of radius 0.05 has `share`; everything else is far apart."""
    spread = rng.random((count, 30))
    near_by = 0.5 + rng.uniform(-0.04, 0.04, (count, 30))
    return np.where(rng.random((count, 1)) < share, near_by, spread)


def test_the_prior_covers_what_the_best_guess_reaches():
    rng = np.random.default_rng(3)
    masses = [near(clusters(rng, 100), 0.05).mass for _ in range(200)]
    assert np.mean(np.asarray(masses) < 0.2) <= 0.05
    # The plain share would not: about half of the time it is below the truth.
    shares = [
        certificates._largest_crowds(clusters(rng, 100).astype(np.float32), [0.1])[0]
        for _ in range(200)
    ]
    assert np.mean(np.asarray(shares) / 100 < 0.2) > 0.2


@pytest.mark.parametrize("batch", [2, 3, 4])
def test_the_prior_of_a_batch_covers_a_guess_of_the_centre(batch):
    rng = np.random.default_rng(4)
    share, radius = 0.3, 0.05
    mass = near(clusters(rng, 400, share), radius, batch).mass
    drawn = clusters(rng, 20_000 * batch, share).reshape(-1, batch * 30)
    reached = np.sqrt(np.mean(np.square(drawn - 0.5), axis=1)) <= radius
    assert reached.mean() <= mass
    alone = near(clusters(rng, 400, share), radius).mass
    assert mass < alone or batch > 3  # orders are counted one by one: loose for many


def test_a_prior_that_cannot_be_bounded_is_no_certificate():
    rows = np.full((50, 4), 0.5)
    found = certificate(plan(), type=2, prior=near(rows, 0.1), looks=1)
    assert found.value is None and "can't be bounded below 1" in found.reason


NOISY = [name for name in defenses.PRESETS if defenses.parse(name).mechanisms]


@pytest.mark.parametrize("dataset", ["lfw-patches", "mnist"])
def test_reconstruction_certificate_of_every_noisy_preset(dataset):
    try:
        data = load_dataset(dataset)
    except InputError:
        pytest.skip(f"{dataset} is not here")
    prior = near(data.inputs, 0.1)
    assert 0 < prior.mass < 1 and prior.confidence == 0.95
    batches = near(data.inputs, 0.1, 3)
    for name, type in itertools.product(NOISY, range(3)):
        shared = batches if type < 2 else prior
        found = certificate(plan(name), type=type, prior=shared, looks=1)
        assert (found.value is None) == bool(found.reason)
        if found.value is not None:
            assert prior.mass <= 1 and shared.mass <= found.value <= 1
            assert any("95" in sentence for sentence in found.assumptions)


# How much noise is enough.


@pytest.mark.parametrize(
    "text, type",
    [("fed-sdp", 0), ("fed-cdp", 0), ("fed-sdp-client", 1), ("fed-cdp", 1)]
    + [("fed-cdp", 2), ("fed-cdp:scope=global", 2), ("quantile-clip", 2)],
)
@pytest.mark.parametrize("limit", [0.11, 0.2, 0.5, 0.9])
def test_the_least_sigma_is_enough_and_less_is_not(text, type, limit):
    def of(sigma):
        joint = f"{text}{',' if ':' in text else ':'}sigma={sigma:.9g}"
        if text == "quantile-clip":
            joint += f",count_sigma={sigma:.9g}"
        return certified(joint, type)

    sigma = least_sigma(limit, of)
    assert 0.99 * limit <= of(sigma).value <= limit
    for factor in (1.0001, 1.01, 1.5, 10):
        assert of(sigma * factor).value <= limit
        assert of(sigma / factor).value > limit or factor == 1.0001


@pytest.mark.parametrize("type", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_the_least_sigma_of_a_whole_training(type):
    setting = dataclasses.replace(
        paper_setting("mnist"), rounds=20, local_steps=5, batches=Batches.POISSON
    )

    def of(sigma):
        text = f"fed-cdp:sigma={sigma:.9g}"
        return certificate(plan(text, setting), type=type, candidates=10)

    sigma = least_sigma(0.15, of)
    assert 0.99 * 0.15 <= of(sigma).value <= 0.15
    assert of(1.01 * sigma).value <= 0.15 < of(0.99 * sigma).value


def test_limits_that_no_noise_reaches_are_refused_in_words():
    with pytest.raises(InputError, match="without reading anything, 0.1 is reached"):
        least_sigma(0.05, lambda sigma: certified(f"fed-cdp:sigma={sigma}", 2))
    with pytest.raises(InputError, match="after this adversary has read"):
        least_sigma(0.2, lambda sigma: certified(f"fed-sdp:sigma={sigma}", 1))
    with pytest.raises(InputError, match="in \\(0, 1\\)"):
        least_sigma(1.5, lambda sigma: certified(f"fed-cdp:sigma={sigma}", 2))


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"candidates": 1}, "at least 2"),
        ({}, "either the number of candidates or a prior"),
        ({"candidates": 3, "prior": among(3)}, "either"),
        ({"candidates": 3, "type": 4}, "0, 1 or 2"),
        ({"candidates": 3, "looks": 0}, "at least 1"),
    ],
)
def test_questions_that_make_no_sense_are_refused(arguments, words):
    with pytest.raises(InputError, match=words):
        certificate(plan(), **arguments)


def test_the_certificate_needs_no_jax():
    program = (
        "import sys; from gradaudit.privacy.certificate import gaussian_bound;"
        "assert 'jax' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
