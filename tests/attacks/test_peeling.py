"""Peeling: what each layer tells, refusals, and a digit."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradaudit.attacks.peeling import Peeling, _read_by, _Seen, _shapes, _Stage
from gradaudit.data.catalogue import load_dataset
from gradaudit.errors import InputError
from gradaudit.models.gradients import one_hot
from gradaudit.models.model import INPUTS
from gradaudit.models.networks import build_model
from gradaudit.types import LocalTraining, Observation

WITH_CONVOLUTIONS = ("cpl", "cnn", "ldp-cnn")


def leaked(name, count=1, seed=0):
    data = load_dataset("digits")
    model = build_model(name, data.shape, data.classes)
    params = model.init(jax.random.key(seed))
    inputs = jnp.asarray(data.inputs[:count])
    targets = one_hot(jnp.asarray(data.labels[:count]), model.classes)
    gradient = jax.grad(model.loss)(params, {}, inputs, targets)
    training = LocalTraining(batch_size=count)
    return model, inputs, Observation(params, gradient, training=training)


def features(model, params, inputs):
    layer = model.network.dense_layers[0]
    _, seen = model.network.apply({"params": params}, inputs, mutable=[INPUTS])
    return seen[INPUTS][layer]["inputs"][0]


@pytest.mark.parametrize("name", WITH_CONVOLUTIONS)
def test_the_first_dense_layer_tells_exactly_what_it_read(name):
    model, inputs, seen = leaked(name)
    layer = model.network.dense_layers[0]
    read, _ = _read_by(seen.params, seen.gradient, layer)
    np.testing.assert_allclose(read, features(model, seen.params, inputs)[0], atol=1e-5)


@pytest.mark.parametrize("name", WITH_CONVOLUTIONS)
def test_the_stages_make_what_the_dense_layer_reads(name):
    model, inputs, seen = leaked(name)
    values, shapes = inputs, _shapes(model, seen)
    for stage, shape in zip(model.network.stages, shapes[1:], strict=True):
        values = model.network.stage(stage, seen.params[stage], values)
        assert values.shape[1:] == shape
    expected = features(model, seen.params, inputs)
    np.testing.assert_array_equal(values.reshape(1, -1), expected)


@pytest.mark.parametrize("name", WITH_CONVOLUTIONS)
def test_the_truth_explains_every_stage_and_nothing_else_does(name):
    model, inputs, observation = leaked(name)
    stages, params = model.network.stages, observation.params
    values = [inputs[0]]
    for stage in stages:
        values.append(model.network.stage(stage, params[stage], values[-1][None])[0])
    layer = model.network.dense_layers[0]
    _, slope = _read_by(params, observation.gradient, layer)
    slope = slope.reshape(values[-1].shape)
    for depth, stage in reversed(list(enumerate(stages))):
        known = _Seen(
            params[stage], observation.gradient[stage], values[depth + 1], slope
        )
        part = _Stage(model, stage, first=False)
        assert float(part.misfit(known, values[depth])) < 1e-6
        assert float(part.misfit(known, 0.5 * values[depth] + 0.1)) > 1e-3
        slope = part.below(known, values[depth])


def test_it_rebuilds_a_digit_behind_rectifiers():
    model, inputs, seen = leaked("cnn", seed=3)
    attack = Peeling(iterations=300, rounds=4, starts=16)
    found = attack.reconstruct(jax.random.key(1), model, seen)
    error = float(jnp.sqrt(jnp.mean(jnp.square(found.inputs - inputs))))
    assert error <= 0.1
    assert int(found.labels[0]) == int(load_dataset("digits").labels[0])
    assert attack.misfit(found, seen.gradient) == float(found.objective)


def test_what_can_not_be_peeled_is_refused_in_words():
    key = jax.random.key(0)
    for name, count, words in (("mlp", 1, "does not say"), ("cnn", 2, "mixes 2")):
        model, _, seen = leaked(name, count)
        with pytest.raises(InputError, match=words):
            Peeling().reconstruct(key, model, seen)
    model, _, seen = leaked("cnn")
    with pytest.raises(InputError, match="a defense has changed"):
        Peeling().reconstruct(key, model, dataclasses.replace(seen, told=object()))


@pytest.mark.parametrize("wrong", [{"rounds": 0}, {"iterations": 0}, {"starts": 1}])
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(InputError, match="must be at least"):
        Peeling(**wrong)
