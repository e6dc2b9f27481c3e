"""SPEAR: whole batches come back exactly, or it says that they did not."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from gradaudit.attacks import PRESETS
from gradaudit.attacks.spear import Spear
from gradaudit.data import load_dataset
from gradaudit.errors import InputError
from gradaudit.models.gradients import one_hot, per_example_gradients
from gradaudit.models.networks import build_model
from gradaudit.report import metrics
from gradaudit.types import Leakage, LocalTraining, Observation, Status

KEY = jax.random.key(0)
MOST, RATE = 12, 0.05


@functools.cache
def examples(model_name: str = "mlp-wide"):
    """Returns a model, its parameters and the gradients of some single digits."""
    digits = load_dataset("digits")
    chosen = digits.take(np.random.default_rng(1).permutation(len(digits))[:MOST])
    model = build_model(model_name, digits.shape, digits.classes)
    params = model.init(jax.random.key(1))
    targets = one_hot(chosen.labels, digits.classes)
    gradients = per_example_gradients(model, params, {}, chosen.inputs, targets)
    return model, params, jax.tree.map(np.asarray, gradients), chosen


def update_of(batch: int, weights=None):
    """Returns what a client sends after one step of SGD, rounding included."""
    model, params, gradients, chosen = examples()
    scale = np.ones(batch, np.float32) if weights is None else weights

    def sent(received, units):
        mean = np.tensordot(scale / batch, units[:batch], 1)
        after = np.float32(received) - np.float32(RATE) * np.float32(mean)
        return after - np.float32(received)

    moved = jax.tree.map(sent, params, gradients)
    training = LocalTraining(batch_size=batch, learning_rate=RATE)
    seen = Observation(params, moved, leakage=Leakage.CLIENT, training=training)
    return model, seen, chosen.take(np.arange(batch))


def errors(found, truth):
    order = metrics.match(truth.inputs, np.asarray(found.inputs))
    wrong = (truth.inputs - np.asarray(found.inputs)[order]).reshape(len(order), -1)
    return np.sqrt(np.mean(np.square(wrong), axis=1)), np.asarray(found.labels)[order]


@pytest.mark.parametrize("batch", [1, 2, 5, MOST])
def test_whole_batches_come_back_exactly_with_their_labels(batch):
    model, seen, truth = update_of(batch)
    found = Spear().reconstruct(KEY, model, seen)
    wrong, labels = errors(found, truth)
    assert int(found.status) == Status.CONVERGED and float(found.objective) <= 1e-4
    assert wrong.max() <= 1e-4, wrong
    np.testing.assert_array_equal(labels, truth.labels)


def test_clipping_examples_one_by_one_protects_nothing():
    weights = np.asarray([1.0, 0.02, 0.5, 0.1, 0.03], np.float32)
    model, seen, truth = update_of(5, weights)
    wrong, _ = errors(Spear().reconstruct(KEY, model, seen), truth)
    assert wrong.max() <= 1e-3


def test_noise_ends_it_and_it_says_so():
    model, seen, truth = update_of(3)
    rng = np.random.default_rng(0)
    noisy = jax.tree.map(
        lambda leaf: leaf + np.float32(1e-3) * rng.standard_normal(leaf.shape),
        seen.sent,
    )
    found = Spear(rounds=2).reconstruct(
        KEY, model, dataclasses.replace(seen, sent=noisy)
    )
    assert int(found.status) == Status.BUDGET and np.isfinite(found.inputs).all()
    assert errors(found, truth)[0].min() > 0.1


def test_equal_keys_find_the_same():
    model, seen, _ = update_of(5)
    first, second = (Spear().reconstruct(KEY, model, seen) for _ in range(2))
    jax.tree.map(np.testing.assert_array_equal, first, second)


def test_what_it_does_not_fit_is_refused_in_words():
    model, seen, _ = update_of(2)
    many = LocalTraining(batch_size=200)
    steps = LocalTraining(batch_size=1, local_steps=2)
    bare = {**seen.params, "dense1": {"kernel": seen.params["dense1"]["kernel"]}}
    for change, words in (
        ({"training": many}, "more units in layer 'dense1' than .* 200 for 200"),
        ({"training": steps}, "2 local steps is a sum of several"),
        ({"params": bare}, "needs the bias"),
    ):
        with pytest.raises(InputError, match=words):
            other = dataclasses.replace(seen, **change)
            Spear().reconstruct(KEY, model, other)
    convolution = build_model("cpl", (8, 8, 1), 10)
    assert "dense layer that reads the input" in Spear().unfit(convolution, seen)
    with pytest.raises(InputError, match="rounds must be at least 1"):
        PRESETS["spear"].make(rounds=0)
