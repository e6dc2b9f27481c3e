"""Batch-norm statistics in a round: who moves, averages and reads them."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradaudit import defenses
from gradaudit.data import Dataset
from gradaudit.errors import InputError
from gradaudit.federation.recipe import Population, Recipe, initial_state
from gradaudit.federation.round import PublicData, fine_tune, run_round
from gradaudit.federation.setting import Batches, Setting, Weighting
from gradaudit.federation.taps import observe_many
from gradaudit.federation.training import evaluate
from gradaudit.models.deep_networks import Norm, ResidualNet
from gradaudit.models.model import Model
from gradaudit.types import Leakage
from tests.federation.reading import read_with_truth

KEY = jax.random.key(3)
SHAPE, CLASSES, RATE, MOMENTUM = (6, 6, 1), 3, 0.1, 0.9
SIZES = (4, 6, 10)


@functools.cache
def tiny(norm: Norm):
    network = ResidualNet((4,), 1, CLASSES, norm)
    return Model(
        f"tiny {norm.name}",
        network,
        SHAPE,
        CLASSES,
        output_layer="output",
        coupled=norm is Norm.BATCH,
    )


def setup(norm: Norm, steps: int = 2, defense=None, **others):
    rng = np.random.default_rng(0)
    inputs = rng.uniform(0, 1, (sum(SIZES), *SHAPE)).astype(np.float32)
    labels = rng.integers(0, CLASSES, sum(SIZES))
    data = Dataset("toy", inputs, labels, CLASSES, "all", "none")
    setting = Setting(
        clients=3,
        clients_per_round=3,
        local_steps=steps,
        batch_size=3,
        learning_rate=RATE,
        weighting=Weighting.EXAMPLES,
        **others,
    )
    model = tiny(norm)
    recipe = Recipe.of(model, defense or defenses.none(), setting)
    state = initial_state(recipe, model.init(KEY), model.initial_buffers(KEY))
    rows = np.split(np.arange(sum(SIZES)), np.cumsum(SIZES)[:-1])
    return recipe, Population.of(data, rows), state


def assert_close(actual, expected) -> None:
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6),
        actual,
        expected,
    )


@functools.cache
def hand_step(model):
    @jax.jit
    def step(params, buffers, x, y):
        def loss(params):
            logits, moved = model.network.clone(training=True).apply(
                {"params": params, **buffers}, x, mutable=["batch_stats"]
            )
            return -jnp.mean(jnp.sum(y * jax.nn.log_softmax(logits), -1)), moved

        gradient, moved = jax.grad(loss, has_aux=True)(params)
        return jax.tree.map(lambda p, g: p - RATE * g, params, gradient), moved

    return step


def by_hand(model, state, victim, steps):
    """Plain SGD in numpy's order: the loss of the batch, flax's running statistics."""
    params, buffers = state.params, state.buffers
    inputs = np.asarray(victim.inputs).reshape(steps, 3, *SHAPE)
    targets = np.eye(CLASSES, dtype=np.float32)[
        np.asarray(victim.labels).reshape(steps, 3)
    ]
    step = hand_step(model)
    for x, y in zip(inputs, targets, strict=True):
        params, buffers = step(params, buffers, x, y)
    return params, buffers


def test_training_mode_moves_them_and_the_server_averages_them():
    recipe, population, state = setup(Norm.BATCH)
    seen, victims = read_with_truth(
        recipe, population, KEY, state, Leakage.CLIENT, [0, 1, 2]
    )
    after, _ = run_round(recipe, population, KEY, state, np.arange(3))
    sent = []
    for client in range(3):
        victim = jax.tree.map(lambda leaf, i=client: np.asarray(leaf)[i], victims)
        params, buffers = by_hand(recipe.model, state, victim, 2)
        own = jax.tree.map(
            lambda leaf, i=client: np.asarray(leaf)[i], seen.sent_buffers
        )
        assert_close(own, buffers)
        update = jax.tree.map(lambda leaf, i=client: np.asarray(leaf)[i], seen.sent)
        assert_close(update, jax.tree.map(np.subtract, params, state.params))
        sent.append(buffers)
    weights = np.asarray(SIZES) / sum(SIZES)
    mean = jax.tree.map(lambda *leaves: np.tensordot(weights, leaves, 1), *sent)
    assert_close(after.buffers, mean)
    # Everybody was given the same ones, and an attacker knows them.
    assert_close(seen.buffers, state.buffers)
    assert not np.allclose(
        after.buffers["batch_stats"]["norm"]["mean"],
        state.buffers["batch_stats"]["norm"]["mean"],
    )


def test_one_step_gives_away_the_statistics_of_the_batch():
    recipe, population, state = setup(Norm.BATCH, steps=1)
    seen, victims = read_with_truth(recipe, population, KEY, state, Leakage.SERVER, [1])
    old, new = (
        tree["batch_stats"]["norm"]["mean"]
        for tree in (seen.buffers, seen.sent_buffers)
    )
    batch = (new[0] - MOMENTUM * old) / (1 - MOMENTUM)
    kernel = state.params["conv"]["kernel"]
    first = jax.lax.conv_general_dilated(
        victims.inputs[0],
        kernel,
        (1, 1),
        "SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )
    np.testing.assert_allclose(batch, jnp.mean(first, (0, 1, 2)), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "norm", [pytest.param(Norm.GROUP, marks=pytest.mark.slow), Norm.RUNNING]
)
def test_elsewhere_they_stay_and_nobody_sends_them(norm):
    recipe, population, state = setup(norm)
    after, _ = run_round(recipe, population, KEY, state, np.arange(3))
    jax.tree.map(np.testing.assert_array_equal, after.buffers, state.buffers)
    seen = observe_many(recipe, population, KEY, state, Leakage.SERVER, [0])
    assert seen.sent_buffers == {}
    assert bool(seen.buffers) == (norm is Norm.RUNNING)


def test_running_statistics_are_read_in_training():
    recipe, population, state = setup(Norm.RUNNING)
    sharper = jax.tree.map(lambda leaf: leaf * 0.25, state.buffers)
    moved = [
        run_round(
            *(recipe, population, KEY, dataclasses.replace(state, buffers=buffers)),
            np.arange(3),
        )[0].params["output"]["kernel"]
        for buffers in (state.buffers, sharper)
    ]
    assert not np.allclose(*moved)


def test_evaluation_looks_at_one_example_alone():
    recipe, population, state = setup(Norm.BATCH)
    model, inputs = recipe.model, np.asarray(population.inputs)
    logits = model.apply(state.params, state.buffers, inputs[:5])
    alone = model.apply(state.params, state.buffers, inputs[:1])
    np.testing.assert_allclose(logits[:1], alone, rtol=1e-4, atol=1e-6)
    labels = jnp.zeros(5, jnp.int32)
    accuracy, _ = evaluate(model, state.params, state.buffers, inputs[:5], labels)
    np.testing.assert_allclose(accuracy, np.mean(np.argmax(logits, 1) == 0))


def test_fine_tuning_at_the_server_moves_them_too():
    recipe, population, state = setup(Norm.BATCH)
    public = PublicData(population.inputs[:6], population.labels[:6], batch_size=3)
    _, moved = fine_tune(recipe.model, KEY, state.params, state.buffers, public)
    before = state.buffers["batch_stats"]["norm"]["mean"]
    assert not np.allclose(moved["batch_stats"]["norm"]["mean"], before)


def test_what_needs_single_examples_is_refused_in_words():
    recipe, population, state = setup(Norm.BATCH)
    with pytest.raises(
        InputError, match="type 2 reads .*Attack the batch: type 1 or 0"
    ):
        observe_many(recipe, population, KEY, state, Leakage.EXAMPLE, [0])
    with pytest.raises(InputError, match="defense of the whole update.*group norm"):
        setup(Norm.BATCH, defense=defenses.fed_cdp())
    with pytest.raises(InputError, match="Poisson batches are padded"):
        setup(Norm.BATCH, batches=Batches.POISSON)
    setup(Norm.BATCH, defense=defenses.fed_sdp())
    setup(Norm.RUNNING, defense=defenses.fed_cdp())
