"""The game on any mechanism: correct ones pass, broken copies are found."""

import math

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradaudit import defenses
from gradaudit.defenses.local import randomize
from gradaudit.distinguish import Claim, Neighbours, Verdict, audit_release
from gradaudit.distinguish.bounds import ceiling
from gradaudit.distinguish.subjects import (
    load_subject,
    of_defense,
    of_function,
    pairs,
)
from gradaudit.errors import InputError

SIZE, EPSILON, DELTA = 64, 1.0, 1e-5
KEY = jax.random.key(11)
PARAMS = {"conv": jnp.zeros((4, 8)), "output": jnp.zeros((32,))}
SIGMA = 3.0
GAUSSIAN_CLAIM = Claim(float(dp_accounting.get_epsilon_gaussian(SIGMA, DELTA)), DELTA)


def clip(vector):
    norm = jnp.linalg.norm(vector)
    return vector / jnp.maximum(norm, 1.0)


def ldp_sgd(key, vector):
    return randomize(key, vector, EPSILON, 1.0)


def gaussian(key, vector, noise=SIGMA):
    return clip(vector) + noise * jax.random.normal(key, vector.shape)


def laplace(key, vector, noise=1 / EPSILON):
    bounded = vector / jnp.maximum(jnp.abs(vector).sum(), 1.0)
    return bounded + noise * jax.random.laplace(key, vector.shape)


def without_noise(key, vector):
    return gaussian(key, vector, 0.0)


def laplace_without_noise(key, vector):
    return laplace(key, vector, 0.0)


def tiny_sensitivity(key, vector):
    return gaussian(key, vector, SIGMA / 1e4)


def laplace_tiny_sensitivity(key, vector):
    return laplace(key, vector, 1e-4 / EPSILON)


def ldp_without_flips(key, vector):
    """ε = infinity: the answer is always on the gradient's side."""
    return randomize(key, vector, 50.0, 1.0)


def ldp_without_the_sign_function(key, vector):
    """<z, v> v in place of sgn(<z, v>) v: the length of the answer gives z away."""
    norm_key, direction_key, answer_key = jax.random.split(key, 3)
    norm = jnp.linalg.norm(vector)
    agree = 0.5 + jnp.minimum(norm, 1.0) / 2
    sign = jnp.where(jax.random.uniform(norm_key) < agree, 1.0, -1.0)
    normal = jax.random.normal(direction_key, vector.shape)
    direction = normal / jnp.linalg.norm(normal)
    projection = sign * jnp.vdot(vector, direction) / jnp.where(norm > 0, norm, 1.0)
    truthful = jax.random.uniform(answer_key) < jax.nn.sigmoid(EPSILON)
    return jnp.where(truthful, projection, -projection) * direction


ADD_REMOVE, LOCAL = Neighbours.ADD_REMOVE, Neighbours.LOCAL
CORRECT = {
    "ldp-sgd": (ldp_sgd, Claim(EPSILON), LOCAL),
    "gaussian": (gaussian, GAUSSIAN_CLAIM, ADD_REMOVE),
    "laplace": (laplace, Claim(EPSILON), ADD_REMOVE),
}
MUTANTS = {
    "ldp-sgd, sgn dropped": (ldp_without_the_sign_function, Claim(EPSILON), LOCAL),
}
MORE_MUTANTS = {
    "gaussian, S / 10^4": (tiny_sensitivity, GAUSSIAN_CLAIM, ADD_REMOVE),
    "gaussian, noise x 0": (without_noise, GAUSSIAN_CLAIM, ADD_REMOVE),
    "ldp-sgd, ε / 10 claimed": (ldp_sgd, Claim(EPSILON / 10), LOCAL),
    "laplace, noise x 0": (laplace_without_noise, Claim(EPSILON), ADD_REMOVE),
    "laplace, S / 10^4": (laplace_tiny_sensitivity, Claim(EPSILON), ADD_REMOVE),
    "laplace, ε / 10 claimed": (laplace, Claim(EPSILON / 10), ADD_REMOVE),
    "ldp-sgd, no flips": (ldp_without_flips, Claim(EPSILON), LOCAL),
    "gaussian, ε / 10 claimed": (
        gaussian,
        Claim(GAUSSIAN_CLAIM.epsilon / 10, DELTA),
        ADD_REMOVE,
    ),
}


def examine(function, claim, neighbours, **options):
    subject = of_function("f", function, SIZE, claim, neighbours=neighbours)
    return audit_release(KEY, subject.release, subject.pairs, claim, **options)


@pytest.mark.parametrize(
    "name", [*MUTANTS, *(pytest.param(n, marks=pytest.mark.slow) for n in MORE_MUTANTS)]
)
def test_mutants_are_refuted_with_the_default_trials(name):
    result = examine(*(MUTANTS | MORE_MUTANTS)[name])
    assert result.verdict is Verdict.REFUTED
    assert result.refuted_by == "trials"
    assert result.lower_bound > result.claim.epsilon


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.slow] * (n != "ldp-sgd")) for n in CORRECT],
)
def test_correct_mechanisms_are_not(name):
    result = examine(*CORRECT[name])
    assert result.verdict is Verdict.CONSISTENT
    assert 0.3 * result.claim.epsilon < result.lower_bound <= result.claim.epsilon


def test_choosing_in_a_pilot_keeps_the_bound_a_bound():
    """40 audits with pilot, pair, statistic and threshold: at most 7 % exceed ε."""
    above = []
    subject = of_function("f", laplace, 8, Claim(EPSILON), neighbours=ADD_REMOVE)
    for seed in range(40):
        result = audit_release(
            jax.random.key(seed), laplace, subject.pairs, subject.claim, trials=1_000
        )
        above.append(result.lower_bound > EPSILON)
    assert np.mean(above) <= 0.07


@pytest.mark.parametrize(
    ("text", "verdict", "reason"),
    [
        pytest.param(
            "ldp-sgd:epsilon=2", Verdict.CONSISTENT, None, marks=pytest.mark.slow
        ),
        ("fed-cdp:clip=4,sigma=6,scope=global", Verdict.CONSISTENT, None),
        # Every tensor is clipped apart: two tensors change by C * sqrt(2).
        ("fed-cdp:clip=4,sigma=6", Verdict.REFUTED, "closed form"),
        # The noise scale is the norm of the data: no data, no noise.
        ("fed-alpha-cdp:clip=4,sigma=6", Verdict.REFUTED, "trials"),
    ],
)
def test_defenses(text, verdict, reason):
    subject = load_subject(text, PARAMS)
    result = audit_release(
        KEY,
        subject.release,
        subject.pairs,
        subject.claim,
        closed_form=subject.closed_form,
        trials=20_000,
    )
    assert (result.verdict, result.refuted_by) == (verdict, reason)


def test_closed_forms_of_known_noise():
    exact = dp_accounting.get_epsilon_gaussian
    shared = of_defense(defenses.fed_cdp(4.0, 6.0, scope=defenses.Scope.GLOBAL), PARAMS)
    assert shared.claim.epsilon == shared.closed_form == exact(6.0, DELTA)
    apart = of_defense(defenses.fed_cdp(4.0, 6.0), PARAMS)
    assert apart.closed_form == pytest.approx(exact(6.0 / math.sqrt(2), DELTA))
    local = of_defense(
        defenses.fed_cdp(4.0, 6.0, scope=defenses.Scope.GLOBAL),
        PARAMS,
        neighbours=Neighbours.LOCAL,
    )
    assert local.claim.epsilon == local.closed_form == exact(3.0, DELTA)
    randomizer = of_defense(defenses.ldp_sgd(epsilon=2.0), PARAMS)
    assert randomizer.claim == Claim(2.0)
    assert randomizer.closed_form == 2.0


def test_few_trials_cannot_tell_and_say_how_many_would():
    result = examine(ldp_sgd, Claim(9.0), LOCAL, trials=1_000)
    assert result.verdict is Verdict.CANNOT_TELL
    assert result.ceiling < 9.0
    assert ceiling(result.trials_needed) > 9.0 >= ceiling(result.trials_needed - 2)


def test_pairs_are_what_the_neighbours_say():
    (added,) = pairs((3, 2), 5.0, ADD_REMOVE)
    np.testing.assert_array_equal(added.vectors, [[5, 0, 0, 5, 0], [0] * 5])
    opposite, orthogonal, _ = pairs((3, 2), 5.0, LOCAL)
    np.testing.assert_array_equal(opposite.vectors[0], -opposite.vectors[1])
    assert float(jnp.vdot(*orthogonal.vectors)) == 0.0


def nan_sometimes(key, vector):
    return jnp.where(jax.random.uniform(key) < 0.01, jnp.nan, vector)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda key, vector: vector * jnp.nan, "64 of 64 values that are NaN"),
        (lambda key, vector: vector[:3], r"shape of its input, \(64,\), got \(3,\)"),
        (lambda key, vector: (vector, vector), "shape of its input.*got tuple"),
        (lambda key, vector: np.asarray(vector), "in jax.numpy"),
        (lambda key, vector: vector / "2", "the mechanism failed"),
        (nan_sometimes, "a score that is NaN"),
    ],
)
def test_broken_mechanisms_are_refused_in_words(function, message):
    with pytest.raises(InputError, match=message):
        examine(function, Claim(1.0), LOCAL, trials=2_000)


def test_claims_are_needed():
    with pytest.raises(InputError, match="claims no privacy of its own"):
        of_defense(defenses.none(), PARAMS)
    with pytest.raises(InputError, match="epsilon must be positive"):
        Claim(0.0)
    with pytest.raises(InputError, match=r"delta must lie in \[0, 1\)"):
        Claim(1.0, 1.0)


def test_the_bound_of_no_errors_is_the_ceiling():
    result = examine(without_noise, GAUSSIAN_CLAIM, ADD_REMOVE, trials=1_000)
    assert (result.fp, result.fn) == (0.0, 0.0)
    assert result.lower_bound == pytest.approx(result.ceiling, abs=0.2)
