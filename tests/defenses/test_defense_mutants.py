"""Bugs that were really shipped, planted into copies of the presets.

Each mutant keeps the claims of the original; the contract that is named beside it
must flag it, and must pass the original.
"""

import dataclasses
import importlib.util
import pathlib

import jax
import jax.numpy as jnp
import pytest

import gradaudit.defenses as defenses
from gradaudit.defenses.clipping import (
    Clip,
    FixedSensitivity,
    clip_factors,
    scale_units,
    unit_norms,
)
from gradaudit.defenses.noise import GaussianNoise
from gradaudit.defenses.schedules import Constant
from gradaudit.defenses.transforms import FromFunction


def _load_contracts():
    path = pathlib.Path(__file__).with_name("defense_contracts.py")
    spec = importlib.util.spec_from_file_location("defense_contracts", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


contracts = _load_contracts()
QUIET = {"sigma": 0.0}
QUIET_DECAY = {"start": 1e-20, "end": 5e-21}
LATER = 60


def with_noise(make, change):
    """A copy of the preset whose noise is `change(noise)`, a tuple of transforms."""

    def mutant(**parameters):
        defense = make(**parameters)
        clip, noise = defense.per_example
        return dataclasses.replace(defense, per_example=(clip, *change(noise)))

    return mutant


def with_clip(make, change):
    """A copy of the preset whose clip is `change(clip)`."""

    def mutant(**parameters):
        defense = make(**parameters)
        clip, noise = defense.per_example
        return dataclasses.replace(defense, per_example=(change(clip), noise))

    return mutant


def times(factor):
    def change(noise):
        scaled = Constant(factor * noise.multiplier(0))
        return (dataclasses.replace(noise, multiplier=scaled),)

    return change


def first_value_forever(noise):
    """The decaying sigma is computed, and the first one is used."""
    return (dataclasses.replace(noise, multiplier=Constant(noise.multiplier(0))),)


def untied(noise):
    """The noise has a scale of its own, whatever the clip."""
    fixed = FixedSensitivity(Constant(1.0))
    return (GaussianNoise(noise.multiplier, fixed, noise.at),)


def clip_of_the_mean(clip):
    """The norm of the batch gradient decides, for every example alike."""

    def function(key, tree, t):
        def scale(leaf):
            norm = unit_norms(jnp.mean(leaf, axis=0, keepdims=True))
            factor = clip_factors(norm, clip.bound(t))[0]
            return scale_units(leaf, jnp.full(len(leaf), factor))

        return jax.tree.map(scale, tree)

    return FromFunction(function)


def clip_first_value_forever(clip):
    return Clip(Constant(clip.bound(0)), clip.scope, clip.norm)


def clip_that_hides_nan(clip):
    def function(key, tree, t):
        return clip.apply(key, jax.tree.map(jnp.nan_to_num, tree), (), t)[0]

    return FromFunction(function)


def shared_by_units(noise):
    """One draw for all examples, at the full scale."""

    def function(key, tree, t):
        one = jax.tree.map(lambda leaf: leaf[:1], tree)
        zeros = jax.tree.map(jnp.zeros_like, one)
        draw, _ = noise.apply(key, zeros, (), t)
        return jax.tree.map(lambda leaf, z: leaf + z, tree, draw)

    return (FromFunction(function),)


def forgotten_key(noise):
    def function(key, tree, t):
        return noise.apply(jax.random.key(0), tree, (), t)[0]

    return (FromFunction(function),)


def mean_over_one_less(transforms, key, tree, states, t):
    """The average of K units is divided by K - 1."""
    mean, states = defenses.mean_of_units(transforms, key, tree, states, t)
    units = len(jax.tree.leaves(tree)[0])
    return jax.tree.map(lambda leaf: leaf * units / (units - 1), mean), states


def check_std(make, quiet, t):
    draws = contracts.noise_draws(make, quiet, t, size=100.0)
    std = contracts.declared_std(make(), t)
    contracts.has_declared_std(draws, contracts.shaped(lambda index, shape: std))


def check_independence(make, quiet, t):
    contracts.is_independent(contracts.noise_draws(make, quiet, t, size=100.0))


def check_bound(make, quiet, t):
    original = defenses.PRESETS[make().name].make
    clip = original().per_example[0].bound
    run = contracts.jitted(make(**quiet))
    rules = contracts.Noiseless(quiet, clip)
    tree = contracts.gradients(3, size=5.0)
    tree = jax.tree.map(lambda leaf: leaf.at[0].multiply(100.0), tree)
    contracts.bounds_every_unit(
        lambda tree, t: run(jax.random.key(0), tree, t), rules, tree
    )


def check_broken_units(make, quiet, t):
    contracts.shows_broken_units(make)


def check_keys(make, quiet, t):
    contracts.repeats_with_equal_keys(make)


CDP, ALPHA = defenses.fed_cdp, defenses.fed_alpha_cdp_sigma
MUTANTS = {
    "noise times zero": (CDP, with_noise(CDP, times(0.0)), check_std, QUIET, 0),
    "noise 10 % too small": (CDP, with_noise(CDP, times(0.9)), check_std, QUIET, 0),
    "noise 10 % too large": (CDP, with_noise(CDP, times(1.1)), check_std, QUIET, 0),
    "sigma schedule unused": (
        ALPHA,
        with_noise(ALPHA, first_value_forever),
        check_std,
        QUIET_DECAY,
        LATER,
    ),
    "clip schedule unused": (
        defenses.fed_cdp_decay,
        with_clip(defenses.fed_cdp_decay, clip_first_value_forever),
        check_bound,
        QUIET,
        LATER,
    ),
    "batch gradient clipped": (
        CDP,
        with_clip(CDP, clip_of_the_mean),
        check_bound,
        QUIET,
        0,
    ),
    "noise not tied to the clip": (CDP, with_noise(CDP, untied), check_std, QUIET, 0),
    "noise added twice": (
        CDP,
        with_noise(CDP, lambda noise: (noise, noise)),
        check_std,
        QUIET,
        0,
    ),
    "one draw for all examples": (
        CDP,
        with_noise(CDP, shared_by_units),
        check_independence,
        QUIET,
        0,
    ),
    "the same key every time": (
        CDP,
        with_noise(CDP, forgotten_key),
        check_keys,
        QUIET,
        0,
    ),
    "NaN clipped to zero": (
        CDP,
        with_clip(CDP, clip_that_hides_nan),
        check_broken_units,
        QUIET,
        0,
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_the_contract_passes_the_original(name):
    original, _, check, quiet, t = MUTANTS[name]
    check(original, quiet, t)


@pytest.mark.parametrize("name", MUTANTS)
def test_the_contract_flags_the_mutant(name):
    _, mutant, check, quiet, t = MUTANTS[name]
    with pytest.raises(AssertionError):
        check(mutant, quiet, t)


def test_a_mean_over_one_less_is_flagged():
    contracts.averages_like_run(defenses.mean_of_units, CDP, QUIET)
    with pytest.raises(AssertionError):
        contracts.averages_like_run(mean_over_one_less, CDP, QUIET)


def test_claims_say_that_the_noise_is_untied():
    clip, noise = CDP().per_example
    honest = defenses.defend("mutant", per_example=(clip, *untied(noise)))
    assert any("scaled to 1 " in text for text in honest.mechanisms[0].caveats)
    twice = defenses.defend("mutant", per_example=(clip, noise, noise))
    assert twice.mechanisms == CDP().mechanisms  # the second is post-processing
