"""Per-example gradients: equal to a plain loop, traced once, lowered everywhere."""

import dataclasses
import functools

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType

from gradaudit import machine, tree
from gradaudit.attacks import lanes
from gradaudit.attacks.distances import SquaredL2
from gradaudit.attacks.objective import objective
from gradaudit.attacks.presets import cpl
from gradaudit.attacks.starts import Layout
from gradaudit.data import CATALOGUE, Origin, load_dataset
from gradaudit.errors import InputError
from gradaudit.models.convolution import MAPS, Path, is_compiled, target
from gradaudit.models.gradients import (
    batch_gradient,
    has_kinks,
    one_hot,
    per_example_gradients,
)
from gradaudit.models.model import Model, check_batch, cross_entropy
from gradaudit.models.networks import MODELS, ConvNet, build_model
from gradaudit.types import Observation

EMBEDDED = [name for name, e in CATALOGUE.items() if e.origin is Origin.EMBEDDED]
BUILT = {name: build_model(name, (8, 8, 1), 2) for name in MODELS}
DEEP = [name for name, m in BUILT.items() if not isinstance(m.network, ConvNet)]
APART = [name for name, model in BUILT.items() if not model.coupled]
# By default every plain network on the smallest pictures, two of them on everything.
EVERYWHERE = ("cpl", "mlp")


# Another one has the same kinds of layers.
SISTERS = {"resnet-gn", "dlg", "dpfl-3conv", "mlp-wide"}


def _is_slow(model: str, dataset: str) -> bool:
    if model in DEEP:
        return (model, dataset) != ("resnet-bn", "digits")
    if (model, dataset) == ("cpl", "photos"):  # the smaller photographs stay
        return True
    return dataset != "digits" and model not in EVERYWHERE


FITTING = [
    pytest.param(model, dataset, marks=[pytest.mark.slow] * _is_slow(model, dataset))
    for model in APART
    for dataset in EMBEDDED
    if BUILT[model].input_layer is not None or len(CATALOGUE[dataset].shape) == 3
]
COUNT = 3
PLATFORMS = ("cpu", "cuda", "tpu")


loaded = functools.cache(load_dataset)


def work(model_name: str, dataset_name: str):
    """Returns a model, its (parameters, buffers), and a few real examples."""
    dataset = loaded(dataset_name)
    chosen = dataset.take(np.linspace(0, len(dataset) - 1, COUNT).astype(int))
    model = build_model(model_name, dataset.shape, dataset.classes)
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    draw = np.random.default_rng(0)  # any weights will do, and numpy compiles nothing
    params = jax.tree.map(
        lambda leaf: draw.uniform(-0.3, 0.3, leaf.shape).astype(np.float32), shapes
    )
    targets = np.eye(model.classes, dtype=np.float32)[chosen.labels]
    at = params, model.initial_buffers(jax.random.key(0))
    return model, at, chosen.inputs, targets


@pytest.mark.parametrize(("model_name", "dataset_name"), FITTING)
def test_per_example_gradients_equal_a_loop(model_name, dataset_name, quick_jit):
    model, at, inputs, targets = work(model_name, dataset_name)

    one = quick_jit(jax.grad(model.loss))
    loop = [one(*at, inputs[i, None], targets[i, None]) for i in range(COUNT)]
    every = quick_jit(functools.partial(per_example_gradients, model))
    # In numpy: eagerly, jax would compile every comparison for every shape.
    loop, stacked = jax.device_get((loop, every(*at, inputs, targets)))
    for index, expected in enumerate(loop):
        actual = jax.tree.map(lambda leaf, index=index: leaf[index], stacked)
        # Each tensor by itself: a small one can't hide behind a large one.
        for name, a, b in zip(
            tree.names(expected),
            jax.tree.leaves(actual),
            jax.tree.leaves(expected),
            strict=True,
        ):
            assert np.linalg.norm(a - b) <= 1e-5 * np.linalg.norm(b) + 1e-8, name


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.slow] * (n in SISTERS)) for n in APART],
)
def test_their_mean_is_the_batch_gradient(name, quick_jit):
    model, at, inputs, targets = work(name, "digits")

    @quick_jit
    def run(*given):
        return per_example_gradients(model, *given), batch_gradient(model, *given)

    stacked, batch = jax.device_get(run(*at, inputs, targets))
    for mean, leaf in zip(
        (np.mean(leaf, axis=0) for leaf in jax.tree.leaves(stacked)),
        jax.tree.leaves(batch),
        strict=True,
    ):
        assert np.linalg.norm(mean - leaf) <= 1e-5 * np.linalg.norm(leaf) + 1e-8


def test_examples_do_not_see_each_other(quick_jit):
    model, at, inputs, targets = work("cpl", "digits")
    changed = inputs.copy()
    changed[1] = 0.5
    every = quick_jit(functools.partial(per_example_gradients, model))
    before, after = (every(*at, x, targets) for x in (inputs, changed))
    for a, b in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        np.testing.assert_array_equal(a[0], b[0])
        np.testing.assert_array_equal(a[2], b[2])
        assert np.any(a[1] != b[1])


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.slow] * (n in SISTERS)) for n in APART],
)
def test_equal_configurations_are_traced_once(name):
    traces = 0

    def counted(logits, targets):
        nonlocal traces
        traces += 1
        return cross_entropy(logits, targets)

    def model() -> Model:
        built = build_model(name, (8, 8, 1), 10)
        return dataclasses.replace(built, example_loss=counted)

    at = [
        jax.eval_shape(make, jax.random.key(0))
        for make in (model().init, model().initial_buffers)
    ]
    targets = np.eye(10, dtype=np.float32)[:2]
    counts = []
    for value in (0.1, 0.2, 0.3):  # other values, equal but not identical models
        inputs = np.full((2, 8, 8, 1), value, np.float32)
        per_example_gradients.trace(model(), *at, inputs, targets)
        counts.append(traces)
    assert counts[0] > 0 and len(set(counts)) == 1
    per_example_gradients.trace(model(), *at, inputs[:1], targets[:1])
    assert traces > counts[0]  # the count does count


def test_where_examples_have_no_gradients_the_words_say_what_has_one():
    model = build_model("resnet-bn-train", (8, 8, 1), 4)
    with pytest.raises(InputError, match="no gradient of its own. Take the batch's"):
        per_example_gradients(model, {}, {}, np.zeros((2, 8, 8, 1)), np.eye(4)[:2])


# Its name is the package's own, and so is what a program that was exported needs.
OURS = [jax.export.DisabledSafetyCheck.custom_call(target(name)) for name in MAPS]


@pytest.mark.parametrize("path", Path, ids=lambda path: path.value)
@pytest.mark.parametrize("kernel", ["per example", "matching"])
def test_lowers_for_every_platform(path, kernel):
    if path is Path.COMPILED and not is_compiled():
        pytest.skip("there was no C compiler")
    model = build_model("cpl", (12, 12, 1), 4, path)
    params = jax.eval_shape(model.init, jax.random.key(0))
    inputs = jax.ShapeDtypeStruct((2, 12, 12, 1), jnp.float32)

    def example(params, inputs, labels):
        return per_example_gradients(model, params, {}, inputs, one_hot(labels, 4))

    def matching(params, inputs, labels):
        leaked = example(params, inputs, labels)
        layout = Layout((1, 12, 12, 1), 4, searches_labels=False)

        def one(image, label, gradient):
            seen = Observation(params, gradient)
            evaluate = objective(
                SquaredL2(), (), layout, model, seen, False, label[None]
            )
            return evaluate(image.reshape(-1))

        return jax.vmap(one)(inputs, labels, leaked)

    function = {"per example": example, "matching": matching}[kernel]
    labels = jax.ShapeDtypeStruct((2,), jnp.int32)
    export = functools.partial(jax.export.export, disabled_checks=OURS)
    exported = export(jax.jit(function), platforms=PLATFORMS)(params, inputs, labels)
    assert exported.platforms == PLATFORMS
    assert len(exported.mlir_module_serialized) > 0


@pytest.mark.slow
def test_the_whole_search_lowers_for_every_platform(monkeypatch):
    """What a device runs of an attack: L-BFGS and all, cut over the devices."""
    mesh = AbstractMesh((8,), (machine.AXIS,), axis_types=(AxisType.Auto,))
    monkeypatch.setattr(machine, "unit_mesh", lambda: mesh)
    model = build_model("cpl", (12, 12, 1), 4)
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    params = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
    attack = cpl(iterations=2)
    seen = Observation(params, jax.tree.map(lambda leaf: leaf[None], params))
    problem, shared = attack.problem(model, seen), attack.shared(seen)
    slots = 8 * 2  # two on each device

    def stacked(leaf):
        return jax.ShapeDtypeStruct((slots, *leaf.shape[1:]), leaf.dtype)

    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), slots))
    own = jax.tree.map(stacked, attack.own(seen))
    trial = jax.eval_shape(lambda *a: lanes.begin(problem, 2, *a), shared, keys, own)
    program = jax.jit(lambda *a: lanes.advance(problem, 2, 2, *a))
    export = functools.partial(jax.export.export, disabled_checks=OURS)
    exported = export(program, platforms=PLATFORMS)(shared, trial, own)
    assert exported.platforms == PLATFORMS
    assert "all_reduce" not in exported.mlir_module()  # devices don't wait


def test_batch_gradient_of_soft_targets_is_linear_in_them(quick_jit):
    model, at, inputs, targets = work("mlp", "cancer")
    mixed = batch_gradient(model, *at, inputs, (targets + targets[::-1]) / 2)
    halves = [batch_gradient(model, *at, inputs, t) for t in (targets, targets[::-1])]
    mean = jax.tree.map(lambda a, b: (a + b) / 2, *halves)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), mixed, mean
    )


MISFITS = {
    "labels too large": ((2, 8, 8, 1), [0, 7], r"label 7 is outside \[0, 4\)"),
    "labels negative": ((2, 8, 8, 1), [-1, 0], r"label -1 is outside \[0, 4\)"),
    "wrong shape": ((2, 8, 8, 3), [0, 1], r"shape \(8, 8, 1\), got \(8, 8, 3\)"),
    "wrong rank": ((2, 64), [0, 1], r"shape \(8, 8, 1\), got \(64,\)"),
    "empty": ((0, 8, 8, 1), [], "the batch is empty"),
    "labels missing": ((2, 8, 8, 1), [0], r"labels of shape \(2,\), got \(1,\)"),
}


@pytest.mark.parametrize("case", MISFITS)
def test_misfits_are_refused_in_words(case):
    shape, labels, words = MISFITS[case]
    model = build_model("cpl", (8, 8, 1), 4)
    with pytest.raises(InputError, match=words):
        check_batch(model, np.zeros(shape, np.float32), np.asarray(labels, np.int32))


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_pixels_that_are_not_finite_are_refused(poison):
    model = build_model("cpl", (8, 8, 1), 4)
    inputs = np.zeros((2, 8, 8, 1), np.float32)
    check_batch(model, inputs, np.array([0, 3]))
    inputs[1, 2, 3, 0] = poison
    with pytest.raises(InputError, match="NaN or infinity"):
        check_batch(model, inputs, np.array([0, 3]))


@pytest.mark.parametrize("name", ["cpl", "dpfl-3conv"])
def test_sigmoid_networks_have_no_kinks(name):
    assert not _kinked(name)


@pytest.mark.parametrize("name", ["cnn", "ldp-cnn", "mlp", "resnet-gn", "resnet-bn"])
def test_rectifiers_and_pooling_are_kinks(name):
    assert _kinked(name)


def _kinked(name):
    model = build_model(name, (16, 16, 1), 4)
    shapes = jax.eval_shape(
        model.network.init, jax.random.key(0), jnp.zeros((1, 16, 16, 1))
    )
    buffers = {name: part for name, part in shapes.items() if name != "params"}
    return has_kinks(model, shapes["params"], buffers)
