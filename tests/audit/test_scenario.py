"""What leaks: addressed by round and client, and kept apart from the truth."""

import dataclasses
import gc
import pathlib
import sys

import jax
import numpy as np
import pytest

import gradaudit as ga
from gradaudit.attacks import PRESETS, Attack, Matching, cpl
from gradaudit.audit.scenario import Simulated
from gradaudit.audit.threat import Threat
from gradaudit.data import load_dataset
from gradaudit.defenses import parse
from gradaudit.errors import InputError
from gradaudit.federation.setting import Setting
from gradaudit.models.networks import build_model
from gradaudit.types import Leakage, Reconstruction, Status, Victim

MODEL, KEY = "dpfl-2conv", jax.random.key(3)
SDP = "fed-sdp:clip=1000000,sigma=0.000001"  # nothing is clipped; std 1


def simulated(
    victims, defense="none", leakage=Leakage.SERVER, draws=1, steps=1, round_index=0,
    examples=None,
):  # fmt: skip
    digits = load_dataset("digits")
    setting = Setting(
        clients=victims,
        clients_per_round=victims,
        local_steps=steps,
        batch_size=1,
        rounds=round_index + 1,
        examples=examples or steps,
        learning_rate=0.05,
    )
    model = build_model(MODEL, digits.shape, digits.classes)
    threat = Threat("curious", leakage)
    return Simulated.drawn(
        KEY, model, digits, parse(defense), threat, setting, round_index, draws
    )


def sent(scenario, count=None):
    """Returns what was sent, a row per victim of the first draw."""
    victims = next(iter(scenario.groups())).victims
    seen = victims.observe(np.arange(victims.count if count is None else count))
    leaves = jax.tree.leaves(seen.sent)
    return np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1)


@dataclasses.dataclass(frozen=True)
class Recorder(Attack):
    """Rebuilds nothing; keeps what it is shown of each victim."""

    seen: list = dataclasses.field(default_factory=list, compare=False)

    def reconstruct(self, key, model, observation):
        leaves = jax.tree.leaves(observation.sent)
        self.seen.append(np.concatenate([np.asarray(leaf).ravel() for leaf in leaves]))
        nothing = np.zeros((1, *model.input_shape), np.float32)
        zero, one = np.int32(0), np.zeros(1, np.int32)
        return Reconstruction(
            nothing, one, np.float32(1.0), zero, zero, np.int32(Status.BUDGET)
        )


@pytest.mark.slow
def test_the_servers_noise_is_each_clients_own():
    """Through `ga.attack`: any two of 100 victims, more than are observed together."""

    def shown(defense):
        recorder = Recorder()
        ga.attack(
            type=0, method=recorder, defense=defense, victims=100, draws=1,
            batch_size=1, dataset="digits", model=MODEL, line_ups=0,
        )  # fmt: skip
        return np.stack(recorder.seen)

    noise = shown(SDP) - shown("none")
    assert noise.shape[0] == 100 and noise.std() == pytest.approx(1.0, rel=0.02)
    correlation = np.corrcoef(noise) - np.eye(100)
    assert np.abs(correlation).max() < 0.1


def test_one_victim_more_changes_nobody_elses_observation():
    few, more = sent(simulated(40, SDP)), sent(simulated(41, SDP))
    assert few.shape[0] == 40 and more.shape[0] == 41
    np.testing.assert_allclose(more[:40], few, atol=1e-5)
    truths = [simulated(n, SDP).truth(np.arange(40)).inputs for n in (40, 41)]
    np.testing.assert_array_equal(*truths)


def test_the_order_and_the_company_of_observing_do_not_matter():
    victims = next(iter(simulated(40, SDP).groups())).victims
    every = victims.observe(np.arange(40)).sent["output"]["kernel"]
    some = victims.observe(np.asarray([39, 0, 33])).sent["output"]["kernel"]
    np.testing.assert_array_equal(some, every[[39, 0, 33]])


def test_every_draw_has_its_own_network_and_its_own_victims():
    scenario = simulated(10, draws=3)
    groups = list(scenario.groups())
    assert [group.ids.tolist() for group in groups] == [
        [0, 1, 2, 3], [4, 5, 6], [7, 8, 9]
    ]  # fmt: skip
    kernels = [
        np.asarray(group.victims.observe(np.arange(1)).params["output"]["kernel"])
        for group in groups
    ]
    for a in range(3):
        for b in range(a):
            assert abs(np.corrcoef(kernels[a].ravel(), kernels[b].ravel())[0, 1]) < 0.2
    alone = simulated(10, draws=1)
    np.testing.assert_array_equal(
        np.asarray(next(iter(alone.groups())).victims.observe(np.arange(1)).params[
            "output"]["kernel"]),
        kernels[0],
    )  # fmt: skip
    np.testing.assert_allclose(sent(alone, 4), sent(scenario), atol=1e-6)
    # The truth does not depend on how the victims are dealt over the networks.
    np.testing.assert_array_equal(
        alone.truth(np.arange(10)).inputs, scenario.truth(np.arange(10)).inputs
    )


def test_local_steps_of_type_2_train_before_the_attack():
    """The same clients hold the same examples; only the training before differs."""
    one, many = (
        simulated(2, leakage=Leakage.EXAMPLE, steps=steps, round_index=1, examples=3)
        for steps in (1, 3)
    )
    ids = np.arange(2)
    np.testing.assert_array_equal(one.truth(ids).inputs, many.truth(ids).inputs)
    np.testing.assert_array_equal(one.truth(ids).labels, many.truth(ids).labels)
    moved = jax.tree.map(lambda a, b: float(abs(a - b).max()), one.params, many.params)
    assert max(jax.tree.leaves(moved)) > 1e-3
    assert np.abs(sent(one) - sent(many)).max() > 1e-3
    # Without a round of training before, the first iteration is the same for both.
    fresh = [
        sent(simulated(2, leakage=Leakage.EXAMPLE, steps=steps, examples=3))
        for steps in (1, 3)
    ]
    np.testing.assert_allclose(*fresh, atol=1e-6)


LIBRARY = pathlib.Path(ga.__file__).resolve().parent
ALLOWED = ("audit/attack_run.py", "audit/scores.py", "report/metrics.py")


class Guarded:
    """An array of the truth that only evaluators may open."""

    opened = 0

    def __init__(self, values):
        self._values = np.asarray(values)

    def _open(self):
        frame = sys._getframe(2)
        while "/site-packages/" in frame.f_code.co_filename:
            frame = frame.f_back
        name = frame.f_code.co_filename
        assert name.endswith(ALLOWED), f"{name}:{frame.f_lineno} touched the truth"
        Guarded.opened += 1
        return self._values

    def __array__(self, dtype=None, copy=None):
        return self._open()

    def __getitem__(self, index):
        return self._open()[index]

    def __getattr__(self, name):
        return getattr(self._open(), name)


@pytest.fixture
def guarded(monkeypatch):
    """The scenario hands the truth out under guard, and nothing else does."""
    truth, private = Simulated.truth, Simulated._private

    def watched(self, ids):
        found = truth(self, ids)
        return Victim(Guarded(found.inputs), Guarded(found.labels))

    def asked_by_truth_only(self, *arguments):
        assert sys._getframe(1).f_code.co_name == "truth", "labels were fetched"
        return private(self, *arguments)

    monkeypatch.setattr(Simulated, "truth", watched)
    monkeypatch.setattr(Simulated, "_private", asked_by_truth_only)
    Guarded.opened = 0


def options(name):
    if name == "analytic":
        return {"dataset": "cancer", "method": name}
    if name == "spear":
        return {"dataset": "digits", "model": "mlp-wide", "method": name, "type": 1}
    if name == "imprint":
        malicious = {"method": name, "type": 1, "threat": "malicious"}
        return {"dataset": "digits", "model": "mlp", **malicious}
    return {"dataset": "digits", "model": MODEL, "method": name, "iterations": 3}


# Other settings of the same search: one of them is enough by default.
ALIKE = {"dlg", "idlg", "gradinv", "gradinversion", "tableak"}


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.slow] * (n in ALIKE)) for n in PRESETS],
)
def test_no_attack_touches_the_truth(name, guarded):
    """Through `ga.attack` itself: only what scores may look at private data."""
    result = ga.attack(victims=2, draws=1, **options(name))
    assert len(result.scores) == 2
    assert Guarded.opened > 0  # the evaluator went through the guard


@dataclasses.dataclass(frozen=True)
class Thief(Matching):
    """Is handed nothing of the scenario, and looks for it in the whole process."""

    def problem(self, model, observation):
        (scenario,) = (each for each in gc.get_objects() if type(each) is Simulated)
        np.asarray(scenario.truth(np.arange(2)).inputs)
        raise AssertionError("the guard let a thief through")


@dataclasses.dataclass(frozen=True)
class Eavesdropper(Matching):
    """Climbs to whoever called it, for the truth in the closure of the one who watches.

    Python can't forbid it; the guard sees it.
    """

    def problem(self, model, observation):
        watcher = sys._getframe(1).f_locals["watcher"]
        cells = [cell.cell_contents for cell in watcher.__closure__]
        (evaluator,) = (cell for cell in cells if hasattr(cell, "truth"))
        np.asarray(evaluator.truth.inputs)
        raise AssertionError("the guard let a thief through")


@pytest.mark.parametrize(
    "thief", [Thief(), Eavesdropper()], ids=["scenario", "watcher"]
)
def test_the_guard_catches_who_does(thief, guarded):
    gc.collect()  # scenarios of other tests
    wanted = options("cpl") | {"method": thief, "iterations": None, "line_ups": 0}
    with pytest.raises(AssertionError, match="touched the truth"):
        ga.attack(victims=2, draws=1, **wanted)


def test_the_loop_over_the_victims_is_not_the_attacks_own():
    @dataclasses.dataclass(frozen=True)
    class Greedy(Matching):
        def reconstruct_many(self, key, model, victims, slots=None, watcher=None):
            raise AssertionError("an attack was handed the victims")

    with pytest.raises(ga.InputError, match="not its own"):
        ga.attack(victims=2, draws=1, dataset="digits", method=Greedy())


def test_labels_that_were_not_granted_are_not_even_fetched(guarded):
    with pytest.raises(AssertionError, match="labels were fetched"):
        ga.attack(
            victims=2, draws=1, threat="curious+labels",
            **(options("cpl") | {"method": cpl(labels="known")}),
        )  # fmt: skip


def test_granted_labels_are_those_of_all_who_are_observed_at_once():
    scenario = simulated(40)
    granted = Threat.parse("curious+labels", Leakage.SERVER)
    told = dataclasses.replace(scenario, threat=granted)
    everybody = np.arange(40)  # more than are computed together
    labels = next(iter(told.groups())).victims.observe(everybody).labels
    np.testing.assert_array_equal(labels, scenario.truth(everybody).labels)
    assert len(told.truth(everybody[:0]).inputs) == 0


def test_what_an_attack_is_handed_holds_arrays_only():
    """An observation is data: no object in it leads back to the scenario."""
    seen: list = []

    @dataclasses.dataclass(frozen=True)
    class Curious(Attack):
        def problem(self, model, observation):
            seen.append(observation)
            return cpl().budgeted(1, None).problem(model, observation)

        def shared(self, observation):
            return cpl().budgeted(1, None).shared(observation)

        def own(self, observation):
            return cpl().own(observation)

    ga.attack(victims=2, draws=1, dataset="digits", model=MODEL, method=Curious())
    (observation,) = seen
    for leaf in jax.tree.leaves(observation):
        assert isinstance(leaf, (np.ndarray, jax.Array, np.generic))
    assert observation.labels is None


def test_a_round_is_read_under_another_model_of_the_same_tensors():
    """What batch norm learned in training mode, read in evaluation mode; say."""
    scenario = simulated(2, leakage=Leakage.EXAMPLE)
    same = dataclasses.replace(scenario.model, name="renamed")
    assert scenario.under(same).model.name == "renamed"
    np.testing.assert_array_equal(sent(scenario.under(same)), sent(scenario))
    with pytest.raises(InputError, match="other tensors"):
        scenario.under(build_model("mlp", (8, 8, 1), 10))


def test_a_malicious_server_alters_nothing_but_what_it_adds():
    scenario = Simulated.drawn(
        KEY,
        build_model("mlp", (8, 8, 1), 10),
        load_dataset("digits"),
        parse("none"),
        Threat.parse("malicious", Leakage.SERVER),
        Setting(2, 2, 1, 1, 1, examples=1),
    )
    altered = scenario.handing_out(PRESETS["imprint"].make(bins=4).altered)
    kept = {name: altered.params[name] for name in scenario.params}
    jax.tree.map(np.testing.assert_array_equal, kept, scenario.params)
    assert set(altered.params) - set(kept) == {"imprint", "imprint_back"}
    everybody = np.arange(2)
    np.testing.assert_array_equal(
        altered.truth(everybody).inputs, scenario.truth(everybody).inputs
    )
    with pytest.raises(InputError, match="public examples"):
        simulated(2).handing_out(PRESETS["imprint"].make().altered)
