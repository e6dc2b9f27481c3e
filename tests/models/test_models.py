"""Every network of the table: shapes, start values, equality, and words for misfits."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradaudit import tree
from gradaudit.errors import InputError
from gradaudit.models.model import from_function
from gradaudit.models.networks import (
    MODELS,
    ConvNet,
    build_model,
    symmetric_uniform,
)

IMAGES = ((8, 8, 1), (25, 25, 1), (28, 23, 1), (28, 28, 1), (32, 32, 3))
TABLES = ((30,), (105,))
EVERY_MODEL = pytest.mark.parametrize("name", MODELS)
# Where programs are compiled: their sister with batch norm has the same blocks.
SISTERS = {"resnet-gn", "resnet-bn"}
# ... and of these another one has the same kinds of layers.
SISTERS |= {"dlg", "dpfl-3conv", "mlp-wide"}
COMPILED = pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.slow] * (n in SISTERS)) for n in MODELS],
)
NETWORKS = {name: build_model(name, (8, 8, 1), 2).network for name in MODELS}
PLAIN = {name: net for name, net in NETWORKS.items() if isinstance(net, ConvNet)}
TABULAR = [name for name, net in PLAIN.items() if not net.layers]
FOR_IMAGES = [name for name in MODELS if name not in TABULAR]
UNTRAINED = [n for n, net in PLAIN.items() if net.kernel_init is symmetric_uniform]
TRAINING = [name for name in PLAIN if name not in UNTRAINED]


def shapes(name: str) -> tuple[tuple[int, ...], ...]:
    return IMAGES if name in FOR_IMAGES else IMAGES + TABLES


@pytest.fixture(scope="module")
def initial(quick_jit):
    """Returns a model's first (parameters, buffers); equal models are asked once."""

    def both(model):
        return lambda key: (model.init(key), model.initial_buffers(key))

    return functools.cache(lambda model: quick_jit(both(model))(jax.random.key(0)))


@pytest.mark.parametrize(
    "all_pairs", [False, pytest.param(True, marks=pytest.mark.slow)]
)
@EVERY_MODEL
def test_reads_any_shape_and_any_number_of_classes(name, all_pairs):
    counts = (2, 10, 40)
    every = list(itertools.product(shapes(name), counts))
    pairs = every if name in PLAIN else every[1::5]
    if name in PLAIN and not all_pairs:  # every shape, and every number, once or more
        pairs = list(zip(shapes(name), itertools.cycle(counts), strict=False))
    for shape, classes in pairs:
        model = build_model(name, shape, classes)
        params, buffers = (
            jax.eval_shape(make, jax.random.key(0))
            for make in (model.init, model.initial_buffers)
        )
        inputs = jax.ShapeDtypeStruct((3, *shape), jnp.float32)
        logits = jax.eval_shape(model.apply, params, buffers, inputs)
        assert logits.shape == (3, classes)
        kernel = params[model.output_layer]["kernel"]
        assert kernel.shape[1] == classes
        if model.input_layer is not None:
            assert params[model.input_layer]["kernel"].shape[0] == np.prod(shape)
        assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {
            jnp.dtype("float32")
        }


@COMPILED
def test_loss_is_the_mean_cross_entropy(name, initial, quick_jit):
    model = build_model(name, (8, 8, 1), 4)
    at = initial(model)
    inputs = np.random.default_rng(0).random((3, 8, 8, 1), np.float32)
    targets = np.eye(4, dtype=np.float32)[[0, 3, 1]]
    logits, losses, loss = quick_jit(
        lambda *at: (
            model.network.train({"params": at[0], **at[1]}, at[2])[0]
            if model.coupled
            else model.apply(*at),
            model.losses(*at, targets),
            model.loss(*at, targets),
        )
    )(*at, inputs)
    logits = np.asarray(logits, np.float64)
    chosen = np.exp(logits[np.arange(3), [0, 3, 1]]) / np.exp(logits).sum(axis=1)
    np.testing.assert_allclose(losses, -np.log(chosen), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(loss, losses.mean(), rtol=1e-6)


def test_the_attack_net_is_the_published_one():
    grey, colour = (
        jax.eval_shape(build_model("cpl", shape, 10).init, jax.random.key(0))
        for shape in ((28, 28, 1), (32, 32, 3))
    )
    assert len(jax.tree.leaves(grey)) == 10
    assert grey["output"]["kernel"].shape == (588, 10)
    assert colour["output"]["kernel"].shape == (768, 10)
    for params, channels in ((grey, 1), (colour, 3)):
        depths = [params[f"conv{i}"]["kernel"].shape for i in range(1, 5)]
        assert depths == [(5, 5, channels, 12), *[(5, 5, 12, 12)] * 3]


def test_flatten_sizes_of_the_other_published_nets():
    expected = {
        ("dlg", (32, 32, 3)): 768,
        ("dpfl-2conv", (28, 28, 1)): 588,
        ("dpfl-3conv", (32, 32, 3)): 768,
    }
    for (name, shape), features in expected.items():
        params = jax.eval_shape(build_model(name, shape, 10).init, jax.random.key(0))
        assert params["output"]["kernel"].shape == (features, 10)


@pytest.mark.parametrize("name", UNTRAINED)
def test_attack_nets_start_uniform_weights_and_biases_alike(name, initial):
    """Each tensor is one draw of U(-0.5, 0.5): bounds, mean and spread."""
    params, _ = initial(build_model(name, (28, 28, 1), 10))
    for path, leaf in zip(tree.names(params), jax.tree.leaves(params), strict=True):
        values = np.asarray(leaf).ravel()
        assert np.abs(values).max() <= 0.5, path
        assert len(np.unique(values)) > 0.99 * len(values), path  # not constant
        spread = 1 / np.sqrt(12)
        assert abs(values.mean()) < 5 * spread / np.sqrt(len(values)), path
    everything = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(params)])
    assert abs(everything.std() * np.sqrt(12) - 1) < 0.02
    quarters = np.histogram(everything, 4, (-0.5, 0.5))[0] / len(everything)
    assert np.abs(quarters - 0.25).max() < 0.03


@pytest.mark.parametrize("name", TRAINING)
def test_training_nets_start_with_glorot(name, initial):
    params, _ = initial(build_model(name, (28, 28, 1), 10))
    for path, leaf in zip(tree.names(params), jax.tree.leaves(params), strict=True):
        values = np.asarray(leaf)
        if path.endswith("bias"):
            assert not values.any(), path
            continue
        window = int(np.prod(values.shape[:-2]))
        limit = np.sqrt(6 / (window * (values.shape[-2] + values.shape[-1])))
        assert 0.9 * limit < np.abs(values).max() <= limit, path
        assert abs(values.std() / (limit / np.sqrt(3)) - 1) < 0.12, path


@EVERY_MODEL
def test_equal_models_are_traced_once(name):
    traces = 0

    @functools.partial(jax.jit, static_argnums=0)
    def logits(model, params, buffers, inputs):
        nonlocal traces
        traces += 1
        return model.apply(params, buffers, inputs)

    first, second = (build_model(name, (8, 8, 1), 3) for _ in range(2))
    at = [
        jax.eval_shape(make, jax.random.key(0))
        for make in (first.init, first.initial_buffers)
    ]
    assert first == second and hash(first) == hash(second)
    inputs = jax.ShapeDtypeStruct((2, 8, 8, 1), jnp.float32)
    for model in (first, second):
        logits.trace(model, *at, inputs)
    assert traces == 1
    assert build_model(name, (8, 8, 1), 4) != first


def linear(params, inputs):
    return inputs.reshape(len(inputs), -1) @ params["w"]


def linear_start(key):
    return {"w": symmetric_uniform(key, (4, 3))}


def test_any_function_becomes_a_model(initial):
    model = from_function(linear, linear_start, (2, 2, 1), 3)
    assert model == from_function(linear, linear_start, (2, 2, 1), 3)
    params, buffers = initial(model)
    assert buffers == {}
    inputs = np.random.default_rng(0).random((5, 2, 2, 1), np.float32)
    expected = np.asarray(inputs).reshape(5, 4) @ np.asarray(params["w"])
    np.testing.assert_allclose(model.apply(params, {}, inputs), expected, rtol=1e-5)
    targets = np.eye(3, dtype=np.float32)[[0] * 5]
    assert jax.grad(model.loss)(params, {}, inputs, targets)["w"].shape == (4, 3)


@pytest.mark.parametrize("name", FOR_IMAGES)
def test_a_table_in_a_net_for_images_is_refused_in_words(name):
    with pytest.raises(InputError, match=r"reads images .*\(30,\).*'mlp'"):
        build_model(name, (30,), 2)


def test_other_misfits_are_refused_in_words():
    with pytest.raises(InputError, match="unknown model 'cpll'; did you mean 'cpl'"):
        build_model("cpll", (8, 8, 1), 2)
    with pytest.raises(InputError, match="at least 2 classes, got 1"):
        build_model("cpl", (8, 8, 1), 1)
