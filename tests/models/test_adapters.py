"""Your own model: flax, losses, files; layers are found by what they do."""

import dataclasses
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from flax import nnx
from typer.testing import CliRunner

import gradaudit as ga
from gradaudit.attacks.labels import FromBias, LastLayer
from gradaudit.audit.captured_scenario import arranged
from gradaudit.cli.app import app
from gradaudit.data import load_dataset
from gradaudit.errors import InputError
from gradaudit.models import build_model, from_flax, from_function
from gradaudit.models.adapters import model_for, with_layers
from gradaudit.models.check import Said, check_model
from gradaudit.models.gradients import batch_gradient, one_hot
from gradaudit.models.model import LOSSES, with_loss
from gradaudit.types import Observation

SHAPE, CLASSES = (4, 4, 1), 3
MODEL = build_model("mlp", SHAPE, CLASSES)


class Linen(nn.Module):
    outputs: int = CLASSES

    @nn.compact
    def __call__(self, inputs, train=False):
        values = inputs.reshape(len(inputs), -1)
        values = nn.relu(nn.Dense(CLASSES, name="zzz")(values))
        values = nn.BatchNorm(use_running_average=not train, name="norm")(values)
        return nn.Dense(self.outputs, name="aaa")(nn.sigmoid(values))


class Nnx(nnx.Module):
    def __init__(self, rngs):
        self.hidden = nnx.Linear(16, 5, rngs=rngs)
        self.norm = nnx.BatchNorm(5, use_running_average=True, rngs=rngs)
        self.out = nnx.Linear(5, CLASSES, rngs=rngs)

    def __call__(self, inputs):
        values = nnx.sigmoid(self.hidden(inputs.reshape(len(inputs), -1)))
        return self.out(nnx.relu(self.norm(values)))


@pytest.fixture(scope="module")
def batch():
    inputs = jax.random.uniform(jax.random.key(3), (5, *SHAPE))
    return inputs, jnp.asarray([0, 1, 2, 1, 0])


@pytest.fixture(scope="module")
def linen():
    return from_flax(Linen(), SHAPE, CLASSES, call={"train": False})


def test_linen_keeps_its_numbers_and_its_statistics(linen, batch):
    key = jax.random.key(0)
    variables = Linen().init(key, batch[0])
    params, buffers = linen.init(key), linen.initial_buffers(key)
    assert set(buffers) == {"batch_stats"} and linen.drawn
    expected = Linen().apply(variables, batch[0])
    np.testing.assert_allclose(
        linen.apply(params, buffers, batch[0]), expected, atol=1e-6
    )


def test_layers_are_found_by_what_they_do_not_by_their_names(linen):
    """Two layers have the width of the classes; only one makes the logits."""
    assert (linen.output_layer, linen.input_layer) == ("aaa", "zzz")
    assert not linen.signed_features


def test_linen_trains_on_the_batchs_own_statistics(batch):
    model = from_flax(
        Linen(), SHAPE, CLASSES, call={"train": False}, training_call={"train": True}
    )
    key = jax.random.key(0)
    params, buffers = model.init(key), model.initial_buffers(key)
    targets = one_hot(batch[1], CLASSES)
    _, after = model.training_losses(params, buffers, batch[0], targets)
    assert model.coupled and not np.allclose(
        after["batch_stats"]["norm"]["mean"], buffers["batch_stats"]["norm"]["mean"]
    )


def test_nnx_keeps_its_own_weights(batch):
    module = Nnx(nnx.Rngs(0))
    model = from_flax(module, SHAPE, CLASSES)
    one, other = (model.init(jax.random.key(seed)) for seed in (0, 1))
    assert not model.drawn and model.output_layer == "out"
    assert model.input_layer == "hidden"
    np.testing.assert_array_equal(one["out"]["kernel"], other["out"]["kernel"])
    buffers = model.initial_buffers(jax.random.key(0))
    found = jax.jit(model.apply)(one, buffers, batch[0])
    np.testing.assert_allclose(found, module(batch[0]), atol=1e-6)
    twice = jax.tree.map(lambda leaf: 2 * leaf, one)  # not the module's any more
    assert not np.allclose(model.apply(twice, buffers, batch[0]), found)


@pytest.mark.slow  # of parameters from a file: tests/audit/test_counting.py
def test_own_weights_are_one_draw():
    data = load_dataset("digits").take(np.arange(40))
    module = from_flax(Small(nnx.Rngs(0)), data.shape, data.classes)
    asked = dict(method="analytic", dataset=data, model=module, victims=3, line_ups=0)
    found = ga.attack(**asked)
    assert found.asr.value == 1.0 and found.draws == 1
    with pytest.raises(InputError, match="weights of its own"):
        ga.attack(**asked, draws=2)


class Small(nnx.Module):
    def __init__(self, rngs):
        self.hidden, self.out = (
            nnx.Linear(64, 12, rngs=rngs),
            nnx.Linear(12, 10, rngs=rngs),
        )

    def __call__(self, inputs):
        return self.out(nnx.sigmoid(self.hidden(inputs.reshape(len(inputs), -1))))


def logits_of(params, inputs):
    return inputs.reshape(len(inputs), -1) @ params["w"]["kernel"] + params["w"]["bias"]


def drawn(outputs):
    def init(key):
        kernel = 0.3 * jax.random.normal(key, (16, outputs))
        return {"w": {"kernel": kernel, "bias": jnp.zeros(outputs)}}

    return init


def test_a_binary_loss_is_torchs(batch):
    one = from_function(logits_of, drawn(1), SHAPE, 2, output_layer="w")
    model = with_loss(one, "binary")
    params, labels = model.init(jax.random.key(0)), batch[1] % 2
    found = model.losses(params, {}, batch[0], one_hot(labels, 2))
    logits = logits_of(params, batch[0])[:, 0]
    expected = optax.sigmoid_binary_cross_entropy(logits, labels)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert with_layers(model)[0].output_layer == "w"


@pytest.mark.parametrize("strategy", [LastLayer(), FromBias()])
@pytest.mark.parametrize("label", [0, 1])
def test_labels_are_read_off_one_logit(strategy, label, batch):
    model = with_loss(
        from_function(logits_of, drawn(1), SHAPE, 2, output_layer="w"), "binary"
    )
    params = model.init(jax.random.key(0))
    targets = one_hot(jnp.asarray([label]), 2)
    sent = batch_gradient(model, params, {}, batch[0][:1], targets)
    found = strategy(jax.random.key(0), model, Observation(params, sent))
    assert found.tolist() == [label]


def test_a_squared_loss_is_the_mean_over_outputs(batch):
    model = with_loss(
        from_function(logits_of, drawn(CLASSES), SHAPE, CLASSES), "squared"
    )
    params, targets = model.init(jax.random.key(0)), one_hot(batch[1], CLASSES)
    found = model.losses(params, {}, batch[0], targets)
    expected = np.mean((logits_of(params, batch[0]) - targets) ** 2, axis=1)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    with pytest.raises(InputError, match="did you mean"):
        with_loss(model, LOSSES[1] + "x")


def test_wrong_shapes_and_names_are_refused():
    with pytest.raises(InputError, match="check classes"):
        from_flax(Linen(), SHAPE, CLASSES + 1, call={"train": False})
    with pytest.raises(InputError, match="dense layer"):
        from_flax(Linen(), SHAPE, CLASSES, output_layer="nobody")
    with pytest.raises(InputError, match="linen or an nnx"):
        from_flax(3, SHAPE, CLASSES)


def test_statistics_of_a_captured_update_are_carried(linen):
    key = jax.random.key(0)
    tensors = {
        "/".join(str(part.key) for part in path): np.asarray(leaf)
        for tree in (linen.init(key), linen.initial_buffers(key))
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }
    params, buffers = arranged(linen, tensors, "x")
    assert set(params) == {"aaa", "norm", "zzz"} and set(buffers) == {"batch_stats"}
    few = {n: a for n, a in tensors.items() if not n.startswith("batch_stats")}
    assert arranged(linen, few, "x", False)[1] == {}
    with pytest.raises(InputError, match="batch_stats/norm/mean"):
        arranged(linen, few, "x")


FILES = {
    "one": "def build():\n    return build_model('mlp', (8, 8, 1), 10)\n",
    "two": "def build(shape, n):\n    return build_model('mlp', shape, n)\n",
    "itself": "build = build_model('mlp', (8, 8, 1), 10)\n",
}


@pytest.mark.parametrize("case", FILES)
def test_a_file_builds_the_model(case, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("from gradaudit.models import build_model\n" + FILES[case])
    known = dataclasses.replace(build_model("mlp", (8, 8, 1), 10), origin=None)
    found = model_for(f"{path}:build", (8, 8, 1), 10)
    assert dataclasses.replace(found, origin=None) == known


WRONG = {
    "no name": ("x = 1\n", "unknown name"),
    "an error": ("def build():\n    1 / 0\n", "ZeroDivisionError"),
    "nothing": ("def build():\n    pass\n", "got NoneType"),
    "three things": ("def build(a, b, c):\n    pass\n", "build(input_shape, classes)"),
    "another shape": (
        "def build():\n    return build_model('mlp', (9,), 10)\n",
        "the data has (8, 8, 1)",
    ),
    "few classes": (
        "def build():\n    return build_model('mlp', (8, 8, 1), 3)\n",
        "has 3 classes",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_file_that_builds_none_is_refused(case, tmp_path):
    source, words = WRONG[case]
    path = pathlib.Path(tmp_path / "mine.py")
    path.write_text("from gradaudit.models import build_model\n" + source)
    with pytest.raises(InputError) as error:
        model_for(f"{path}:build", (8, 8, 1), 10)
    assert words in str(error.value)


def test_a_model_of_a_file_is_attacked_and_repeated(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("from gradaudit.models import build_model\n" + FILES["one"])
    data = load_dataset("digits").take(np.arange(30))
    found = ga.attack(method="analytic", dataset=data, model=f"{path}:build", victims=2)
    assert found.asr.value == 1.0
    assert str(path) in found.spec.sources


def test_a_model_of_our_own_is_checked_without_torch():
    """Without another framework what attacks need is looked at: derivatives."""
    found = {line.what: line for line in check_model(MODEL, timed=False)}
    assert {line.said for line in found.values()} == {Said.GOOD}
    assert "no other framework" in found["compared"].words


def test_a_flax_module_is_checked_too(linen):
    found = {line.what: line for line in check_model(linen, timed=False)}
    assert {line.said for line in found.values()} == {Said.GOOD}
    assert "no other framework" in found["compared"].words


def steps(params, inputs):
    """Has no derivative in its inputs: nothing can follow it."""
    return jnp.sign(inputs.reshape(len(inputs), -1)) @ params["w"]["kernel"]


def test_a_model_that_no_search_can_follow_is_found_out():
    model = from_function(steps, drawn(CLASSES), SHAPE, CLASSES)
    found = {line.what: line for line in check_model(model, timed=False)}
    assert found["second derivative"].said is Said.BAD
    assert found["output layer"].said is Said.NOTE


def test_the_check_is_a_command(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("from gradaudit.models import build_model\n" + FILES["one"])
    ran = CliRunner().invoke(app, ["model", "check", f"{path}:build", "--json"])
    rows = json.loads(ran.stdout)
    assert ran.exit_code == 0 and rows[0]["what"] == "model"
    wrong = CliRunner().invoke(app, ["model", "check", str(tmp_path / "none.py")])
    assert wrong.exit_code == 2 and "no file" in wrong.stderr
