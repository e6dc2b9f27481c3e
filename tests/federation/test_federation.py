"""Properties of a round: what must not depend on how the work is laid out."""

import dataclasses
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradaudit import defenses, tree
from gradaudit.data import Dataset
from gradaudit.errors import InputError
from gradaudit.federation import round as rounds
from gradaudit.federation.recipe import (
    Population,
    Recipe,
    draw_without_replacement,
    initial_state,
)
from gradaudit.federation.round import PublicData, fine_tune, run_round
from gradaudit.federation.setting import Optimizer, Setting, Weighting
from gradaudit.federation.training import evaluate
from gradaudit.mechanism import Point
from gradaudit.models.gradients import batch_gradient, one_hot
from gradaudit.models.networks import build_model

KEY = jax.random.key(7)
CLASSES = 4
SETTING = Setting(
    clients=12, clients_per_round=7, local_steps=3, batch_size=2, rounds=2, examples=9
)
CLIENTS = np.array([8, 1, 11, 3, 6, 0, 9])


def make_data(count: int = 60) -> Dataset:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, CLASSES, count)
    inputs = rng.uniform(0, 0.5, (count, 6)) + 0.1 * labels[:, None]
    return Dataset("toy", inputs.astype(np.float32), labels, CLASSES, "all", "none")


DATA = make_data()
MODEL = build_model("mlp", DATA.shape, CLASSES)
PARAMS = MODEL.init(jax.random.key(1))


def make_population(clients: int = 12) -> Population:
    """Clients of different sizes."""
    rng = np.random.default_rng(1)
    held = [rng.choice(60, 5 + client % 4, replace=False) for client in range(clients)]
    return Population.of(DATA, held)


def one_round(defense, clients=CLIENTS, chunk=10, **changes):
    recipe = Recipe.of(MODEL, defense, dataclasses.replace(SETTING, **changes))
    state = initial_state(recipe, PARAMS)
    return run_round(recipe, make_population(), KEY, state, clients, chunk)


def assert_close(left, right, rtol=1e-4):
    for one, two in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        scale = float(np.abs(one).max()) + 1e-12
        np.testing.assert_allclose(one, two, rtol=rtol, atol=rtol * scale)


# Every point of a round, with and without memory and noise.
DEFENSES = {
    "none": defenses.none(),
    "per-example": defenses.fed_cdp(clip=0.5, sigma=0.1),
    "client": defenses.fed_sdp_client(clip=0.5, sigma=0.1),
    "server": defenses.fed_sdp(clip=0.5, sigma=0.1),
    "data-dependent": defenses.fed_alpha_cdp(),
    "with a state": defenses.quantile_clip(),
}


# What looks at all clients at once contains the plainer ones.
PLAINER = {"none", "per-example", "client", "server", "data-dependent"}


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.slow] * (n in PLAINER)) for n in DEFENSES],
)
def test_chunks_and_order_change_nothing(name):
    reference, seen = one_round(DEFENSES[name])
    state, info = one_round(DEFENSES[name], CLIENTS[::-1], chunk=3)
    assert_close(reference, state)
    assert_close(seen, info)
    assert not np.allclose(reference.params["output"]["kernel"], 0.0)


def test_one_client_with_all_data_is_plain_sgd():
    everything = Population.of(DATA, [np.arange(len(DATA))])
    setting = Setting(
        clients=1,
        clients_per_round=1,
        local_steps=1,
        batch_size=len(DATA),
        examples=len(DATA),
        learning_rate=0.3,
    )
    recipe = Recipe.of(MODEL, defenses.none(), setting)
    state, expected = initial_state(recipe, PARAMS), PARAMS
    targets = one_hot(jnp.asarray(DATA.labels), CLASSES)
    for _ in range(3):
        state, _ = run_round(recipe, everything, KEY, state, np.array([0]))
        gradient = batch_gradient(
            MODEL, expected, {}, jnp.asarray(DATA.inputs), targets
        )
        expected = tree.subtract(expected, tree.scale(0.3, gradient))
    assert_close(expected, state.params)


SERVED = {
    "server, alone": DEFENSES["server"],
    "server, together": defenses.quantile_clip(at=Point.SERVER),
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.slow] * n.endswith("alone")) for n in SERVED],
)
def test_one_program_serves_rounds_of_every_size(name):
    recipe = Recipe.of(MODEL, SERVED[name], SETTING)
    state, population = initial_state(recipe, PARAMS), make_population()
    rounds._round.clear_cache()
    for count in (7, 2, 1, 5):
        padded, seen = run_round(
            recipe, population, KEY, state, CLIENTS[:count], chunk=2, width=8
        )
        assert seen.losses.shape == (count,)
    assert rounds._round._cache_size() == 1
    plain, expected = run_round(recipe, population, KEY, state, CLIENTS[:5])
    assert_close(plain, padded)
    assert_close(expected, seen)


def test_more_clients_than_there_is_room_for_are_computed_whole():
    recipe = Recipe.of(MODEL, DEFENSES["none"], SETTING)
    state, population = initial_state(recipe, PARAMS), make_population()
    more, seen = run_round(recipe, population, KEY, state, CLIENTS, chunk=2, width=3)
    plain, expected = run_round(recipe, population, KEY, state, CLIENTS)
    assert_close(plain, more)
    assert_close(expected, seen)


def test_weights_are_the_examples_held():
    sizes = np.asarray(make_population().sizes)
    alone = [one_round(DEFENSES["none"], np.array([c]))[0].params for c in (0, 3)]
    both = one_round(DEFENSES["none"], np.array([0, 3]), weighting=Weighting.EXAMPLES)[
        0
    ].params
    share = sizes[0] / (sizes[0] + sizes[3])
    assert share != 0.5
    mixed = jax.tree.map(lambda a, b: share * a + (1 - share) * b, *alone)
    assert_close(mixed, both)


def test_a_round_without_clients_leaves_the_model():
    state, info = one_round(DEFENSES["none"], np.array([], int))
    assert int(state.round) == 1 and info.losses.shape == (0,)
    assert_close(PARAMS, state.params, rtol=0)


def test_rounds_and_seeds_draw_anew():
    recipe = Recipe.of(MODEL, DEFENSES["none"], SETTING)
    state = initial_state(recipe, PARAMS)
    later = dataclasses.replace(state, round=state.round + 1)
    population = make_population()
    results = [
        run_round(recipe, population, key, start, CLIENTS)[0].params["output"]["bias"]
        for key, start in (
            (KEY, state),
            (KEY, later),
            (jax.random.key(8), state),
        )
    ]
    assert not np.allclose(results[0], results[1])
    assert not np.allclose(results[0], results[2])


def test_adam_takes_steps_of_its_own():
    sgd, adam = (
        one_round(DEFENSES["none"], optimizer=rule)[0].params for rule in Optimizer
    )
    assert not np.allclose(sgd["output"]["bias"], adam["output"]["bias"])


def test_norms_tell_what_the_defense_did():
    _, plain = one_round(DEFENSES["none"])
    np.testing.assert_array_equal(plain.norm_before, plain.norm_after)
    clip = 0.01
    _, clipped = one_round(defenses.fed_cdp(clip=clip, sigma=0.0))
    np.testing.assert_allclose(clipped.norm_before, plain.norm_before, rtol=1e-4)
    assert float(clipped.norm_after.max()) <= clip * 1.001
    assert float(clipped.norm_before.max()) > clip


def test_a_state_moves_and_is_one_for_all_clients():
    recipe = Recipe.of(MODEL, DEFENSES["with a state"], SETTING)
    before = initial_state(recipe, PARAMS)
    after, _ = one_round(DEFENSES["with a state"])
    old, new = (
        jax.tree.leaves((s.per_example, s.update, s.server)) for s in (before, after)
    )
    assert [leaf.shape for leaf in old] == [leaf.shape for leaf in new]
    assert any(not np.allclose(a, b) for a, b in zip(old, new, strict=True))


_EIGHT_DEVICES = """
import sys
sys.path.insert(0, sys.argv[1])
import jax, numpy as np
import test_federation as t
from gradaudit.machine import device_count
assert device_count() == 8
for name in sys.argv[3:]:
    state, _ = t.one_round(t.DEFENSES[name], chunk=1)
    np.savez(f"{sys.argv[2]}/{name}.npz", *map(np.asarray, jax.tree.leaves(state)))
"""


@pytest.mark.parametrize(
    "names", [["server"], pytest.param(["none", "per-example"], marks=pytest.mark.slow)]
)
def test_eight_devices_give_the_same_round(tmp_path, names):
    folder = os.path.dirname(__file__)
    command = [sys.executable, "-c", _EIGHT_DEVICES, folder, str(tmp_path), *names]
    environment = os.environ | {"JAX_NUM_CPU_DEVICES": "8"}
    subprocess.run(command, env=environment, check=True, timeout=200)
    for name in names:
        state, _ = one_round(DEFENSES[name])
        with np.load(tmp_path / f"{name}.npz") as file:
            assert_close(jax.tree.leaves(state), list(file.values()))


def test_draws_are_different_uniform_and_inside():
    draws = jax.vmap(lambda key: draw_without_replacement(key, 7, 3))(
        jax.random.split(KEY, 7000)
    )
    assert draws.min() == 0 and draws.max() == 6
    assert all(len(set(row)) == 3 for row in np.asarray(draws[:200]).tolist())
    for place in range(3):  # each place of the batch is uniform: 1000 of each
        counts = np.bincount(np.asarray(draws[:, place]), minlength=7)
        assert np.abs(counts - 1000).max() < 150


def test_a_client_only_sees_its_own_examples():
    population = make_population()
    keys = jax.random.split(KEY, 20)
    draw = jax.jit(jax.vmap(lambda key, who: population.batch(key, who, 5), (0, None)))
    for client in (0, 5, 11):
        start, size = int(population.starts[client]), int(population.sizes[client])
        own = np.asarray(population.indices[start : start + size])
        for inputs, _ in zip(*draw(keys, client), strict=True):
            rows = [np.flatnonzero((DATA.inputs == x).all(1))[0] for x in inputs]
            assert set(rows) <= set(own) and len(set(rows)) == 5


@pytest.mark.parametrize(
    ("held", "words"),
    [([], "at least one client"), ([[]], "no examples"), ([[99]], "names example 99")],
)
def test_bad_partitions_are_refused_in_words(held, words):
    with pytest.raises(InputError, match=words):
        Population.of(DATA, [np.asarray(part, int) for part in held])


def test_evaluation_is_accuracy_and_mean_loss():
    inputs, labels = jnp.asarray(DATA.inputs), jnp.asarray(DATA.labels)
    accuracy, loss = evaluate(MODEL, PARAMS, {}, inputs, labels)
    logits = MODEL.apply(PARAMS, {}, inputs)
    assert float(accuracy) == pytest.approx(np.mean(logits.argmax(1) == labels))
    expected = MODEL.loss(PARAMS, {}, inputs, one_hot(labels, CLASSES))
    assert float(loss) == pytest.approx(float(expected), rel=1e-5)


def test_fine_tuning_is_an_epoch_of_sgd():
    inputs, labels = jnp.asarray(DATA.inputs), jnp.asarray(DATA.labels)
    whole = PublicData(inputs, labels, batch_size=len(DATA), learning_rate=0.2)
    gradient = batch_gradient(MODEL, PARAMS, {}, inputs, one_hot(labels, CLASSES))
    expected = tree.subtract(PARAMS, tree.scale(0.2, gradient))
    assert_close(expected, fine_tune(MODEL, KEY, PARAMS, {}, whole)[0])
    with pytest.raises(InputError, match="fewer than a batch of 100"):
        fine_tune(MODEL, KEY, PARAMS, {}, dataclasses.replace(whole, batch_size=100))
