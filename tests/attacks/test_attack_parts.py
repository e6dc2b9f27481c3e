"""The parts that attacks are made of."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradaudit.attacks import Analytic, Victims, cpl
from gradaudit.attacks.distances import (
    CONVOLUTIONS,
    DENSE,
    Cosine,
    SquaredL2,
    TensorCosine,
)
from gradaudit.attacks.labels import Counts, FromBias, LastLayer
from gradaudit.attacks.matching import Matching, Stop
from gradaudit.attacks.optimizers import Adam, LineSearchLBFGS
from gradaudit.attacks.priors import OutsideBox, SmallPixels, TotalVariation
from gradaudit.attacks.starts import (
    Colour,
    Constant,
    Normal,
    Patterned,
    PublicImage,
    Uniform,
)
from gradaudit.data import load_dataset
from gradaudit.errors import InputError
from gradaudit.models.networks import build_model
from tests.attacks.attack_cases import MODEL, QUICK, digit_victims, leak, quick

KEY = jax.random.key(0)
INITS = [
    Patterned(2),
    Patterned(4),
    Patterned(8),
    Uniform(),
    Normal(),
    Constant(0.2),
    Colour(),
]


@pytest.mark.parametrize("shape", [(3, 28, 28, 1), (2, 25, 25, 3), (4, 30)])
@pytest.mark.parametrize("init", INITS, ids=repr)
def test_starts_have_the_shape_and_follow_the_key(init, shape):
    values = init(KEY, shape)
    assert values.shape == shape and values.dtype == jnp.float32
    assert bool(jnp.all(values == init(KEY, shape)))
    random = not isinstance(init, Constant)
    assert bool(jnp.any(values != init(jax.random.key(1), shape))) == random


@pytest.mark.parametrize("tiles", [2, 4, 8])
def test_patterned_starts_repeat_their_patch(tiles):
    side = 32
    patch = side // tiles
    values = Patterned(tiles)(KEY, (1, side, side, 3))
    np.testing.assert_array_equal(values[:, :patch], values[:, -patch:])
    np.testing.assert_array_equal(values[:, :, :patch], values[:, :, -patch:])
    assert float(values[0, :patch, :patch].std()) > 0.2


def test_a_public_image_starts_every_example():
    image = np.linspace(0, 1, 16, dtype=np.float32).reshape(4, 4, 1)
    init = PublicImage.of(image)
    np.testing.assert_array_equal(init(KEY, (3, 4, 4, 1))[2], image)
    assert hash(init) == hash(PublicImage.of(image.copy()))
    with pytest.raises(InputError, match="public image has shape"):
        init(KEY, (1, 8, 8, 1))


@pytest.mark.parametrize("layers", [(), CONVOLUTIONS, DENSE, ("conv2",)])
@pytest.mark.parametrize("kind", [SquaredL2, Cosine, TensorCosine])
def test_distances_are_zero_at_equality_and_see_only_their_layers(kind, layers):
    model, victims, _ = digit_victims(2)
    gradient = victims.observe(np.asarray([0])).gradient
    other = victims.observe(np.asarray([1])).gradient
    distance = kind(layers)
    assert float(distance(gradient, gradient)) <= 1e-7
    assert float(distance(gradient, other)) > 1e-4
    if layers:  # a change elsewhere is not seen
        path = "output" if layers != DENSE else "conv1"
        changed = {**gradient, path: jax.tree.map(lambda x: x + 1.0, gradient[path])}
        assert float(distance(changed, gradient)) <= 1e-7


def test_a_distance_without_tensors_is_refused():
    gradient = {"conv1": {"kernel": jnp.ones(3)}}
    with pytest.raises(InputError, match="no tensor starts with lstm"):
        SquaredL2(("lstm",))(gradient, gradient)


@pytest.mark.parametrize("kind", [Cosine, TensorCosine])
def test_cosine_ignores_scale(kind):
    _, victims, _ = digit_victims(2)
    a, b = (victims.observe(np.asarray([i])).gradient for i in (0, 1))
    scaled = jax.tree.map(lambda x: 7.0 * x, a)
    np.testing.assert_allclose(kind()(scaled, b), kind()(a, b), rtol=1e-4)


def test_priors():
    flat = jnp.full((1, 4, 4, 1), 0.5)
    stripes = jnp.tile(jnp.asarray([0.0, 1.0]), 8).reshape(1, 4, 4, 1)
    assert float(TotalVariation(1.0)(flat)) == 0.0
    np.testing.assert_allclose(TotalVariation(1.0)(stripes), 1.0)
    np.testing.assert_allclose(SmallPixels(2.0)(flat), 0.5)
    assert float(OutsideBox(1.0)(flat)) == 0.0
    np.testing.assert_allclose(OutsideBox(1.0)(flat + 1.0), 0.25)


@pytest.mark.parametrize("strategy", [LastLayer(), FromBias()])
@pytest.mark.parametrize(
    "name", ["digits", pytest.param("photos", marks=pytest.mark.slow), "lfw-patches"]
)
def test_the_label_of_one_example_is_read_off_its_gradient(name, strategy):
    data = load_dataset(name)
    model = build_model("cpl", data.shape, data.classes)
    for index in range(10):
        one = slice(index, index + 1)
        observation, victim = leak(model, data.inputs[one], data.labels[one], index)
        assert strategy(KEY, model, observation).tolist() == victim.labels.tolist()


@pytest.mark.parametrize("distinct", [True, False])
@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.slow), 8])
def test_the_labels_of_a_batch_are_recovered_with_repeats(size, distinct):
    data = load_dataset("digits")
    model = build_model("cpl", data.shape, data.classes)
    rng = np.random.default_rng(size)
    exact = 0
    count = jax.jit(functools.partial(Counts(), KEY, model))
    for batch in range(50):
        if distinct:
            classes = rng.permutation(10)[:size]
            rows = [rng.choice(np.flatnonzero(data.labels == c)) for c in classes]
        else:
            rows = rng.choice(len(data), size)
        labels = data.labels[rows]
        observation, _ = leak(model, data.inputs[rows], labels, seed=batch)
        exact += count(observation).tolist() == sorted(labels.tolist())
    assert exact >= 45


def test_who_tries_several_labels_has_the_right_ones_among_them():
    """Batches that the mean over its own inputs mistakes are found by some draw."""
    data = load_dataset("photos")
    model = build_model("cpl", data.shape, data.classes)

    @jax.jit
    def tries(observation):
        draw = functools.partial(Counts(drawn=True), model=model)
        each = jax.vmap(lambda key: draw(key, observation=observation))
        return each(jax.random.split(KEY, 16)), Counts()(KEY, model, observation)

    mistaken, found = 0, 0
    for batch in range(40):
        rows = np.random.default_rng([8, batch]).choice(len(data), 8)
        labels = sorted(data.labels[rows].tolist())
        observation, _ = leak(model, data.inputs[rows], data.labels[rows], seed=batch)
        drawn, first = (found.tolist() for found in tries(observation))
        mistaken += first != labels
        found += labels in [first, *drawn]
    assert 1 <= mistaken <= 8 and found >= 39


def test_more_examples_than_classes_still_give_labels():
    data = load_dataset("lfw-patches")
    model = build_model("cpl", data.shape, data.classes)
    observation, victim = leak(model, data.inputs[90:110], data.labels[90:110])
    found = np.asarray(Counts()(KEY, model, observation))
    assert found.shape == (20,)
    assert abs(int(found.sum()) - int(victim.labels.sum())) <= 1


def test_labels_need_a_named_output_layer():
    model, victims, _ = digit_victims(1)
    nameless = dataclasses.replace(model, output_layer=None)
    with pytest.raises(InputError, match="names no output_layer"):
        QUICK.reconstruct_many(KEY, nameless, victims)


@pytest.mark.parametrize(
    "optimizer", [Adam(0.05), Adam(0.05, signed=True), LineSearchLBFGS()], ids=repr
)
def test_other_optimizers_reduce_the_objective(optimizer):
    model, victims, _ = digit_victims(2, "mlp")
    attack = Matching(optimizer=optimizer, stop=Stop(iterations=60, patience=60))
    objectives = []
    attack.reconstruct_many(
        KEY, model, victims, watcher=lambda s: objectives.extend(s.objective)
    )
    assert (objectives[-1] < 0.2 * objectives[0]).all()


def test_the_box_keeps_pixels_inside():
    model, victims, _ = digit_victims(2, "mlp")
    attack = Matching(
        optimizer=Adam(0.3, signed=True), box=True, stop=Stop(iterations=20)
    )
    result = attack.reconstruct_many(KEY, model, victims)
    assert result.inputs.min() >= 0.0 and result.inputs.max() <= 1.0


def test_the_cyclic_scheme_moves_one_input_at_a_time():
    data = load_dataset("digits")
    model = build_model(MODEL, data.shape, data.classes)
    observation, _ = leak(model, data.inputs[:2], data.labels[:2])
    seen = []
    attack = quick(cpl(cyclic=True), 4)
    attack.reconstruct_many(
        KEY,
        model,
        Victims.single(observation),
        watcher=lambda s: seen.extend(np.asarray(s.current[:, 0])),
    )
    moved = [
        np.abs(b - a).max(axis=(1, 2, 3)) > 0
        for a, b in zip(seen[:-1], seen[1:], strict=True)
    ]
    assert [m.tolist() for m in moved] == [[False, True], [True, False], [False, True]]


def test_the_cyclic_scheme_needs_a_batch():
    model, victims, _ = digit_victims(1)
    with pytest.raises(InputError, match="one input"):
        quick(cpl(cyclic=True)).reconstruct_many(KEY, model, victims)


def test_a_batch_of_two_is_rebuilt():
    from gradaudit.report import metrics

    data = load_dataset("digits")
    model = build_model("cpl", data.shape, data.classes)
    rows = [0, 1]  # a zero and a one
    observation, victim = leak(model, data.inputs[rows], data.labels[rows])
    result = quick(cpl(), 80).reconstruct(KEY, model, observation)
    guess = np.clip(np.asarray(result.inputs), 0, 1)
    guess = guess[metrics.match(victim.inputs, guess)]
    assert metrics.rmse(victim.inputs.reshape(-1), guess.reshape(-1)) < 0.1


def test_the_analytic_attack_is_exact_on_a_table():
    data = load_dataset("cancer")
    model = build_model("mlp", data.shape, data.classes)
    for index in range(5):
        one = slice(index, index + 1)
        observation, victim = leak(model, data.inputs[one], data.labels[one], index)
        result = Analytic().reconstruct(KEY, model, observation)
        assert np.sqrt(np.mean((result.inputs - victim.inputs) ** 2)) <= 1e-5
        assert int(result.iterations) == 0


def test_the_analytic_attack_refuses_in_words():
    data = load_dataset("digits")
    model = build_model(MODEL, data.shape, data.classes)
    observation, _ = leak(model, data.inputs[:1], data.labels[:1])
    with pytest.raises(InputError, match="convolution"):
        Analytic().reconstruct(KEY, model, observation)
    table = load_dataset("cancer")
    mlp = build_model("mlp", table.shape, table.classes)
    batch, _ = leak(mlp, table.inputs[:3], table.labels[:3])
    with pytest.raises(InputError, match="mixes 3"):
        Analytic().reconstruct(KEY, mlp, batch)
