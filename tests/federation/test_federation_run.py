"""Whole trainings: who is selected, when it stops, and that it can be resumed."""

import dataclasses

import jax
import numpy as np
import pytest

from gradaudit import defenses
from gradaudit.data import load_dataset
from gradaudit.errors import InputError
from gradaudit.federation import checkpoint
from gradaudit.federation.population import Population
from gradaudit.federation.recipe import Recipe
from gradaudit.federation.sampling import ActiveSelection, FixedSize, Poisson
from gradaudit.federation.setting import Setting
from gradaudit.federation.training import Stopped, Training, train_until
from gradaudit.models.networks import build_model
from gradaudit.privacy import epsilon
from gradaudit.privacy.calibrate import affordable_rounds

KEY = jax.random.key(5)
SAMPLERS = {
    "fixed": FixedSize(20, 6),
    "poisson": Poisson(20, 6),
    "active": ActiveSelection(20, 6, dropped=0.5, explored=1 / 3),
}
SIZES = np.arange(1, 21)


@pytest.mark.parametrize("name", SAMPLERS)
def test_selection_is_inside_unique_and_repeatable(name):
    sampler = SAMPLERS[name]
    values = sampler.init(SIZES)
    counts = []
    for seed in range(30):
        chosen = sampler.select(jax.random.key(seed), values)
        again = sampler.select(jax.random.key(seed), values)
        np.testing.assert_array_equal(chosen, again)
        assert len(set(chosen.tolist())) == len(chosen)
        assert all(0 <= client < 20 for client in chosen)
        counts.append(len(chosen))
        values = sampler.learn(values, chosen, np.ones(len(chosen)), SIZES)
    if name == "poisson":
        assert 4.5 < np.mean(counts) < 7.5 and len(set(counts)) > 1
    else:
        assert set(counts) == {6}


def test_active_selection_prefers_high_loss_and_drops_the_rest():
    sampler = ActiveSelection(20, 4, dropped=0.5, sharpness=1e4, explored=0.0)
    clients = np.arange(20)
    sizes = np.full(20, 10)
    values = sampler.learn(sampler.init(sizes), clients, clients / 20.0, sizes)
    for seed in range(5):
        chosen = sampler.select(jax.random.key(seed), values)
        assert set(chosen.tolist()) == {16, 17, 18, 19}
    flat = dataclasses.replace(sampler, sharpness=0.0)
    seen = {c for s in range(40) for c in flat.select(jax.random.key(s), values)}
    assert seen == set(range(10, 20))  # the smaller half is dropped


def test_active_selection_explores_and_starts_uniformly():
    sampler = ActiveSelection(20, 4, dropped=0.8, sharpness=1e4, explored=0.5)
    fresh = sampler.init(SIZES)
    seen = {c for s in range(40) for c in sampler.select(jax.random.key(s), fresh)}
    assert seen == set(range(20))
    values = sampler.learn(fresh, np.array([3, 4]), np.array([1.0, 2.0]), SIZES)
    np.testing.assert_allclose(values[[3, 4]], [4 / 210, 10 / 210], rtol=1e-6)
    for seed in range(5):
        chosen = sampler.select(jax.random.key(seed), values)
        assert {3, 4} <= set(chosen.tolist()) and len(chosen) == 4


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: FixedSize(5, 6), "1..5, got 6"),
        (lambda: Poisson(5, 0), "1..5, got 0"),
        (lambda: ActiveSelection(10, 2, dropped=1.5), "dropped must lie"),
        (lambda: ActiveSelection(10, 5, dropped=0.9), "leaves 1"),
    ],
)
def test_impossible_samplers_are_refused(make, words):
    with pytest.raises(InputError, match=words):
        make()


SETTING = Setting(
    clients=8, clients_per_round=3, local_steps=4, batch_size=4, rounds=6, examples=40
)


@pytest.fixture(scope="module")
def training() -> Training:
    data = load_dataset("cancer", "train")
    model = build_model("mlp", data.shape, data.classes)
    held = np.random.default_rng(0).integers(0, len(data), (8, 40))
    return Training(
        recipe=Recipe.of(model, defenses.fed_cdp(clip=1.0, sigma=0.05), SETTING),
        population=Population.of(data, held),
        sampler=ActiveSelection(8, 3, dropped=0.25),
        validation=load_dataset("cancer", "test"),
    )


def begin(training: Training):
    return training.start(training.recipe.model.init(jax.random.key(1)))


def test_a_resumed_training_ends_in_the_same_bits(training, tmp_path):
    whole, stopped = train_until(training, KEY, begin(training), 6)
    assert stopped is Stopped.ROUNDS and len(whole.history) == 6
    half, _ = train_until(training, KEY, begin(training), 3)
    path = tmp_path / "folder" / "checkpoint.npz"
    checkpoint.save(path, half, "this")
    loaded = checkpoint.load(path, begin(training), "this")
    assert loaded.history == half.history
    resumed, _ = train_until(training, KEY, loaded, 6)
    for one, two in zip(
        jax.tree.leaves((whole.state, whole.values)),
        jax.tree.leaves((resumed.state, resumed.values)),
        strict=True,
    ):
        np.testing.assert_array_equal(one, two)
    assert [r.accuracy for r in whole.history] == [r.accuracy for r in resumed.history]


def test_checkpoints_that_do_not_fit_are_refused(training, tmp_path):
    path = tmp_path / "checkpoint.npz"
    with pytest.raises(InputError, match="there is no checkpoint"):
        checkpoint.load(path, begin(training), "this")
    checkpoint.save(path, begin(training), "this")
    assert not path.with_suffix(".partial").exists()
    with pytest.raises(InputError, match="another training"):
        checkpoint.load(path, begin(training), "that")
    wider = build_model("mlp", (31,), 2).init(KEY)
    with pytest.raises(InputError, match="does not fit"):
        checkpoint.load(path, training.start(wider), "this")
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InputError, match="can't be read"):
        checkpoint.load(path, begin(training), "this")


def test_targets_and_interrupts_stop_at_a_finished_round(training):
    progress, stopped = train_until(training, KEY, begin(training), 6, 0.01)
    assert stopped is Stopped.ACCURACY and len(progress.history) == 1

    def interrupt(progress):
        if len(progress.history) == 2:
            raise KeyboardInterrupt

    progress, stopped = train_until(
        training, KEY, begin(training), 6, on_round=interrupt
    )
    assert stopped is Stopped.INTERRUPTED and int(progress.state.round) == 2


def test_a_model_that_explodes_stops_the_training(training):
    recipe = dataclasses.replace(training.recipe, per_example=(), learning_rate=1e30)
    wild = dataclasses.replace(training, recipe=recipe)
    _, stopped = train_until(wild, KEY, begin(wild), 6)
    assert stopped is Stopped.DIVERGED


def test_validation_can_be_rarer(training):
    rare = dataclasses.replace(training, evaluate_every=2)
    progress, _ = train_until(rare, KEY, begin(rare), 3)
    measured = [record.accuracy is not None for record in progress.history]
    assert measured == [False, True, False]


def test_small_clients_are_refused(training):
    recipe = dataclasses.replace(training.recipe, batch_size=41)
    with pytest.raises(InputError, match="holds 40 examples, fewer than"):
        dataclasses.replace(training, recipe=recipe)


@pytest.mark.parametrize(
    "defense", [defenses.fed_cdp(), defenses.fed_sdp()], ids=lambda d: d.name
)
def test_a_budget_pays_for_the_rounds_before_it_runs_out(defense):
    setting = Setting(rounds=40)
    half = epsilon(defense, dataclasses.replace(setting, rounds=20)).accounted_epsilon
    rounds = affordable_rounds(half * 1.0001, defense, setting, 10)
    assert rounds == 20
    assert affordable_rounds(1e6, defense, setting, 10) == 40
    with pytest.raises(InputError, match="not even one round"):
        affordable_rounds(1e-6, defense, setting, 10)


def test_no_noise_has_no_budget():
    with pytest.raises(InputError, match="claims no finite epsilon"):
        affordable_rounds(1.0, defenses.none(), Setting(), 10)
