"""Several looks at a victim: they add up, and each has its own round."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradaudit as ga
from gradaudit.attacks.distances import RelativeL2
from gradaudit.attacks.objective import accounts, misfit, objective
from gradaudit.attacks.priors import Smooth
from gradaudit.attacks.starts import Layout
from gradaudit.audit.scenario import Simulated
from gradaudit.audit.threat import Threat
from gradaudit.data import load_dataset
from gradaudit.federation.setting import Setting
from gradaudit.models.gradients import one_hot
from gradaudit.models.networks import build_model
from gradaudit.types import Knowledge, Leakage

SMALL = {"dataset": "digits", "model": "dpfl-2conv", "victims": 2, "draws": 1}
RELATIVE = RelativeL2(weight=1.0)


def scenario(defense, looks, leakage=Leakage.EXAMPLE, batch=1, aware=True):
    data = load_dataset("digits")
    model = build_model("mlp", data.shape, data.classes)
    setting = Setting(
        clients=2, clients_per_round=2, local_steps=1, batch_size=batch, rounds=looks,
        examples=batch, learning_rate=0.05,
    )  # fmt: skip
    known = frozenset({Knowledge.DEFENSE} if aware else ())
    threat = Threat("told", leakage, known, looks)
    made = Simulated.drawn(jax.random.key(5), model, data, defense, threat, setting)
    return model, made


def seen(made):
    """Returns what is read of the first victim, and the truth."""
    group = next(iter(made.groups()))
    one = group.victims.observe(np.zeros(1, np.int64)).first()
    truth = made.truth(np.zeros(1, np.int64))
    return jax.tree.map(jnp.asarray, one), truth.inputs[0], truth.labels[0]


def nats_between(model, observation, inputs, labels):
    """Returns by how many nats grey explains the looks worse than the truth."""

    def nats(images):
        targets = one_hot(jnp.asarray(labels), model.classes)
        looks = accounts(RELATIVE, model, observation, False, images, targets)
        return misfit(looks) * len(looks) / looks[0].nat

    compiled = jax.jit(nats)
    return float(compiled(jnp.full(inputs.shape, 0.5)) - compiled(jnp.asarray(inputs)))


def test_n_looks_at_fixed_parameters_are_one_with_noise_of_s_over_root_n():
    clip, sigma, count = 4.0, 0.05, 4
    model, made = scenario(ga.defenses.fed_cdp(clip=clip, sigma=sigma), 1)
    one, inputs, labels = seen(made)
    targets = one_hot(jnp.asarray(labels), model.classes)

    @jax.jit
    def expected(images):
        (told,) = accounts(RELATIVE, model, one, False, images, targets)
        return jax.tree.map(lambda leaf: leaf[0], told.known.expected)

    exact = expected(jnp.asarray(inputs))

    @jax.jit
    def noisy(key):
        draw = lambda x: x + clip * sigma * jax.random.normal(key, x.shape)  # noqa: E731
        return jax.tree.map(draw, exact)

    reads = [noisy(key) for key in jax.random.split(jax.random.key(1), count)]
    first, *others = (dataclasses.replace(one, sent=read) for read in reads)
    joint = dataclasses.replace(first, others=tuple(others))
    finer = ga.defenses.fed_cdp(clip=clip, sigma=sigma / count**0.5).per_example
    mean = dataclasses.replace(
        one,
        sent=jax.tree.map(lambda *leaves: sum(leaves) / count, *reads),
        told=dataclasses.replace(one.told, at_examples=finer),
    )
    together = nats_between(model, joint, inputs, labels)
    assert together == pytest.approx(
        nats_between(model, mean, inputs, labels), rel=0.01
    )
    alone = nats_between(model, first, inputs, labels)
    assert together == pytest.approx(count * alone, rel=0.3) and together > 2 * alone


def test_equal_looks_at_an_exact_gradient_are_one_look():
    model, made = scenario(ga.defenses.none(), 1, aware=False)
    one, inputs, labels = seen(made)
    twice = dataclasses.replace(one, others=(one,))
    layout = Layout(inputs.shape, model.classes, searches_labels=False)
    where = jax.random.uniform(jax.random.key(2), (layout.size,))
    alone, both = (
        objective(
            *(RELATIVE, (Smooth(),), layout, model, look, False, jnp.asarray(labels))
        )
        for look in (one, twice)
    )
    # What is unknown of the noise is told twice: the prior counts half.
    free = objective(RELATIVE, (), layout, model, one, False, jnp.asarray(labels))
    bare, once, doubled = (float(jax.jit(f.total)(where)) for f in (free, alone, both))
    np.testing.assert_allclose(doubled - bare, (once - bare) / 2, rtol=1e-4)
    residuals = jax.jit(both.residuals)(where)
    np.testing.assert_allclose(jnp.vdot(residuals, residuals), doubled, rtol=2e-2)


@pytest.mark.parametrize(
    "leakage", [pytest.param(Leakage.EXAMPLE, marks=pytest.mark.slow), Leakage.SERVER]
)
def test_every_look_has_its_own_round_and_all_are_explained_by_the_truth(leakage):
    batch = 1 if leakage is Leakage.EXAMPLE else 3
    model, made = scenario(ga.defenses.none(), 3, leakage, batch, aware=False)
    one, inputs, labels = seen(made)
    assert len(one.looks) == 3
    weights = [np.asarray(jax.tree.leaves(look.params)[0]) for look in one.looks]
    assert not np.array_equal(weights[0], weights[1])
    assert not np.array_equal(weights[1], weights[2])
    assert one.others[0].training == one.training
    targets = one_hot(jnp.asarray(labels), model.classes)

    @jax.jit
    def misfits(images):
        looks = accounts(RELATIVE, model, one, False, images, targets)
        return [look.misfit for look in looks]

    assert max(misfits(jnp.asarray(inputs))) < 1e-8


def test_the_threat_says_how_many_and_the_certificate_counts_them():
    noisy = SMALL | {"model": "mlp", "defense": "fed-cdp:clip=4,sigma=6"}
    once, twice = (
        ga.attack(**noisy, looks=looks, threat="aware", line_ups=0, **how).to_dict()
        for looks, how in ((1, {"method": "analytic"}), (2, {"iterations": 1}))
    )
    assert (once["threat"]["looks"], twice["threat"]["looks"]) == (1, 2)
    bounds = [
        (c["line_up"]["certified"]["value"], c["reconstruction"]["value"])
        for c in (once["certificate"], twice["certificate"])
    ]
    assert twice["certificate"]["line_up"]["looks"] == 2
    assert all(more > less for less, more in zip(*bounds, strict=True))


@pytest.mark.slow
def test_more_looks_see_more_through_noise():
    errors = [
        ga.attack(
            **SMALL | {"victims": 6}, defense="fed-cdp:clip=4,sigma=0.02", looks=looks,
            method="gauss-newton", threat="aware", line_ups=0,
        ).rmse["median"]
        for looks in (1, 16)
    ]  # fmt: skip
    assert errors[1] < 0.7 * errors[0]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"looks": 0}, "looks must lie in"),
        ({"looks": 10**6}, "looks must lie in"),
        ({"looks": 2, "local_steps": 2, "type": 1}, "leave local_steps out"),
        ({"looks": 2, "batch_size": 2}, "batch_size for type 2"),
        ({"looks": 2, "method": "analytic", "model": "mlp"}, "one look only"),
        ({"looks": 2, "run": "nowhere"}, "looks is 1"),
    ],
)
def test_looks_that_cannot_be_are_refused(asked, words):
    with pytest.raises(ga.InputError, match=words):
        ga.attack(**(SMALL | asked))
