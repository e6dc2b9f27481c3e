"""Poisson batches: the coins, the mean over the expected size, the noise."""

import jax
import numpy as np
import pytest

from gradaudit import defenses
from gradaudit.data import Dataset
from gradaudit.defenses.clipping import Clip
from gradaudit.defenses.noise import NoiseAt, plain_gaussian, sanitize
from gradaudit.defenses.schedules import Constant
from gradaudit.defenses.transforms import Defense
from gradaudit.errors import InputError
from gradaudit.federation import client as clients
from gradaudit.federation.client import train_client
from gradaudit.federation.recipe import (
    Population,
    Recipe,
    client_key,
    initial_state,
    iteration_keys,
    poisson_room,
)
from gradaudit.federation.setting import Batches, Setting
from gradaudit.federation.taps import observe_many
from gradaudit.models.gradients import one_hot
from gradaudit.models.networks import build_model
from gradaudit.types import Leakage

KEY = jax.random.key(1)
CLASSES, B, RATE = 3, 4, 0.1


def setup(defense=None, batch_size=B, local_steps=1, sizes=(12, 30)):
    rng = np.random.default_rng(0)
    inputs = rng.uniform(0, 1, (30, 5)).astype(np.float32)
    data = Dataset("toy", inputs, rng.integers(0, 3, 30), CLASSES, "all", "none")
    net = build_model("mlp", data.shape, CLASSES)
    setting = Setting(
        clients=2, clients_per_round=2, local_steps=local_steps, examples=12,
        batch_size=batch_size, learning_rate=RATE, batches=Batches.POISSON,
    )  # fmt: skip
    recipe = Recipe.of(net, defense or defenses.none(), setting)
    held = [np.arange(30 - size, 30) for size in sizes]
    return (
        recipe,
        Population.of(data, held),
        initial_state(recipe, net.init(jax.random.key(0))),
    )


def test_each_example_is_drawn_on_its_own_coin():
    _, population, _ = setup()
    draw = jax.jit(
        jax.vmap(lambda key, who: population.poisson_batch(key, who, B), (0, None))
    )
    for client, size in enumerate((12, 30)):
        inputs, labels, present = draw(jax.random.split(KEY, 6000), client)
        assert inputs.shape[1] == poisson_room(30, B)
        counts = np.asarray(present.sum(axis=1))
        variance = B * (1 - B / size)  # of a binomial; a fixed size has none
        assert abs(counts.mean() - B) < 5 * (variance / 6000) ** 0.5
        assert abs(counts.var() / variance - 1) < 0.1
        own = np.asarray(population.inputs)[30 - size :]
        rows = np.asarray(inputs)[np.asarray(present) > 0]
        which = (rows[:, None] == own[None]).all(axis=2)
        assert which.any(axis=1).all()  # nobody else's
        share = which.sum(axis=0) / 6000
        assert np.abs(share - B / size).max() < 5 * (B / size / 6000) ** 0.5
        first = which[: int(counts[0])].sum(axis=0)
        assert first.max() <= 1  # each at most once


def test_all_examples_with_certainty_and_room_that_is_never_exceeded():
    _, population, _ = setup(batch_size=12, sizes=(12, 12))
    _, _, present = population.poisson_batch(KEY, 0, 12)
    assert present.sum() == 12
    assert poisson_room(500, 5) == 25 and poisson_room(5, 5) == 5


def drawn(recipe, population, state):
    own = client_key(KEY, state.round, 1)
    return own, population.poisson_batch(iteration_keys(own, 0)[0], 1, B)


@pytest.mark.parametrize("clip", [pytest.param(None, marks=pytest.mark.slow), 0.05])
@pytest.mark.parametrize("tapped", [False, True])
def test_the_mean_divides_by_the_expected_size(clip, tapped):
    defense = Defense("clip", (Clip(Constant(clip)),)) if clip else None
    recipe, population, state = setup(defense)
    own, (inputs, labels, present) = drawn(recipe, population, state)
    report = train_client(recipe, population, own, state, 1, tapped)
    assert int(present.sum()) != B  # or the test would not tell
    targets = one_hot(labels, CLASSES)
    total = jax.tree.map(np.zeros_like, jax.device_get(state.params))
    inputs, targets = jax.device_get((inputs, targets))
    gradient = jax.jit(jax.grad(recipe.model.loss))
    for row in range(int(present.sum())):
        one = jax.device_get(
            gradient(state.params, {}, inputs[row : row + 1], targets[row : row + 1])
        )
        if clip:
            norms = jax.tree.map(np.linalg.norm, jax.tree.map(np.ravel, one))
            one = jax.tree.map(lambda g, n: g * min(1, clip / n), one, norms)
        total = jax.tree.map(np.add, total, one)
    for sent, summed in zip(
        jax.tree.leaves(report.update), jax.tree.leaves(total), strict=True
    ):
        np.testing.assert_allclose(sent, -RATE * summed / B, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("tapped", [False, True])
@pytest.mark.parametrize("at", NoiseAt)
def test_noise_is_that_of_the_expected_size_whatever_is_drawn(at, tapped):
    """With no gradient left, the update is lr * noise: also of empty batches."""
    sigma, clip = 2.0, 1e-6
    defense = Defense("noise", sanitize(clip, sigma / clip, noise_at=at))
    recipe, population, state = setup(defense, batch_size=2)

    def one(key):
        own = client_key(key, 0, 1)
        update = train_client(recipe, population, own, state, 1, tapped).update
        coins = population.poisson_batch(iteration_keys(own, 0)[0], 1, 2)[2]
        return update["dense1"]["kernel"], coins.sum()

    noise, counts = jax.jit(jax.vmap(one))(jax.random.split(KEY, 200))
    std = RATE * sigma / (2 if at is NoiseAt.BATCH else 2**0.5)
    for size in (0, 1, 2, 4):  # a std that followed the size would be 0 or 40 % off
        seen = np.asarray(noise)[np.asarray(counts) == size]
        assert len(seen) > 5
        assert abs(seen.std() / std - 1) < 0.05


@pytest.mark.parametrize(
    ("defense", "words"),
    [
        (defenses.quantile_clip(), "QuantileClip looks at all examples"),
        (defenses.fed_alpha_cdp(), "GaussianNoise looks at all examples"),
        (
            Defense("late", (plain_gaussian(1.0), Clip(Constant(1.0)))),
            "noise must come last",
        ),
    ],
)
def test_what_needs_the_whole_batch_is_refused(defense, words):
    with pytest.raises(InputError, match=words):
        setup(defense)


@pytest.mark.parametrize("leakage", Leakage)
def test_taps_refuse_batches_without_a_size(leakage):
    recipe, population, state = setup()
    with pytest.raises(InputError, match="attack the same setting with fixed batches"):
        observe_many(recipe, population, KEY, state, leakage, [0])


def test_batches_of_every_size_are_traced_once(monkeypatch):
    traced = []
    real = clients._poisson_gradient
    monkeypatch.setattr(
        clients, "_poisson_gradient", lambda *a: traced.append(1) or real(*a)
    )
    recipe, population, state = setup(local_steps=5)
    run = jax.jit(lambda key: train_client(recipe, population, key, state, 1).update)
    for seed in range(3):
        run(jax.random.key(seed))
    assert len(traced) <= 2  # the scan's body may be traced for its shapes as well
