"""torch modules through `from_torch`: torch's numbers, and attacks that work."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradaudit as ga
from gradaudit import tree
from gradaudit.data import load_dataset
from gradaudit.errors import InputError
from gradaudit.models import build_model, from_torch
from gradaudit.models.check import EQUAL, Said, check_model
from gradaudit.models.gradients import batch_gradient, one_hot, per_example_gradients

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("torchax", reason="torchax is not installed")

from torch import nn  # noqa: E402

from tests.models.torch_modules import CLASSES, MODULES, SIDE, LeNet  # noqa: E402

SHAPE = (1, SIDE, SIDE)


@pytest.fixture(autouse=True)
def drawn():
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def mnist():
    try:
        return load_dataset("mnist")
    except InputError:
        pytest.skip("mnist is not here")


def said(lines):
    return {line.what: line for line in lines}


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", MODULES)
def test_logits_and_gradients_are_torchs(name):
    found = said(check_model(from_torch(MODULES[name](), SHAPE, CLASSES), timed=False))
    for what in ("logits", "per-example gradients"):
        assert found[what].figure <= EQUAL == 1e-4, found[what]
    assert found["second derivative"].said is Said.GOOD
    assert found["output layer"].said is Said.GOOD
    assert ("dropout" in found) == (name in ("relu, pooling", "transformer"))
    assert ("batch norm" in found) == (name == "resnet, batch norm")


def test_another_network_is_found_out():
    model = from_torch(MODULES["mlp"](), SHAPE, CLASSES)
    other = dataclasses.replace(model.network, module=MODULES["mlp"]().eval())
    found = said(check_model(dataclasses.replace(model, network=other), timed=False))
    assert found["logits"].said is found["per-example gradients"].said is Said.BAD


def test_per_example_gradients_are_the_same_one_by_one(mnist):
    model = from_torch(MODULES["relu, pooling"](), SHAPE, CLASSES)
    assert model.alone and not from_torch(MODULES["mlp"](), SHAPE, CLASSES).alone
    params = model.init(jax.random.key(0))
    targets = one_hot(jnp.asarray(mnist.labels[:3]), CLASSES)
    inputs = jnp.asarray(mnist.inputs[:3])
    beside = dataclasses.replace(model, alone=False)
    each = [
        per_example_gradients(m, params, {}, inputs, targets) for m in (model, beside)
    ]
    for one, other in zip(*map(jax.tree.leaves, each), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Embedding(50, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.out(self.embed(x).mean(1))


WRONG = {
    "whole numbers": (lambda: from_torch(Words(), (7,), 3), "whole numbers"),
    "another shape": (
        lambda: from_torch(MODULES["lenet"](), (3, 9, 9), CLASSES),
        "does not take a batch of inputs of shape (3, 9, 9)",
    ),
    "other classes": (lambda: from_torch(MODULES["mlp"](), SHAPE, 3), "check classes"),
    "dropout in training": (
        lambda: from_torch(MODULES["relu, pooling"](), SHAPE, CLASSES, training=True),
        "dropout in training mode",
    ),
    "no module": (lambda: from_torch(3, SHAPE, CLASSES), "torch.nn.Module"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_can_not_work_is_said_in_words(case):
    make, words = WRONG[case]
    with pytest.raises(InputError) as error:
        make()
    assert words in str(error.value)


def in_torch(params):
    """Returns torch's network with the weights of ours, `cpl`."""
    module, count = LeNet((2, 2, 1, 1)), len(params) - 1
    with torch.no_grad():
        for index, conv in enumerate(module.convs, 1):
            layer = params[f"conv{index}"]
            kernel = np.asarray(layer["kernel"]).transpose(3, 2, 0, 1)
            conv.weight.copy_(torch.from_numpy(kernel.copy()))
            conv.bias.copy_(torch.from_numpy(np.array(layer["bias"])))
        assert count == len(module.convs)
        kernel = np.asarray(params["output"]["kernel"]).reshape(7, 7, 12, CLASSES)
        flat = kernel.transpose(3, 2, 0, 1).reshape(CLASSES, -1)
        module.fc.weight.copy_(torch.from_numpy(flat.copy()))
        module.fc.bias.copy_(torch.from_numpy(np.array(params["output"]["bias"])))
    return module


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_same_weights_and_victims_give_the_same_attack(mnist, tmp_path):
    """Recorded once under our names and once under torch's, attacked as either."""
    own = build_model("cpl", (SIDE, SIDE, 1), CLASSES)
    params = own.init(jax.random.key(5))
    module = in_torch(params)
    (tmp_path / "truth").mkdir()
    for client in range(6):
        x, y = mnist.inputs[[client]], mnist.labels[[client]]
        np.savez(tmp_path / "truth" / f"client-{client}.npz", x=x, y=y)
        facts = {
            "client": client, "sent_is": "gradient", "place": "example",
            "batch_size": 1, "learning_rate": 1.0, "local_steps": 1,
        }  # fmt: skip
        targets = one_hot(jnp.asarray(y), CLASSES)
        gradient = batch_gradient(own, params, {}, jnp.asarray(x), targets)
        names = tree.names(params)
        ours = [dict(zip(names, map(np.asarray, jax.tree.leaves(t)), strict=True))
                for t in (params, gradient)]  # fmt: skip
        assert ga.record(*ours, tmp_path / "ours", **facts)
        module.zero_grad()
        given = torch.from_numpy(np.moveaxis(x, -1, 1).copy())
        loss = nn.functional.cross_entropy(module(given), torch.tensor(y).long())
        loss.backward()
        theirs = [dict(module.state_dict()),
                  {n: p.grad for n, p in module.named_parameters()}]  # fmt: skip
        assert ga.record(*theirs, tmp_path / "theirs", **facts)
    results = [
        ga.attack_captured(
            tmp_path / name, model, tmp_path / "truth", iterations=60
        ).to_dict()["metrics"]
        for name, model in (
            ("ours", own),
            ("theirs", from_torch(module, SHAPE, CLASSES)),
        )
    ]
    first, second = results
    print(first["asr"]["value"], second["asr"]["value"])
    print(first["rmse"], second["rmse"])
    assert first["asr"]["value"] == second["asr"]["value"] >= 5 / 6
    apart = abs(first["rmse"]["median"] - second["rmse"]["median"])
    assert apart <= first["rmse"]["worst"] - first["rmse"]["best"]


@pytest.mark.slow
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("name", ["lenet", "mlp"])
def test_type_2_rebuilds_through_torch(name, mnist):
    """Ten victims, a fresh draw of the weights for each pair of them."""
    model = from_torch(MODULES[name](), SHAPE, CLASSES, redraw=name == "mlp")
    found = ga.attack(
        type=2, model=model, dataset="mnist", victims=10, iterations=100,
        draws=5 if name == "mlp" else 1,
    )  # fmt: skip
    print(name, found.asr, found.rmse)
    assert found.asr.value >= 0.9
