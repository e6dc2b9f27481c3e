"""A malicious server's layer: what it reads, what it needs, what gives it away."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradaudit as ga
from gradaudit.attacks.imprint import Imprint, Imprinted, RandomDirection, imprint
from gradaudit.audit.further_scores import imprint_scores, noticeable
from gradaudit.audit.threat import Threat
from gradaudit.data import load_dataset
from gradaudit.errors import InputError
from gradaudit.models.networks import MODELS, build_model
from gradaudit.types import Leakage
from tests.attacks.attack_cases import leak

BATCH = 16


def altered(attack: Imprint, name: str = "dpfl-2conv", data: str = "digits"):
    """Returns the model that clients receive, and the private examples' set."""
    dataset = load_dataset(data)
    honest = build_model(name, dataset.shape, dataset.classes)
    return attack.altered(honest, dataset.inputs[-256:]), dataset


@pytest.mark.parametrize(
    "name", ["dpfl-2conv", pytest.param("resnet-gn", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("sparse", [False, True])
def test_whoever_is_alone_in_a_bin_is_rebuilt(name, sparse):
    attack = Imprint(bins=64, sparse=sparse)
    model, digits = altered(attack, name)
    observation, victim = leak(model, digits.inputs[:BATCH], digits.labels[:BATCH])
    found = attack.reconstruct(jax.random.key(0), model, observation)
    scores = imprint_scores(
        attack, model, observation.params, victim.inputs[None], found.inputs[None], 0.01
    )
    assert scores["alone"] > 0.5
    assert scores["alone_rebuilt"] == 1.0


def test_who_is_drawn_twice_is_in_its_own_company():
    attack = Imprint(bins=64)
    model, digits = altered(attack)
    batch = digits.inputs[:4]
    twice = np.concatenate([batch, batch])[None]
    params = model.init(jax.random.key(0))
    scores = imprint_scores(attack, model, params, twice, twice, 0.01)
    bins = model.network.bins_of(batch).tolist()
    assert scores["alone"] == np.mean([bins.count(one) == 1 for one in bins])
    assert scores["expected"] == attack.expected(4)


def test_tables_are_read_in_a_random_direction():
    attack = Imprint(bins=64, measurement=RandomDirection())
    model, table = altered(attack, "mlp", "cancer")
    observation, victim = leak(model, table.inputs[:BATCH], table.labels[:BATCH])
    found = attack.reconstruct(jax.random.key(0), model, observation)
    scores = imprint_scores(
        attack, model, observation.params, victim.inputs[None], found.inputs[None], 0.01
    )
    assert scores["alone"] > 0.5
    assert scores["alone_rebuilt"] == 1.0


@pytest.mark.parametrize("bins", [32, 128, 512])
def test_as_many_are_alone_as_theory_says(bins):
    """Bins are made of 256 public examples, and stay near to equally likely."""
    attack = Imprint(bins=bins)
    model, digits = altered(attack)
    where = model.network.bins_of(digits.inputs[:-256])
    shares = np.bincount(where, minlength=bins) / len(where)
    alone = float(np.sum(shares * (1 - shares) ** (BATCH - 1)))
    assert alone <= attack.expected(BATCH) + 1e-9  # equally likely bins are best
    assert alone > attack.expected(BATCH) - 0.1
    assert where.min() >= 0
    assert where.max() < bins


@pytest.mark.parametrize("sparse", [pytest.param(False, marks=pytest.mark.slow), True])
def test_the_gain_changes_the_gradient_and_nothing_else(sparse):
    models = [altered(Imprint(16, sparse=sparse, gain=g))[0] for g in (1.0, 50.0)]
    inputs = load_dataset("digits").inputs[:4]
    params = [model.init(jax.random.key(3)) for model in models]
    pairs = zip(models, params, strict=True)
    one, two = (model.apply(p, {}, jnp.asarray(inputs)) for model, p in pairs)
    np.testing.assert_allclose(one, two, rtol=1e-4)


def test_clipping_by_tensor_does_not_hide_an_example():
    found = ga.attack(
        type=0,
        dataset="digits",
        model="mlp",
        batch_size=BATCH,
        threat="malicious",
        method="imprint:bins=64",
        defense="fed-cdp:clip=0.05,sigma=0",
        victims=2,
        draws=1,
        line_ups=0,
    )
    scores = found.beside["imprint"]
    assert scores["alone_rebuilt"] > 0.9


def test_under_fed_cdp_it_fails_and_the_certificate_agrees():
    found = ga.attack(
        type=1,
        dataset="digits",
        model="mlp",
        batch_size=BATCH,
        threat="malicious",
        method="imprint:bins=64",
        defense="fed-cdp:clip=4,sigma=6",
        victims=2,
        draws=1,
        line_ups=20,
    )
    plain = found.to_dict()
    assert plain["imprint"]["rebuilt"] == 0.0
    assert any("could notice" in said for said in plain["limitations"])
    assert plain["certificate"]["broken"] == []


@pytest.mark.parametrize(
    "name",
    [n if n == "mlp" else pytest.param(n, marks=pytest.mark.slow) for n in MODELS],
)
def test_what_a_client_could_notice_is_in_no_honest_network(name):
    params = build_model(name, (8, 8, 1), 10).init(jax.random.key(0))
    assert noticeable(params) == []


def test_what_a_client_could_notice_is_said():
    model, _ = altered(Imprint(bins=16))
    said = " ".join(noticeable(model.init(jax.random.key(0))))
    assert "rank 1" in said
    assert "in order" in said


def test_it_needs_a_malicious_server_and_says_so():
    attack = imprint()
    with pytest.raises(InputError, match="--threat malicious"):
        Threat.parse("aware", Leakage.SERVER).check(attack)
    Threat.parse("malicious", Leakage.SERVER).check(attack)
    digits = load_dataset("digits")
    model = build_model("dpfl-2conv", digits.shape, digits.classes)
    observation, _ = leak(model, digits.inputs[:2], digits.labels[:2])
    with pytest.raises(InputError, match="no imprint layer"):
        attack.reconstruct(jax.random.key(0), model, observation)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"bins": 1}, "bins"),
        ({"gain": 0.0}, "gain"),
        ({"measure": "bright"}, "did you"),
    ],
)
def test_wrong_numbers_are_refused(given, words):
    with pytest.raises(InputError, match=words):
        imprint(**given)


def test_public_examples_that_measure_the_same_are_refused():
    model = build_model("dpfl-2conv", (8, 8, 1), 10)
    with pytest.raises(InputError, match="must differ"):
        Imprint().altered(model, np.zeros((9, 8, 8, 1), np.float32))
    assert not isinstance(model.network, Imprinted)
