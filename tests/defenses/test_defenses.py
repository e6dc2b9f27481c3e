"""Contracts over the whole table of presets."""

import dataclasses
import functools
import importlib.util
import pathlib

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

import gradaudit.defenses as defenses
from gradaudit.defenses import PRESETS
from gradaudit.defenses.adaptive import QuantileClip
from gradaudit.defenses.clipping import Norm, Scope
from gradaudit.defenses.compression import Sign, TopK
from gradaudit.defenses.layers import DenseLayers, OnLayers
from gradaudit.defenses.schedules import Constant, decay
from gradaudit.defenses.transforms import is_independent


def _load_contracts():
    path = pathlib.Path(__file__).with_name("defense_contracts.py")
    spec = importlib.util.spec_from_file_location("defense_contracts", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


contracts = _load_contracts()
Noiseless = contracts.Noiseless

NO_SIGMA = {"sigma": 0.0}
TINY_SIGMA = {"sigma_start": 1e-20, "sigma_end": 5e-21}
NO_LAPLACE = {"epsilon": 1e30}
FIXED = Noiseless(NO_SIGMA, Constant(4.0))
L1 = Noiseless(NO_LAPLACE, Constant(1.0), Scope.GLOBAL, Norm.L1)

# every preset that adds noise -> how to take the noise away, and the bound beneath it
QUIET = {
    "gaussian-noise": Noiseless({"std": 0.0}),
    "laplace-noise": Noiseless({"scale": 0.0}),
    "dssgd-noise": Noiseless(NO_LAPLACE),
    "fed-sdp": FIXED,
    "fed-sdp-client": FIXED,
    "fed-cdp": FIXED,
    "fed-cdp-decay": Noiseless(NO_SIGMA, decay("linear", 6.0, 2.0, 100)),
    "fed-alpha-cdp": FIXED,
    "fed-alpha-cdp-sigma": Noiseless({"start": 1e-20, "end": 5e-21}, Constant(4.0)),
    "dp-baseline": FIXED,
    "dp-dyns-cdecay": Noiseless(NO_SIGMA, decay("linear", 6.0, 2.0, 10_000)),
    "dp-dyns-l2max": FIXED,
    "dp-dyns": Noiseless(NO_SIGMA, decay("linear", 6.0, 2.0, 10_000)),
    "dp-dynsigma": Noiseless(TINY_SIGMA, Constant(4.0)),
    "dp-dyn": Noiseless(TINY_SIGMA, decay("exponential", 6.0, 2.0, 10_000)),
    "quantile-clip": Noiseless(NO_SIGMA, Constant(4.0), Scope.GLOBAL),
    "adaclip": Noiseless(NO_SIGMA, Constant(4.0), Scope.GLOBAL),
    "dpfl": L1,
    "dpfl-even": L1,
    "lip": L1,
}
LATER = 60  # a round in which every schedule has moved


def test_the_table_is_whole():
    expected = (
        "none prune dssgd dssgd-noise gaussian-noise laplace-noise fed-sdp "
        "fed-sdp-client fed-cdp fed-cdp-decay fed-alpha-cdp fed-alpha-cdp-sigma "
        "dp-baseline dp-dyns-cdecay dp-dyns-l2max dp-dyns dp-dynsigma dp-dyn "
        "quantile-clip adaclip dpfl dpfl-even lip ldp-sgd"
    )
    assert set(PRESETS) == set(expected.split())
    noisy = {name for name, preset in PRESETS.items() if preset.make().mechanisms}
    assert noisy == {*QUIET, "ldp-sgd"}
    for name, preset in PRESETS.items():
        defense = preset.make()
        assert defense.name == name
        assert preset.summary.endswith(".") and (preset.paper or name == "none")
        assert hash(defense.per_example) == hash(preset.make().per_example)
        assert defense == preset.make()  # equal settings must not retrace


@pytest.mark.parametrize("name", PRESETS)
def test_structure_is_kept(name):
    contracts.keeps_structure(PRESETS[name].make)


@pytest.mark.parametrize("name", [n for n in PRESETS if PRESETS[n].off is not None])
def test_off_is_the_identity(name):
    contracts.is_identity_when_off(PRESETS[name].make, PRESETS[name].off)


@pytest.mark.parametrize("name", PRESETS)
def test_equal_keys_equal_bytes(name):
    contracts.repeats_with_equal_keys(PRESETS[name].make)


@pytest.mark.parametrize("name", PRESETS)
def test_jit_is_eager(name):
    contracts.is_same_under_jit(PRESETS[name].make)


@pytest.mark.parametrize("name", PRESETS)
def test_broken_units_stay_visible(name):
    contracts.shows_broken_units(PRESETS[name].make)


@pytest.mark.parametrize("name", [n for n in QUIET if QUIET[n].clip is not None])
def test_every_unit_is_bounded(name):
    quiet = QUIET[name]
    jitted = contracts.jitted(PRESETS[name].make(**quiet.parameters))
    run = functools.partial(jitted, jax.random.key(0))
    values = st.sampled_from([0.0, -0.0, 1e-20, 1e-3, 0.5, -3.9, 4.0, 7.0, 1e10, 1e24])
    count = contracts.UNITS * 12

    @hypothesis.settings(max_examples=25, deadline=None, database=None)
    @hypothesis.given(st_numpy.arrays(np.float32, count, elements=values))
    def check(numbers):
        tree, start = {}, 0

        def take(index, shape):
            nonlocal start
            size = contracts.UNITS * int(np.prod(shape))
            start += size
            part = numbers[start - size : start]
            return jnp.asarray(part.reshape(contracts.UNITS, *shape))

        tree = contracts.shaped(take)
        contracts.bounds_every_unit(run, quiet, tree)

    check()


def _declared(name, t):
    """The declared std of each tensor, where it is not one number for all."""
    defense = PRESETS[name].make()
    if name == "adaclip":  # on the learned scale, which starts at the clip
        return contracts.shaped(lambda index, shape: 4.0 * 6.0)
    std = contracts.declared_std(defense, t)
    if name in ("dpfl", "dpfl-even"):  # two layers share the budget
        return contracts.shaped(lambda index, shape: 2 * std)
    if name == "lip":  # dense layers only
        tree = contracts.shaped(lambda index, shape: std)
        return {**tree, "conv1": {"kernel": 0.0, "bias": 0.0}}
    return contracts.shaped(lambda index, shape: std)


@pytest.mark.parametrize("t", [0, LATER])
@pytest.mark.parametrize("name", [n for n in QUIET if n != "dssgd-noise"])
def test_noise_has_the_declared_std_and_is_independent(name, t):
    make, quiet = PRESETS[name].make, QUIET[name].parameters
    draws = contracts.noise_draws(make, quiet, t, size=100.0)
    declared = _declared(name, t)
    contracts.has_declared_std(draws, declared)
    contracts.is_independent(draws)
    for factor in (0.9, 1.1):
        wrong = jax.tree.map(lambda std, f=factor: f * std or 1.0, declared)
        with pytest.raises(AssertionError):
            contracts.has_declared_std(draws, wrong)


@pytest.mark.parametrize("name", ["fed-cdp", "fed-alpha-cdp"])
def test_batch_noise_is_one_draw_per_batch(name):
    def make(**parameters):
        at = defenses.NoiseAt.BATCH
        return PRESETS[name].make(noise_at=at, **parameters)

    draws = contracts.noise_draws(make, NO_SIGMA, 0, size=100.0)
    std = contracts.declared_std(make(), 0)
    contracts.has_declared_std(draws, contracts.shaped(lambda index, shape: std))
    first, second = draws["output"]["kernel"][:, 0], draws["output"]["kernel"][:, 1]
    np.testing.assert_allclose(first, second, atol=1e-4)
    assert std == pytest.approx(24.0 / contracts.UNITS)


def test_selective_noise_is_on_what_is_sent():
    defense = defenses.dssgd_noise(share=0.5, bound=0.5, epsilon=2.0)
    tree = contracts.gradients(8, units=100_000, size=100.0)
    out = contracts.jitted(defense)(jax.random.key(8), tree, 0)
    flat = np.concatenate([np.asarray(x).reshape(100_000, -1) for x in _leaves(out)], 1)
    signs = np.concatenate(
        [np.sign(x).reshape(100_000, -1) for x in _leaves(tree)], axis=1
    )
    sent = flat != 0
    assert np.all(sent.sum(1) <= 6)
    noise = (flat - 0.5 * signs)[sent]
    declared = contracts.declared_std(defense, 0)
    assert declared == pytest.approx(2**0.5 * 2 * 0.5 / 2.0)
    assert np.std(noise) == pytest.approx(declared, rel=0.02)


def _leaves(tree):
    return jax.tree.leaves(tree)


def test_l2_max_scales_with_the_largest_norm():
    make = defenses.fed_alpha_cdp
    tree = jax.tree.map(lambda leaf: 0.0 * leaf, contracts.gradients())
    tree["output"]["bias"] = tree["output"]["bias"].at[3].set(jnp.array([0.6, 0.8]))
    keys = jax.random.split(jax.random.key(0), 20_000)
    out = contracts.over_keys(make())(keys, tree, 0)
    assert np.std(out["conv1"]["kernel"]) == pytest.approx(6.0 * 1.0, rel=0.02)


@pytest.mark.parametrize("name", [n for n in QUIET if n != "dssgd-noise"])
def test_mean_of_units_equals_run_without_noise(name):
    make, quiet = PRESETS[name].make, QUIET[name].parameters
    contracts.averages_like_run(defenses.mean_of_units, make, quiet)


FUSED = ["fed-cdp", "fed-alpha-cdp", "quantile-clip", "adaclip", "dpfl"]


@pytest.mark.parametrize("name", FUSED)
def test_mean_of_units_has_the_law_of_run(name):
    contracts.averages_noise_like_run(defenses.mean_of_units, PRESETS[name].make)


def test_mean_of_units_fuses_batch_noise_and_a_chain():
    batch = defenses.NoiseAt.BATCH
    for make in (
        lambda: defenses.fed_cdp(noise_at=batch),
        lambda: defenses.parse("prune:ratio=0.5,at=per_example + fed-cdp"),
        lambda: defenses.parse("fed-cdp + prune:ratio=0.5,at=per_example"),
    ):
        contracts.averages_noise_like_run(defenses.mean_of_units, make)


@pytest.mark.parametrize("name", ["quantile-clip", "adaclip"])
def test_fused_and_run_states_follow_the_same_law(name):
    defense = PRESETS[name].make()
    transforms = defense.per_example
    states = defenses.init_states(transforms, contracts.PARAMS)
    tree = contracts.gradients(9)
    keys = jax.random.split(jax.random.key(9), 20_000)

    @jax.jit
    @jax.vmap
    def both(key):
        _, ran = defenses.run(transforms, key, tree, states, 0)
        other = jax.random.fold_in(key, 9)
        _, fused = defenses.mean_of_units(transforms, other, tree, states, 0)
        return ran, fused

    ran, fused = both(keys)
    for a, b in zip(_leaves(ran), _leaves(fused), strict=True):
        a, b = np.asarray(a), np.asarray(b)
        np.testing.assert_allclose(a.std(0), b.std(0), rtol=0.05, atol=1e-6)
        spread = 6 * a.std(0) * (2 / len(keys)) ** 0.5
        assert np.all(np.abs(a.mean(0) - b.mean(0)) <= spread + 1e-6)


def test_a_defense_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        defenses.none().name = "other"


PARTS = {
    f"{name}.{point.value}[{index}]": transform
    for name, preset in PRESETS.items()
    for point, transforms in contracts.points(preset.make()).items()
    for index, transform in enumerate(transforms)
}
MORE_PARTS = {
    "noise on the batch": defenses.fed_cdp(noise_at=defenses.NoiseAt.BATCH),
    "prune each tensor": defenses.prune(scope=Scope.TENSOR),
    "named layers": defenses.lip(layers=("output",)),
    "importance": defenses.dpfl(importance=(("conv1", 0.4), ("output", 0.2))),
    "top 3": defenses.defend("", update=(TopK(3),)),
    "signs": defenses.defend("", update=(Sign(),)),
    "coupled inside": defenses.defend(
        "", update=(OnLayers(QuantileClip(4.0, 6.0), DenseLayers()),)
    ),
    "a function": defenses.defend(
        "", update=(defenses.FromFunction(lambda k, x, t: x),)
    ),
}
PARTS |= {
    f"{name}[{index}]": transform
    for name, defense in MORE_PARTS.items()
    for index, transform in enumerate(defense.per_example + defense.update)
}


def test_which_transforms_are_independent():
    coupled = {name for name, part in PARTS.items() if not is_independent(part)}
    assert coupled == {
        "fed-alpha-cdp.per_example[1]",
        "fed-alpha-cdp-sigma.per_example[1]",
        "dp-dyns-l2max.per_example[1]",
        "dp-dyns.per_example[1]",
        "dp-dyn.per_example[1]",
        "quantile-clip.per_example[0]",
        "adaclip.per_example[0]",
        "noise on the batch[1]",
        "coupled inside[0]",
        "a function[0]",
    }


ALONE = {part: name for name, part in PARTS.items() if is_independent(part)}


@pytest.mark.parametrize("name", ALONE.values())
def test_independent_units_know_nothing_of_each_other(name):
    contracts.treats_units_alone(PARTS[name])


@pytest.mark.parametrize(
    "name",
    [
        "fed-alpha-cdp.per_example[1]",
        "quantile-clip.per_example[0]",
        "adaclip.per_example[0]",
        "noise on the batch[1]",
    ],
)
def test_coupled_units_are_flagged(name):
    with pytest.raises(AssertionError):
        contracts.treats_units_alone(PARTS[name])
