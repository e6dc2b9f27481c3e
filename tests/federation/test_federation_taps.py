"""What the three adversaries read is what the round really computes."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from gradaudit import defenses
from gradaudit.data import Dataset
from gradaudit.defenses.noise import NoiseAt, sanitize
from gradaudit.defenses.transforms import Defense
from gradaudit.errors import InputError
from gradaudit.federation.recipe import Population, Recipe, initial_state
from gradaudit.federation.round import run_round
from gradaudit.federation.setting import Setting
from gradaudit.federation.taps import observe_many
from gradaudit.mechanism import Point
from gradaudit.models.gradients import one_hot, per_example_gradients, unrolled_update
from gradaudit.models.networks import MODELS, build_model
from gradaudit.types import Leakage
from tests.federation.reading import read_with_truth

KEY = jax.random.key(3)
RATE = 0.1
CLASSES = 3


def make_data(shape) -> Dataset:
    rng = np.random.default_rng(0)
    inputs = rng.uniform(0, 1, (30, *shape)).astype(np.float32)
    labels = rng.integers(0, CLASSES, 30)
    return Dataset("toy", inputs, labels, CLASSES, "all", "none")


def setup(defense=None, model="mlp", local_steps=1, batch_size=3):
    data = make_data((5,) if model == "mlp" else (8, 8, 1))
    net = build_model(model, data.shape, CLASSES)
    held = np.random.default_rng(2).permuted(np.tile(np.arange(30), (6, 1)), axis=1)
    setting = Setting(
        clients=6,
        clients_per_round=4,
        local_steps=local_steps,
        batch_size=batch_size,
        examples=10,
        learning_rate=RATE,
    )
    recipe = Recipe.of(net, defense or defenses.none(), setting)
    key = jax.random.key(0)
    state = initial_state(recipe, net.init(key), net.initial_buffers(key))
    return recipe, Population.of(data, held[:, :10]), KEY, state


def observe(recipe, population, key, state, leakage, client, iteration=0):
    """Reads one client, without the axis of victims."""
    seen, victim = read_with_truth(
        recipe, population, key, state, leakage, [client], iteration
    )
    first = functools.partial(jax.tree.map, lambda leaf: np.asarray(leaf)[0])
    sent, victim = first((seen.sent, victim))
    params = first(seen.params) if iteration else seen.params
    return dataclasses.replace(seen, sent=sent, params=params), victim


def assert_close(left, right, rtol=1e-4):
    # Where a tensor's gradient is zero (the keys' biases of attention), what is there
    # is rounding of the others.
    whole = max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(left))
    for one, two in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        scale = float(np.abs(one).max()) + 1e-4 * whole + 1e-9
        np.testing.assert_allclose(one, two, rtol=rtol, atol=rtol * scale)


# In numpy: eagerly, jax would compile every operation for every shape.


def mean_over_clients(gradient):
    return jax.tree.map(lambda leaf: np.asarray(leaf).mean(0), gradient)


def after_step(params, gradient):
    return jax.tree.map(lambda p, g: np.asarray(p) - RATE * g, params, gradient)


def check_unrolled(model, steps, batch):
    recipe, *rest = setup(model=model, local_steps=steps, batch_size=batch)
    observation, victim = observe(recipe, *rest, Leakage.CLIENT, client=4)
    targets = one_hot(victim.labels, CLASSES)
    update = jax.jit(unrolled_update, static_argnums=0)(
        recipe.model,
        observation.params,
        observation.buffers,
        victim.inputs.reshape(steps, batch, *recipe.model.input_shape),
        targets.reshape(steps, batch, CLASSES),
        observation.training.learning_rate,
    )
    assert_close(update, observation.sent, rtol=2e-4)
    described = observation.training
    assert (described.local_steps, described.batch_size) == (steps, batch)


@pytest.mark.parametrize(
    ("model", "steps", "batch"),
    [
        ("mlp", 1, 3),
        pytest.param("mlp", 5, 1, marks=pytest.mark.slow),
        ("dpfl-2conv", 2, 3),
    ],
)
def test_unrolled_update_is_the_clients_update(model, steps, batch):
    check_unrolled(model, steps, batch)


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("steps", [1, 2, 5])
@pytest.mark.parametrize("batch", [1, 3])
def test_unrolled_update_for_everything(model, steps, batch):
    check_unrolled(model, steps, batch)


NOISY = {
    "none": defenses.none(),
    "per-example": defenses.fed_cdp(clip=0.5, sigma=0.1),
    "per-example, l2-max": defenses.fed_alpha_cdp(),
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.slow] * (n != "per-example")) for n in NOISY],
)
def test_type_1_is_the_mean_of_what_type_2_reads(name):
    parts = setup(NOISY[name], batch_size=2)
    update, batch = read_with_truth(*parts, Leakage.CLIENT, [5, 2])
    read = [
        read_with_truth(*parts, Leakage.EXAMPLE, [5, 2], example=example)
        for example in range(2)
    ]
    gradients = jax.device_get([seen.gradient for seen, _ in read])
    mean = jax.tree.map(lambda *g: sum(g) / 2, *gradients)
    assert_close(mean, update.gradient, rtol=1e-3)
    for example, (seen, victim) in enumerate(read):
        if name == "none":
            recipe, state = parts[0], parts[3]
            own = per_example_gradients(
                recipe.model,
                state.params,
                {},
                batch.inputs[:, example],
                one_hot(batch.labels[:, example], CLASSES),
            )
            assert_close(own, seen.sent)
        np.testing.assert_array_equal(victim.inputs[:, 0], batch.inputs[:, example])
        np.testing.assert_array_equal(victim.labels[:, 0], batch.labels[:, example])


AFTER_TRAINING = {
    "none": defenses.none(),
    "client": defenses.fed_sdp_client(clip=0.5, sigma=0.1),
    "server": defenses.fed_sdp(clip=0.5, sigma=0.1),
}


# Without noise and with the server's, two tests below do the same.
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=[pytest.mark.slow] * (n != "client"))
        for n in AFTER_TRAINING
    ],
)
def test_the_server_averages_what_type_0_reads(name):
    clients = [4, 0, 3]
    parts = setup(AFTER_TRAINING[name], local_steps=2)
    observation = observe_many(*parts, Leakage.SERVER, clients)
    mean = mean_over_clients(observation.gradient)
    recipe, population, key, state = parts
    after, _ = run_round(recipe, population, key, state, np.array(clients))
    assert_close(after_step(state.params, mean), after.params)


def leaked(name, leakage):
    parts = setup(AFTER_TRAINING[name])
    return observe_many(*parts, leakage, [1, 4]).gradient


@pytest.mark.parametrize(
    ("name", "leakage", "protected"),
    [
        ("client", Leakage.CLIENT, True),
        ("client", Leakage.SERVER, True),
        ("server", Leakage.CLIENT, False),
        ("server", Leakage.SERVER, True),
        ("client", Leakage.EXAMPLE, False),
        ("server", Leakage.EXAMPLE, False),
    ],
)
def test_a_defense_protects_from_its_own_point_on(name, leakage, protected):
    defended, raw = leaked(name, leakage), leaked("none", leakage)
    same = all(
        np.allclose(a, b, rtol=1e-4, atol=1e-6)
        for a, b in zip(jax.tree.leaves(defended), jax.tree.leaves(raw), strict=True)
    )
    assert same is not protected


def test_the_order_of_victims_is_the_order_that_was_asked():
    parts = setup(AFTER_TRAINING["server"])
    for leakage in Leakage:
        there, victim = read_with_truth(*parts, leakage, [0, 5, 2])
        back, mirrored = read_with_truth(*parts, leakage, [2, 5, 0])
        turned = jax.tree.map(lambda g: np.asarray(g)[::-1], back.gradient)
        assert_close(there.gradient, turned)
        np.testing.assert_array_equal(victim.inputs, mirrored.inputs[::-1])


def test_a_later_iteration_reads_the_clients_own_model():
    recipe, *rest = setup(local_steps=3)
    for iteration in (0, 2):
        seen, victim = observe(recipe, *rest, Leakage.EXAMPLE, 1, iteration=iteration)
        _, used = observe(recipe, *rest, Leakage.CLIENT, 1)
        batches = used.inputs.reshape(3, 3, -1)
        targets = one_hot(used.labels, CLASSES).reshape(3, 3, -1)
        np.testing.assert_array_equal(victim.inputs[0], batches[iteration, 0])
        moved = jax.jit(unrolled_update, static_argnums=0)(
            recipe.model,
            rest[2].params,
            {},
            batches[:iteration],
            targets[:iteration],
            RATE,
        )
        expected = jax.tree.map(np.add, rest[2].params, moved)
        assert_close(expected, seen.params)
        first = batches[iteration, :1].reshape(1, *recipe.model.input_shape)
        own = per_example_gradients(
            recipe.model, seen.params, {}, first, targets[iteration, :1]
        )
        assert_close(jax.tree.map(lambda leaf: leaf[0], own), seen.sent)


def test_taps_change_nothing_but_the_draw():
    recipe, population, key, state = setup(
        defenses.fed_cdp(clip=0.05, sigma=0.0), local_steps=2
    )
    observation = observe_many(recipe, population, key, state, Leakage.SERVER, [1, 2])
    after, _ = run_round(recipe, population, key, state, np.array([1, 2]))
    mean = mean_over_clients(observation.gradient)
    assert_close(after_step(state.params, mean), after.params)


def test_a_later_round_leaks_something_else():
    recipe, population, key, state = setup()
    later = dataclasses.replace(state, round=state.round + 1)
    _, first = observe(recipe, population, key, state, Leakage.CLIENT, 0)
    _, second = observe(recipe, population, key, later, Leakage.CLIENT, 0)
    assert not np.array_equal(first.inputs, second.inputs)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"clients": []}, "at least one client"),
        ({"clients": [6]}, r"client 6 is outside \[0, 6\)"),
        ({"clients": [1, 1]}, "once in a round"),
        ({"iteration": 1}, "iteration 1 is outside"),
        ({"example": 3}, "example 3 is outside"),
    ],
)
def test_bad_questions_are_refused_in_words(changes, words):
    asked = {"clients": [0], "iteration": 0, "example": 0} | changes
    with pytest.raises(InputError, match=words):
        observe_many(*setup(), Leakage.EXAMPLE, **asked)


def crowd(defense, clients=100):
    """Many clients with one step each, so that noise can be told from updates."""
    data = make_data((5,))
    net = build_model("mlp", data.shape, CLASSES)
    held = np.random.default_rng(0).integers(0, 30, (clients, 4))
    setting = Setting(
        clients=clients, clients_per_round=clients, local_steps=1, batch_size=2,
        examples=4, learning_rate=1e-6,
    )  # fmt: skip
    recipe = Recipe.of(net, defense, setting)
    key = jax.random.key(0)
    state = initial_state(recipe, net.init(key), net.initial_buffers(key))
    return recipe, Population.of(data, held), KEY, state


def in_groups(parts, size, **asked):
    """Returns the rows of the round that is read in groups of clients."""
    groups = [
        observe_many(*parts, Leakage.SERVER, clients, **asked).sent
        for clients in np.split(np.arange(100), range(size, 100, size))
    ]
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *groups)


def rows(sent):
    leaves = [np.asarray(leaf).reshape(len(leaf), -1) for leaf in jax.tree.leaves(sent)]
    return np.concatenate(leaves, axis=1)


def test_the_servers_noise_is_one_draw_per_client_also_in_groups():
    parts = crowd(defenses.fed_sdp(clip=1.0, sigma=1.0))
    whole = rows(observe_many(*parts, Leakage.SERVER, range(100)).sent)
    apart = rows(in_groups(parts, 32))
    correlation = np.corrcoef(apart) - np.eye(100)
    assert np.abs(correlation).max() < 0.1  # 10,000 coordinates: chance reaches 0.05
    np.testing.assert_allclose(apart, whole, rtol=1e-5, atol=1e-6)


TOGETHER = {
    "l2-max": Defense("l2-max", server=sanitize(clip=1.0, sigma=0.5, l2_max=True)),
    "one draw": Defense(
        "batch", server=sanitize(clip=1.0, sigma=0.5, noise_at=NoiseAt.BATCH)
    ),
    "with a state": defenses.quantile_clip(at=Point.SERVER),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=[pytest.mark.slow] * (n != "with a state"))
        for n in TOGETHER
    ],
)
def test_what_looks_at_the_round_sees_it_whole_in_every_group(name):
    parts = crowd(TOGETHER[name])
    everybody = range(100)
    whole = observe_many(*parts, Leakage.SERVER, everybody, participants=everybody)
    apart = in_groups(parts, 50, participants=everybody)
    np.testing.assert_array_equal(rows(apart), rows(whole.sent))
    recipe, population, key, state = parts
    after, _ = run_round(recipe, population, key, state, np.arange(100))
    mean = mean_over_clients(whole.sent)
    moved = jax.tree.map(lambda p, sent: np.asarray(p) + sent, state.params, mean)
    assert_close(moved, after.params)
    with pytest.raises(InputError, match="say who takes part"):
        observe_many(*parts, Leakage.SERVER, [0, 1])
    with pytest.raises(InputError, match="take part in the round"):
        observe_many(*parts, Leakage.SERVER, [0, 1], participants=[0, 2])
