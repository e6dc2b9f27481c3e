"""The exact law of the white box: closed form, fast sampler and full sampler agree."""

import math
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradaudit.data import load_dataset
from gradaudit.defenses.local import randomize
from gradaudit.distinguish.bounds import empirical_epsilon
from gradaudit.distinguish.crafters import ADVERSARIES, draw_scene
from gradaudit.distinguish.game import Errors, Trials, play_in_chunks
from gradaudit.distinguish.whitebox import (
    attainable_epsilon,
    by_cosine,
    by_likelihood,
    cosine_rates,
    pair_law,
    play_white,
)
from gradaudit.models.networks import build_model

KEY = jax.random.key(7)
CLIP = 1.0
pytestmark = pytest.mark.usefixtures("optimized")


def random_pair(size: int, norms: tuple[float, float], seed: int = 0) -> np.ndarray:
    pair = np.random.default_rng(seed).normal(size=(2, size))
    lengths = np.linalg.norm(pair, axis=1, keepdims=True)
    return (pair / lengths * np.array(norms)[:, None]).astype(np.float32)


@jax.jit
def full_products(keys, gradients, epsilon):
    norms = jnp.linalg.norm(gradients, axis=1, keepdims=True)
    units = gradients / jnp.where(norms > 0, norms, 1.0)

    def trial(key):
        choice_key, answer_key = jax.random.split(key)
        first = jax.random.bernoulli(choice_key)
        gradient = jnp.where(first, gradients[0], gradients[1])
        return first, units @ randomize(answer_key, gradient, epsilon, CLIP)

    return jax.vmap(trial)(keys)


def play_in_full(gradients, epsilon: float, trials: int) -> Trials:
    """The real randomizer on whole gradients, O(d) per trial: the sampler's oracle."""

    def chunk(key, size):
        keys = jax.random.split(key, size)
        first, products = full_products(keys, gradients, epsilon)
        return first, by_cosine(products)

    (played,) = play_in_chunks(KEY, trials, 2**8, chunk)
    return played


def within(errors: Errors, rates: tuple[float, float], deviations: float = 3.5) -> bool:
    """Whether both rates are that close to exact ones, in standard errors."""
    fp, fn = rates
    first = math.sqrt(max(fp * (1 - fp), 1e-9) / errors.first)
    second = math.sqrt(max(fn * (1 - fn), 1e-9) / errors.second)
    return (
        abs(errors.fp - fp) <= deviations * first
        and abs(errors.fn - fn) <= deviations * second
    )


@pytest.fixture(scope="module")
def scene():
    data = load_dataset("digits")
    model = build_model("ldp-cnn", data.shape, data.classes)
    params = model.init(jax.random.key(0))
    return draw_scene(jax.random.key(1), model, params, data, CLIP)


@pytest.mark.parametrize("size", [1, pytest.param(2, marks=pytest.mark.slow), 300])
@pytest.mark.parametrize("norms", [(0.3, 2.0), (1.0, 1.0), (0.0, 1.0), (1.0, 0.0)])
@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_samplers_follow_the_closed_form(size, norms, epsilon):
    pair = random_pair(size, norms)
    law = pair_law(pair, epsilon, CLIP)
    exact = cosine_rates(law)
    fast = play_white(KEY, law, by_cosine, 100_000).errors()
    full = play_in_full(jnp.asarray(pair), epsilon, 2_048).errors()
    assert within(fast, exact)
    assert within(full, exact)


# By default the honest pair and two that are opposite; all of them are in games, too.
@pytest.mark.slow
@pytest.mark.parametrize("name", ADVERSARIES)
def test_fast_sampler_equals_the_full_one_for_every_crafter(name, scene):
    crafted = ADVERSARIES[name].craft(scene)
    assert crafted.gradients.shape == (2, 10_650)
    law = pair_law(crafted.gradients, 2.0, CLIP)
    fast = play_white(KEY, law, by_cosine, 200_000).errors()
    full = play_in_full(crafted.gradients, 2.0, 2_048).errors()
    for one, other, trials in (
        (fast.fp, full.fp, full.first),
        (fast.fn, full.fn, full.second),
    ):
        error = math.sqrt(one * (1 - one) / trials)
        assert abs(one - other) <= 3 * error
    assert within(fast, cosine_rates(law))


def test_a_wrong_epsilon_is_seen():
    """The agreement above can fail: ε = 2.2 is not ε = 2."""
    pair = random_pair(100, (1.0, 1.0))
    law = pair_law(pair, 2.0, CLIP)
    wrong = cosine_rates(pair_law(pair, 2.2, CLIP))
    assert not within(play_white(KEY, law, by_cosine, 200_000).errors(), wrong)


@pytest.mark.parametrize("norms", [(1.0, 1.0), (2.0, 5.0), (0.4, 0.9)])
@pytest.mark.parametrize("epsilon", [1.0, 3.0])
def test_the_likelihood_rule_attains_the_pairs_exact_loss(norms, epsilon):
    law = pair_law(random_pair(50, norms), epsilon, CLIP)
    errors = play_white(KEY, law, by_likelihood, 250_000).errors()
    one_sided = (
        math.log((1 - errors.fn) / errors.fp),
        math.log((1 - errors.fp) / errors.fn),
    )
    assert max(one_sided) <= attainable_epsilon(law) + 0.06
    assert empirical_epsilon(errors.fn, errors.fp) == empirical_epsilon(
        errors.fp, errors.fn
    )
    if min(norms) >= CLIP:  # honest gradients beyond the clip leak all of epsilon
        assert attainable_epsilon(law) == pytest.approx(epsilon, abs=1e-5)


def test_exact_worst_case_and_equal_gradients():
    for epsilon in (0.5, 1.0, 2.0, 4.0):
        one = random_pair(30, (1.0, 1.0))[0]
        worst = pair_law(np.stack([one, -one]), epsilon, CLIP)
        assert empirical_epsilon(*cosine_rates(worst)) == pytest.approx(epsilon, 1e-5)
        same = pair_law(np.stack([one, one]), epsilon, CLIP)
        assert empirical_epsilon(*cosine_rates(same)) == 0.0
        assert attainable_epsilon(same) == 0.0


def test_the_largest_epsilon_has_a_law():
    """1 - keep is 1e-13 there: nothing in single precision."""
    one = random_pair(30, (1.0, 1.0))[0]
    law = pair_law(np.stack([one, -one]), 30.0, CLIP)
    assert attainable_epsilon(law) == pytest.approx(30.0, abs=0.01)


def test_chunks_are_no_copies_of_each_other():
    law = pair_law(random_pair(10, (1.0, 1.0)), 1.0, CLIP)
    trials = play_white(KEY, law, by_cosine, 300_000)
    assert len(trials.first) == 300_000
    assert len(np.unique(trials.scores)) > 299_000  # chunks are not copies


@pytest.mark.slow
def test_speed(scene):
    """10^7 trials in a minute, and 100 times the full sampler's rate."""
    crafted = ADVERSARIES["dummy-gradient"].craft(scene)
    law = pair_law(crafted.gradients, 4.0, CLIP)
    play_white(KEY, law, by_cosine, 2**18)
    play_in_full(crafted.gradients, 4.0, 2**8)
    start = time.perf_counter()
    play_white(KEY, law, by_cosine, 10**7)
    fast = time.perf_counter() - start
    start = time.perf_counter()
    play_in_full(crafted.gradients, 4.0, 10_000)
    full = time.perf_counter() - start
    rates = 10**7 / fast, 10_000 / full
    print(f"\nfast {rates[0]:,.0f}/s, full {rates[1]:,.0f}/s, 10^7 in {fast:.1f} s")
    assert fast < 60
    assert rates[0] > 100 * rates[1]
