"""An adversary who is told the defense: 0 at the truth, and stronger."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradaudit as ga
from gradaudit.attacks import presets
from gradaudit.attacks.distances import Cosine, RelativeL2, SquaredL2
from gradaudit.attacks.objective import objective
from gradaudit.attacks.priors import Smooth
from gradaudit.attacks.starts import Layout
from gradaudit.audit.scenario import Simulated
from gradaudit.audit.threat import Threat
from gradaudit.data import load_dataset
from gradaudit.defenses.clipping import Clip, Scope
from gradaudit.defenses.compression import Prune, Sign, TopK
from gradaudit.defenses.schedules import Constant
from gradaudit.defenses.transforms import defend
from gradaudit.federation.setting import Setting
from gradaudit.models.networks import build_model
from gradaudit.types import Knowledge, Leakage

CLIP = Clip(Constant(0.05))
DETERMINISTIC = {
    "clip": (CLIP,),
    "global clip": (Clip(Constant(0.05), Scope.GLOBAL),),
    "prune": (Prune(0.6),),
    "top-k": (TopK(40),),
    "clip, then prune": (CLIP, Prune(0.5)),
}


def observed(defense, leakage, batch=1, steps=1, aware=True):
    """Returns one observation of the digits and the truth behind it."""
    data = load_dataset("digits")
    model = build_model("dpfl-2conv", data.shape, data.classes)
    setting = Setting(
        clients=2,
        clients_per_round=2,
        local_steps=steps,
        batch_size=batch,
        rounds=1,
        examples=batch * steps,
    )
    known = frozenset({Knowledge.DEFENSE} if aware else ())
    threat = Threat("told", leakage, known)
    scenario = Simulated.drawn(jax.random.key(5), model, data, defense, threat, setting)
    group = next(iter(scenario.groups()))
    stacked = group.victims.observe(np.zeros(1, np.int64))
    sent = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), stacked.sent)
    truth = scenario.truth(np.zeros(1, np.int64))
    return model, dataclasses.replace(stacked, sent=sent), truth


def value_at(model, observation, truth, distance, replays=False):
    inputs, labels = (jnp.asarray(leaf[0]) for leaf in (truth.inputs, truth.labels))
    layout = Layout(inputs.shape, model.classes, searches_labels=False)
    evaluate = objective(distance, (), layout, model, observation, replays, labels)
    return float(jax.jit(evaluate.total)(inputs.reshape(-1)))


CASES = [
    *(
        pytest.param(
            *(name, Leakage.EXAMPLE, RelativeL2(weight=1.0)),
            marks=[pytest.mark.slow] * (name != "clip"),
        )
        for name in DETERMINISTIC
    ),
    ("prune", Leakage.EXAMPLE, Cosine()),  # of a clip it does not see the scale
    ("clip, then prune", Leakage.CLIENT, RelativeL2(weight=1.0)),
]


@pytest.mark.parametrize(("name", "leakage", "distance"), CASES)
def test_without_noise_the_objective_is_zero_at_the_truth(name, leakage, distance):
    if leakage is Leakage.EXAMPLE:
        guard, batch = defend(name, per_example=DETERMINISTIC[name]), 1
    else:
        guard, batch = defend(name, per_example=(CLIP,), update=(Prune(0.3),)), 3
    model, seen, truth = observed(guard, leakage, batch)
    assert value_at(model, seen, truth, distance) < 1e-6
    blind = dataclasses.replace(seen, told=None, memory=())
    assert value_at(model, blind, truth, distance) > 1e-4  # a curious one misfits


def test_several_local_steps_under_a_clip_are_replayed():
    guard = defend("clip", per_example=(Clip(Constant(0.5)),))
    model, seen, truth = observed(guard, Leakage.CLIENT, batch=2, steps=3)
    assert value_at(model, seen, truth, RelativeL2(weight=1.0), replays=True) < 1e-5


def test_the_noise_is_expected_at_the_truth():
    """At the truth the misfit is the noise's share of what was read."""
    model, seen, truth = observed(
        ga.defenses.fed_cdp(clip=4.0, sigma=0.01), Leakage.EXAMPLE
    )
    leaves = jax.tree.leaves(seen.sent)
    size = sum(leaf.size for leaf in leaves)
    share = size * 0.04**2 / sum(float(jnp.sum(leaf**2)) for leaf in leaves)
    found = value_at(model, seen, truth, RelativeL2(weight=1.0))
    assert 0.8 * share < found < 1.2 * share


def test_where_there_is_nothing_to_know_aware_is_curious():
    small = dict(type=2, dataset="digits", model="mlp", victims=2, draws=1)
    small |= dict(line_ups=0)
    runs = [
        ga.attack(**small, iterations=3, threat=threat, defense=defense)
        for threat, defense in (
            ("curious", "none"),
            ("aware", "none"),
            ("aware", "fed-sdp"),  # acts behind the tap
        )
    ]
    assert all((run.inputs == runs[0].inputs).all() for run in runs)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow)
        for name in presets.PRESETS
        if name
        in (
            "dlg",
            "idlg",
            "gradinv",
            "gradinv-chosen",
            "aware",
            "gauss-newton",
            "strongest",
        )
    ],
)
def test_of_every_attack_aware_is_curious_where_there_is_nothing_to_know(name):
    """Public examples choose a prior's weight, and nothing else differs."""
    small = dict(type=2, dataset="digits", model="dpfl-2conv", victims=1, iterations=2)
    curious, aware = (
        ga.attack(**small, method=name, threat=threat)
        for threat in ("curious", "aware")
    )
    if any(prior.__class__ is Smooth for prior in priors_of(presets.parse(name))):
        np.testing.assert_allclose(aware.inputs, curious.inputs, atol=0.2)
    else:
        np.testing.assert_array_equal(aware.inputs, curious.inputs)


def priors_of(attack):
    members = [member.attack for member in attack.members] or [attack]
    return [prior for each in members for prior in getattr(each, "priors", ())]


@pytest.mark.parametrize("name", ["analytic", "spear"])
def test_closed_forms_read_the_same_whatever_the_threat(name):
    small = dict(type=2, dataset="digits", model="mlp", victims=1)
    runs = [ga.attack(**small, method=name, threat=t) for t in ("curious", "aware")]
    np.testing.assert_array_equal(runs[0].inputs, runs[1].inputs)


@dataclasses.dataclass(frozen=True)
class Canary:
    """A defense that dies when anybody asks what it does."""

    def init(self, params):
        return ()

    def apply(self, key, tree, state, t):
        return tree, state

    def explain(self, evidence, state, t):
        raise AssertionError("somebody asked the defense")


def test_nothing_of_the_defense_reaches_a_curious_attack():
    canary = defend("canary", per_example=(Canary(),))
    small = dict(type=2, dataset="digits", model="dpfl-2conv", victims=1, iterations=1)
    ga.attack(**small, defense=canary)
    with pytest.raises(AssertionError, match="somebody asked"):
        ga.attack(**small, defense=canary, threat="aware")


@pytest.mark.parametrize(
    "transforms",
    [(CLIP,), pytest.param((Prune(0.6),), marks=pytest.mark.slow)],
    ids=["clip", "prune"],
)
def test_what_stops_a_curious_adversary_does_not_stop_an_aware_one(transforms):
    guard = defend("guard", per_example=transforms)
    rates = {
        threat: ga.attack(
            type=2, dataset="digits", model="dpfl-2conv", victims=6, draws=2,
            iterations=40, defense=guard, threat=threat, line_ups=0,
        ).asr.value
        for threat in ("curious", "aware")
    }  # fmt: skip
    assert rates["aware"] >= 0.8
    assert rates["curious"] <= rates["aware"] - 0.3


def test_signs_are_matched_by_an_aware_adversary_and_refused_for_a_curious_l2():
    guard = defend("sign", per_example=(Sign(),))
    small = dict(type=2, dataset="digits", model="mlp", victims=1, iterations=2)
    small |= dict(line_ups=0, draws=1)
    with pytest.raises(ga.InputError, match="signs have lost"):
        ga.attack(**small, defense=guard)
    assert ga.attack(**small, defense=guard, threat="aware").scores


def test_the_papers_scale_is_a_named_variant():
    assert presets.parse("cpl:scale=paper").distance == SquaredL2()
    assert presets.parse("cpl").distance == RelativeL2()
    with pytest.raises(ga.InputError, match="did you mean 'paper'"):
        presets.parse("cpl:scale=papers")


def test_the_relative_distance_does_not_depend_on_the_size_of_the_gradient():
    model, seen, truth = observed(defend("none"), Leakage.EXAMPLE, aware=False)
    other = jax.tree.map(lambda leaf: leaf + 0.1, seen.sent)
    small = [jax.tree.map(lambda x: 1e-3 * x, t) for t in (other, seen.sent)]
    large = RelativeL2()(other, seen.sent)
    np.testing.assert_allclose(RelativeL2()(*small), large, rtol=1e-4)
