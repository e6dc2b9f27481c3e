"""What every attack must hold, over the table of all of them."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradaudit.attacks import PRESETS, Victims, cpl
from gradaudit.attacks.likelihood import truth_in_nats
from gradaudit.attacks.objective import objective
from gradaudit.attacks.presets import parse
from gradaudit.attacks.priors import in_nats
from gradaudit.data import load_dataset
from gradaudit.errors import InputError
from gradaudit.models.gradients import one_hot
from gradaudit.models.model import from_function
from gradaudit.models.networks import build_model
from gradaudit.types import LocalTraining, Observation, Status
from tests.attacks.attack_cases import (
    IMAGE_MODELS,
    MATCHING,
    MODEL,
    QUICK,
    digit_victims,
    leak,
    objective_of,
    quick,
)


def _at_truth(layout, victim):
    """The position that stands for the true data."""
    pixels = jnp.asarray(victim.inputs).reshape(-1)
    if not layout.searches_labels:
        return pixels
    scores = 40.0 * one_hot(jnp.asarray(victim.labels), layout.classes)
    return jnp.concatenate([pixels, scores.reshape(-1)])


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _value(distance, layout, model, observation, labels, position):
    """One program for all attacks that share a distance and a layout."""
    evaluate = objective(distance, (), layout, model, observation, False, labels)
    return evaluate.total(position)


def _each_on_its_own(name, model_name, told):
    """By default every network under one attack, and every attack on one network."""
    return model_name == MODEL or (name == "cpl" and told)


@pytest.mark.parametrize(
    ("name", "model_name", "told"),
    [
        pytest.param(
            *case,
            id="-".join((*case[:2], "true labels" if case[2] else "inferred")),
            marks=[pytest.mark.slow] * (not _each_on_its_own(*case)),
        )
        for case in itertools.product(MATCHING, IMAGE_MODELS, (True, False))
    ],
)
def test_the_objective_is_zero_at_the_truth(name, model_name, told):
    digits = load_dataset("digits")
    model = build_model(model_name, digits.shape, digits.classes)
    observation, victim = leak(model, digits.inputs[:2], digits.labels[:2])
    matching = PRESETS[name].make()
    labels = jnp.asarray(victim.labels, jnp.int32)
    if not told:  # as the search itself has them
        found = matching.labels(jax.random.key(5), model, observation)
        labels = jnp.zeros_like(labels) if found is None else found
    layout, _ = objective_of(matching, model, observation, labels)
    position = _at_truth(layout, victim)
    value_at = functools.partial(
        _value, matching.distance, layout, model, observation, labels
    )
    assert float(value_at(position)) <= 1e-8 < float(value_at(position + 0.3))


@pytest.mark.parametrize("wide", [False, True], ids=["float32", "float64"])
@pytest.mark.parametrize("name", MATCHING)
def test_the_objective_has_the_precision_of_its_position(name, wide):
    """Also where jax computes in doubles, and for tables, which have no neighbours."""
    table = load_dataset("cancer")
    model = build_model("mlp", table.shape, table.classes)
    observation, victim = leak(model, table.inputs[:1], table.labels[:1])
    with jax.enable_x64(wide):
        labels = jnp.asarray(victim.labels, jnp.int32)
        matching = PRESETS[name].make()
        layout, evaluate = objective_of(matching, model, observation, labels)
        position = jax.ShapeDtypeStruct((layout.size,), jnp.float32)
        value, slope = jax.eval_shape(evaluate, position)
    assert value.dtype == slope.dtype == jnp.float32


# Other weights of the same distances and priors: one of each kind is enough by default.
ALIKE = {"cpl", "idlg", "gradinversion", "tableak"}


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.slow] * (n in ALIKE)) for n in MATCHING],
)
def test_the_gradient_of_the_objective_is_its_gradient(name):
    digits = load_dataset("digits")
    model = build_model(MODEL, digits.shape, digits.classes)
    observation, victim = leak(model, digits.inputs[:1], digits.labels[:1])
    matching = PRESETS[name].make()
    labels = jnp.asarray(victim.labels)
    layout, evaluate = objective_of(matching, model, observation, labels)
    position = jax.random.uniform(jax.random.key(3), (layout.size,))

    def unpack(where):
        soft = layout.searches_labels and jax.nn.softmax(layout.scores(where))
        targets = soft if layout.searches_labels else one_hot(labels, 10)
        return layout.images(where), targets

    def another_way(where):
        """The slope of the loss' directional derivative along the residual."""
        gradient = jax.grad(model.loss)(observation.params, {}, *unpack(where))
        value, residual = jax.value_and_grad(
            lambda g: matching.distance(g, observation.gradient)
        )(gradient)

        def directional(z):
            loss = lambda p: model.loss(p, {}, *unpack(z))  # noqa: E731
            return jax.jvp(loss, (observation.params,), (residual,))[1]

        def penalty(z):
            read = observation.gradient
            nat = matching.distance.nat(None, read)
            nat = jnp.maximum(nat, value / truth_in_nats(None, read))
            units = [nat if in_nats(prior) else 1.0 for prior in matching.priors]
            pairs = zip(units, matching.priors, strict=True)
            return sum((u * p(layout.images(z)) for u, p in pairs), 0.0 * z[0])

        extra, slope = jax.value_and_grad(penalty)(where)
        return value + extra, jax.grad(directional)(where) + slope

    value, slope = jax.jit(evaluate)(position)
    expected, reference = jax.jit(another_way)(position)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    np.testing.assert_allclose(
        slope, reference, atol=1e-5 * float(jnp.abs(reference).max())
    )


# These are run whole, and scored, by test_scenario: what they hand in is read there.
SCORED = {"aware", "gauss-newton", "imprint"}


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.slow] * (n in SCORED)) for n in PRESETS],
)
def test_every_attack_hands_in_what_the_contract_names(name):
    if name == "analytic":
        data = load_dataset("cancer")
        model = build_model("mlp", data.shape, data.classes)
    else:
        data = load_dataset("digits")
        net = "mlp-wide" if name == "spear" else MODEL
        model = build_model(net, data.shape, data.classes)
    attack = PRESETS[name].make()
    model = attack.altered(model, data.inputs[-64:])
    observation, _ = leak(model, data.inputs[:1], data.labels[:1])
    attack = quick(attack, 12) if attack.iterations else attack
    result = attack.reconstruct(jax.random.key(0), model, observation)
    assert result.inputs.shape == (1, *model.input_shape)
    assert result.labels.shape == (1,)
    assert np.isfinite(np.asarray(result.inputs)).all()
    assert int(result.evaluations) >= int(result.iterations)
    assert int(result.status) not in (Status.RUNNING, Status.INTERRUPTED)
    assert observation.labels is None


def test_equal_seeds_give_equal_bytes_and_another_seed_does_not():
    model, victims, _ = digit_victims()
    runs = [
        QUICK.reconstruct_many(jax.random.key(seed), model, victims).inputs.tobytes()
        for seed in (0, 0, 1)
    ]
    assert runs[0] == runs[1] != runs[2]


def test_a_victim_alone_is_rebuilt_as_among_others():
    model, victims, digits = digit_victims()
    together = QUICK.reconstruct_many(jax.random.key(0), model, victims)
    first = Victims(1, victims.observe)  # the id, so the key, stays the same
    alone = QUICK.reconstruct_many(jax.random.key(0), model, first)
    # L-BFGS amplifies rounding; both are the same image
    assert np.abs(alone.inputs[0] - together.inputs[0]).max() < 0.01
    assert np.abs(alone.inputs[0, 0] - digits.inputs[0]).max() < 0.01


@pytest.mark.slow
def test_slots_change_no_number():
    model, victims, digits = digit_victims(12)
    few, many = (
        QUICK.reconstruct_many(jax.random.key(0), model, victims, slots)
        for slots in (2, 8)
    )
    for name in ("inputs", "objective", "evaluations", "status"):
        np.testing.assert_array_equal(getattr(few, name), getattr(many, name))
    errors = np.sqrt(
        np.mean(np.square(few.inputs[:, 0] - digits.inputs[:12]), (1, 2, 3))
    )
    assert (errors <= 0.1).mean() > 0.9


def test_equal_configurations_are_traced_once():
    digits = load_dataset("digits")
    traces = []
    base = build_model(MODEL, digits.shape, digits.classes)

    def logits(params, inputs):
        traces.append(1)
        return base.apply(params, {}, inputs)

    model = from_function(logits, base.init, (8, 8, 1), 10, output_layer="output")
    observation, _ = leak(base, digits.inputs[:1], digits.labels[:1])
    QUICK.reconstruct(jax.random.key(0), model, observation)
    first = len(traces)
    again, _ = leak(base, digits.inputs[5:6], digits.labels[5:6], seed=4)
    quick(cpl(), 12).reconstruct(jax.random.key(9), model, again)
    # Another draw of the network, another budget and more restarts are data as well.
    quick(cpl(), 7).reconstruct(jax.random.key(9), model, again)
    dataclasses.replace(QUICK, restarts=2).reconstruct_many(
        jax.random.key(9), model, Victims.single(again), slots=1
    )
    assert len(traces) == first > 0


def test_the_best_restart_is_chosen_by_the_attackers_objective():
    model, victims, _ = digit_victims()
    one = QUICK.reconstruct_many(jax.random.key(0), model, victims)
    three = dataclasses.replace(QUICK, restarts=3)
    many = three.reconstruct_many(jax.random.key(0), model, victims, slots=4)
    assert (many.objective <= one.objective * (1 + 1e-2) + 1e-9).all()
    assert (many.evaluations > one.evaluations).all()


def test_a_diverging_victim_falls_back_and_the_others_go_on():
    model, victims, digits = digit_victims()

    def observe(ids):
        observed = victims.observe(ids)
        spoiled = jax.tree.map(np.array, observed.sent)
        for leaf in jax.tree.leaves(spoiled):
            leaf[ids == 1] = 1e30  # squared, it overflows float32
        return dataclasses.replace(observed, sent=spoiled)

    result = QUICK.reconstruct_many(jax.random.key(0), model, Victims(4, observe))
    assert result.status[1] == Status.DIVERGED
    assert np.isfinite(result.inputs).all()
    for victim in (0, 2):
        assert np.abs(result.inputs[victim, 0] - digits.inputs[victim]).max() < 0.1


def test_interruption_leaves_a_valid_partial_result():
    model, victims, _ = digit_victims(12)
    calls = []

    def stop_soon(snapshot):
        calls.append(snapshot)
        raise KeyboardInterrupt

    result = QUICK.reconstruct_many(
        jax.random.key(0), model, victims, slots=4, watcher=stop_soon
    )
    begun = np.isfinite(result.objective)
    assert len(calls) == 1
    assert 0 < begun.sum() < 12
    assert np.isfinite(result.inputs[begun]).all()
    assert (result.status[begun] == Status.INTERRUPTED).all()
    assert (result.status[~begun] == Status.MISSING).all()
    assert np.isnan(result.inputs[~begun]).all()


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda g: jax.tree.map(jnp.zeros_like, g), "zero everywhere"),
        (lambda g: jax.tree.map(lambda x: x * jnp.nan, g), "NaN or infinity"),
        (lambda g: jax.tree.map(lambda x: x / 0.0, g), "NaN or infinity"),
        (lambda g: {"conv1": g["conv1"]}, "structure"),
        (lambda g: jax.tree.map(lambda x: x[..., :1], g), "must have shape"),
    ],
)
@pytest.mark.parametrize("name", ["cpl", "gradinv"])
def test_unusable_gradients_are_refused_in_words(name, spoil, words):
    digits = load_dataset("digits")
    model = build_model(MODEL, digits.shape, digits.classes)
    observation, _ = leak(model, digits.inputs[:1], digits.labels[:1])
    bad = dataclasses.replace(observation, sent=spoil(observation.sent))
    with pytest.raises(InputError, match=words):
        PRESETS[name].make().reconstruct(jax.random.key(0), model, bad)


@pytest.mark.parametrize("label", [-1, 10, 99])
def test_impossible_known_labels_are_refused(label):
    digits = load_dataset("digits")
    model = build_model(MODEL, digits.shape, digits.classes)
    observation, _ = leak(model, digits.inputs[:1], digits.labels[:1])
    bad = dataclasses.replace(observation, labels=jnp.asarray([label]))
    with pytest.raises(InputError, match=str(label)):
        cpl(labels="known").reconstruct(jax.random.key(0), model, bad)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("cpll", "did you mean 'cpl'"),
        ("cpl:inits=uniform", "did you mean 'init'"),
        ("cpl:init=patterend", "did you mean 'patterned'"),
        ("cpl:iterations=many", "whole number"),
        ("cpl:iterations=0", "at least 1"),
        ("cpl:restarts=0", "at least 1"),
        ("cpl:iterations", "key=value"),
        ("gradinv:variation=-1", "must not be negative"),
        ("gradinv:learning-rate=0", "must be positive"),
    ],
)
def test_wrong_words_are_answered_in_words(text, words):
    with pytest.raises(InputError, match=words):
        parse(text)


def test_known_labels_need_a_threat_model_that_gives_them():
    digits = load_dataset("digits")
    model = build_model(MODEL, digits.shape, digits.classes)
    observation, _ = leak(model, digits.inputs[:1], digits.labels[:1])
    with pytest.raises(InputError, match="needs to know the labels"):
        cpl(labels="known").reconstruct(jax.random.key(0), model, observation)


def test_an_observation_has_no_room_for_the_truth():
    fields = {field.name for field in dataclasses.fields(Observation)}
    assert fields == {
        "params",
        "sent",
        "buffers",
        "sent_buffers",
        "labels",  # only if the threat grants them
        "memory",
        "public",  # examples of the same kind, to an aware adversary
        "leakage",
        "training",
        "told",  # the defense, to an aware adversary
        "others",  # observations like this one: further looks
    }
    described = {field.name for field in dataclasses.fields(LocalTraining)}
    assert described == {"batch_size", "local_steps", "learning_rate", "optimizer"}
