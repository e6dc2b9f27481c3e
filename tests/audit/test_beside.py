"""Beside an attack: what an informed adversary picks, and what nobody passes."""

import dataclasses
import json

import jax
import pytest
from typer.testing import CliRunner

import gradaudit as ga
from gradaudit import defenses
from gradaudit.audit import informed
from gradaudit.audit.gate import attack_until_clear
from gradaudit.audit.informed import broken_certificates, line_up_and_certificates
from gradaudit.cli.app import app
from gradaudit.data import load_dataset
from gradaudit.defenses.schedules import Table
from gradaudit.errors import InputError
from gradaudit.federation.recipe import Recipe, initial_state
from gradaudit.federation.setting import Setting
from gradaudit.models.networks import build_model
from gradaudit.report.result import RESULT, validate
from gradaudit.types import Leakage

KEY = jax.random.key(0)
SMALL = {"dataset": "cancer", "method": "analytic", "victims": 16}


@pytest.fixture(scope="module")
def noisy():
    return ga.attack(defense="fed-cdp", **SMALL)


def test_with_noise_both_stand_in_the_result(noisy):
    report = json.loads(json.dumps(noisy.to_dict()))
    validate(report, RESULT)
    line_up, rebuilt = (
        report["certificate"][name] for name in ("line_up", "reconstruction")
    )
    assert line_up["line_ups"] == 100 and line_up["candidates"] == 10
    assert line_up["guessing"] == 0.1 < line_up["certified"]["value"] < 1
    assert line_up["measured"]["low"] <= line_up["certified"]["value"]
    assert rebuilt["kappa"] < rebuilt["value"] < 1 and rebuilt["confidence"] == 0.95
    assert rebuilt["threshold"] == 0.1
    assert noisy.asr.low <= rebuilt["value"]
    assert report["certificate"]["broken"] == []


def test_the_certificates_alone_cost_nothing(noisy, monkeypatch):
    monkeypatch.setattr(informed, "play_cells", lambda *_: pytest.fail("played"))
    alone = ga.attack(defense="fed-cdp", line_ups=0, **SMALL).certificate
    assert alone["line_up"]["measured"] is None and not alone["line_up"]["line_ups"]
    assert alone["line_up"]["certified"] == noisy.certificate["line_up"]["certified"]
    assert alone["reconstruction"] == noisy.certificate["reconstruction"]


def test_without_noise_there_is_nothing_to_certify():
    assert ga.attack(**SMALL).to_dict()["certificate"] is None
    assert ga.attack(defense="prune", **SMALL).certificate is None


def test_noise_behind_the_tap_is_said_to_certify_nothing():
    found = ga.attack(defense="fed-sdp", line_ups=10, **SMALL).certificate
    assert found["line_up"]["measured"]["value"] == 1.0
    for part in (found["line_up"]["certified"], found["reconstruction"]):
        assert part["value"] is None and "after this adversary" in part["reason"]


LIES = """
import dataclasses
from gradaudit import defenses

defense = dataclasses.replace(
    defenses.fed_cdp(clip=1e6, sigma=1e-13),
    mechanisms=defenses.fed_cdp(sigma=8.0).mechanisms,
)
"""


def run(*words):
    base = ("attack", "--dataset", "cancer", "--method", "analytic", "--victims", "16")
    return CliRunner().invoke(app, [*base, *map(str, words)])


@pytest.mark.parametrize(
    "gate",
    [pytest.param([], marks=pytest.mark.slow), ["--max-asr", "0.99"]],
    ids=["plain", "gate"],
)
def test_noise_that_is_not_there_ends_with_1_and_says_what_to_look_at(tmp_path, gate):
    file = tmp_path / "mine.py"
    file.write_text(LIES)
    out, narrow = tmp_path / "out", ("--success-rmse", "0.02")
    done = run("--defense", f"{file}:defense", "--out", out, "--json", *narrow, *gate)
    assert done.exit_code == 1, done.output
    assert done.stderr.count("certificate broken: ") == 2, done.stderr
    assert "picked 1.000" in done.stderr and "16 of 16 victims" in done.stderr
    assert "The noise is not what the defense says: look at" in done.stderr
    broken = json.loads(done.stdout)["certificate"]["broken"]
    assert len(broken) == 2
    assert json.loads((out / "result.json").read_text())["certificate"][
        "broken"
    ] == broken  # fmt: skip


def test_people_see_measured_and_certified(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    done = run("--defense", "fed-cdp", "--out", tmp_path / "out")
    assert done.exit_code == 0, done.output
    for words in ("line-up, one of 10", "certified: at most 0.", "rebuilt by anybody"):
        assert words in done.stdout


def test_a_gate_plays_beside_its_first_batch_only(monkeypatch):
    played, real = [], informed.play_cells
    monkeypatch.setattr(
        informed, "play_cells", lambda *a: played.append(a[0].line_ups) or real(*a)
    )
    found = attack_until_clear(
        0.3, dataset="cancer", method="analytic", defense="fed-cdp"
    )
    assert found.asked > 4 and played == [100]
    assert found.to_dict()["certificate"]["line_up"]["line_ups"] == 100


def certified(found, low=0.3):
    line_up = {"broken": False, "candidates": 10}
    return {"line_up": line_up, "reconstruction": {"value": low}} if found else None


def test_what_counts_as_broken():
    assert broken_certificates(None, 9, 9) == []
    assert broken_certificates(certified(True), 0, 9) == []
    assert broken_certificates(certified(True), 3, 9) == []
    (said,) = broken_certificates(certified(True), 9, 9)
    assert "9 of 9 victims were rebuilt, certified 0.300" in said
    assert broken_certificates(certified(True, None), 9, 9) == []


def test_the_round_of_the_attack_is_the_round_that_is_certified():
    """A schedule: next to no noise in the first round, a lot in the second."""
    data = load_dataset("cancer")
    model = build_model("mlp", data.shape, data.classes)
    guard = defenses.fed_cdp(clip=1e3, sigma=Table((1e-6, 8.0)))
    setting = Setting(clients=1, clients_per_round=1, examples=9, rounds=2)
    first = initial_state(Recipe.of(model, guard, setting), model.init(KEY))
    second = dataclasses.replace(first, round=first.round + 1)
    for state, picked, bound in ((first, (0.9, 1.0), 1.0), (second, (0.0, 0.3), 0.2)):
        found = line_up_and_certificates(
            model, data, guard, Leakage.EXAMPLE, [state], batch_size=1, local_steps=1,
            success_rmse=0.1, seed=0, line_ups=60,
        )["line_up"]  # fmt: skip
        assert picked[0] <= found["measured"]["value"] <= picked[1]
        assert found["certified"]["value"] == pytest.approx(bound, abs=0.05)


def test_numbers_beyond_reason_are_refused():
    for wrong in (-1, 10**9):
        with pytest.raises(InputError, match="line_ups must lie in"):
            ga.attack(line_ups=wrong, **SMALL)


NOISY = [name for name in defenses.PRESETS if defenses.parse(name).mechanisms]


@pytest.mark.slow
@pytest.mark.parametrize("dataset", ["lfw-patches", "mnist"])
@pytest.mark.parametrize("name", [*NOISY, "fed-cdp:sigma=0.5", "fed-cdp:sigma=0.05"])
def test_attacks_on_every_noisy_preset_stay_below_the_certificate(name, dataset):
    """Measured ASR's lower end <= certified; where there is no bound, the reason."""
    try:
        data = load_dataset(dataset)
    except InputError:
        pytest.skip(f"{dataset} is not here")
    model = build_model("mlp", data.shape, data.classes)
    guard = defenses.parse(name)
    state = initial_state(Recipe.of(model, guard, Setting()), model.init(KEY))
    bounds = {}
    for leakage in Leakage:
        certificate = line_up_and_certificates(
            model, data, guard, leakage, [state], batch_size=1, local_steps=1,
            success_rmse=0.1, seed=0, line_ups=0,
        )  # fmt: skip
        rebuilt = certificate["reconstruction"]
        for found in (certificate["line_up"]["certified"], rebuilt):
            assert (found["value"] is None) == bool(found["reason"])
        if rebuilt["value"] is not None:
            bounds[int(leakage)] = rebuilt["value"]
    for leakage, bound in list(bounds.items())[-1:]:  # where the most is read
        attacked = ga.attack(
            leakage, "aware", guard, data, model, threat="aware", victims=8, draws=2,
            batch_size=1,
            iterations=30, line_ups=40,
        )  # fmt: skip
        assert attacked.to_dict()["certificate"]["broken"] == []
        assert attacked.asr.low <= bound
        print(f"{dataset}, {name}, type {leakage}: {attacked.asr.value} <= {bound:.3f}")
