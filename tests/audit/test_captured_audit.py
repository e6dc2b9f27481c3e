"""An audit of captured updates: a column for each run, one verdict, one page."""

import json
import shutil

import numpy as np
import pytest
from typer.testing import CliRunner

import gradaudit as ga
from gradaudit.audit.audit_plan import AuditPlan
from gradaudit.audit.captured_grid import CapturedGrid
from gradaudit.cli.app import app
from gradaudit.errors import InputError
from tests.audit.test_captured_attack import CLIENTS, MODEL, capture

CLIP = 0.05
CLAIMS = {
    "clip": {"clip": CLIP},
    "noise": {"clip": CLIP, "noise_std": 0.5},
    "weak": {"clip": CLIP, "noise_std": 0.5},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Four runs: without a defense, clipped, with noise, with 100 times less of it."""
    whole = tmp_path_factory.mktemp("runs")
    for run, facts in {
        "none": {},
        "clip": {"clip": CLIP},
        "noise": {"clip": CLIP, "noise": 0.5},
        "weak": {"clip": CLIP, "noise": 0.005},
    }.items():
        made = capture(tmp_path_factory.mktemp(run), claim=CLAIMS.get(run), **facts)
        shutil.copytree(made, whole / "recorded" / run)
    shutil.copytree(made.parent / "truth", whole / "truth")
    shutil.copy(made.parent / "mine.py", whole / "mine.py")
    return whole


ASKED = {"attacks": ["analytic"], "threats": ["curious", "aware"]}


@pytest.fixture(scope="module")
def audited(folder, tmp_path_factory):
    return ga.audit(
        captured=str(folder / "recorded"), truth=str(folder / "truth"),
        model=f"{folder / 'mine.py'}:build", out=tmp_path_factory.mktemp("audit"),
        **ASKED,
    )  # fmt: skip


def verdicts(document):
    return {
        (cell["defense"]["text"], cell["threat"]["name"]): cell["verdict"]["kind"]
        for cell in document["cells"]
    }


def test_each_run_has_its_verdict(audited):
    found = verdicts(audited.to_dict())
    assert len(found) == 8
    assert found["none", "curious"] == found["clip", "curious"] == "leaks"
    assert found["noise", "curious"] == found["noise", "aware"] == "not shown to leak"
    assert audited.verdict == "leaks"


def test_none_is_the_control_and_the_attacks_work(audited):
    head = audited.to_dict()["headline"]
    assert "the attacks work" in head["control"]
    assert "Under clip" in head["sentence"]


def test_a_claim_that_does_not_hold_is_in_the_headline(audited):
    document = audited.to_dict()
    (claim,) = document["headline"]["claims"]
    assert claim["defense"] == "weak" and "100 times too small" in claim["sentence"]
    rows = {row["defense"]: row for row in document["mechanism"]}
    assert [rows[run]["verdict"] for run in ("none", "clip", "noise", "weak")] == [
        "can't tell", "consistent", "consistent", "refuted",
    ]  # fmt: skip
    assert "no noise was added" in rows["none"]["sentence"]


def test_who_knows_nothing_more_is_not_asked_again(audited):
    same = {
        (cell["defense"]["text"], cell["threat"]["name"]): cell["same_as"]
        for cell in audited.to_dict()["cells"]
    }
    assert same["none", "aware"] is not None and same["clip", "aware"] is None


def test_the_page_withholds_pictures_until_they_are_asked_for(audited, folder):
    page = (audited.folder / "report.html").read_text()
    assert "100 times too small" in page and "are withheld" in page
    assert "data:image/png" not in page
    ran = CliRunner().invoke(
        app, ["report", str(audited.folder), "--include-reconstructions",
              "--to", str(folder / "shown.html")],
    )  # fmt: skip
    assert ran.exit_code == 0
    assert "data:image/png" in (folder / "shown.html").read_text()


def test_without_a_truth_the_page_says_what_can_be_said(folder, tmp_path):
    asked = ["audit", "--captured", str(folder / "recorded/none"), "--out",
             str(tmp_path), "--model", f"{folder / 'mine.py'}:build", "--attack",
             "analytic", "--json"]  # fmt: skip
    ran = CliRunner().invoke(app, asked)
    assert ran.exit_code == 0, ran.stderr
    document = json.loads(ran.stdout)
    assert verdicts(document) == {("none", t): "leaks" for t in ("curious", "aware")}
    assert f"{CLIENTS} of {CLIENTS} updates determine" in str(document["headline"])
    assert not list(tmp_path.rglob("reconstructions.npz"))


def test_recordings_that_changed_are_another_audit(folder, tmp_path):
    shutil.copytree(folder / "recorded/none", tmp_path / "rec")
    asked = {"captured": str(tmp_path / "rec"), "model": MODEL, **ASKED}
    first = ga.audit(**asked, out=tmp_path / "out")
    one = next((tmp_path / "rec").iterdir())
    shutil.rmtree(one)
    with pytest.raises(InputError, match="another run"):
        ga.audit(**asked, out=tmp_path / "out")
    second = ga.audit(**asked, out=tmp_path / "out", overwrite=True)
    ids = [{c["id"] for c in each.to_dict()["cells"]} for each in (first, second)]
    assert not ids[0] & ids[1]


REFUSED = {
    "no model": ({"model": None}, "--model"),
    "a data set": ({"datasets": ["digits"]}, "can't choose datasets"),
    "a defense": ({"defenses": ["none"]}, "can't choose defenses"),
    "line-ups only": ({"threats": ["informed"]}, "--candidates"),
    "no folder": ({"captured": "nowhere"}, "no folder nowhere"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_recordings_decide_is_refused_in_words(case, folder):
    given, words = REFUSED[case]
    asked = {"captured": str(folder / "recorded"), "model": MODEL} | given
    with pytest.raises(InputError) as error:
        ga.audit(**asked)
    assert words in str(error.value)


def test_recordings_beside_folders_of_them_are_refused(folder, tmp_path):
    shutil.copytree(folder / "recorded", tmp_path / "rec")
    one = next((tmp_path / "rec" / "none").iterdir())
    shutil.copytree(one, tmp_path / "rec" / "round-1")
    with pytest.raises(InputError, match="folder of its own"):
        ga.audit(captured=str(tmp_path / "rec"), model=MODEL)


def test_the_aware_are_told_what_is_set_up_not_what_is_claimed(tmp_path):
    """A sensitivity that somebody typed scales the noise, whatever it claims."""
    claim = {"clip": 0.5, "sensitivity": 0.005, "epsilon": 10.0, "delta": 1e-5}
    made = capture(tmp_path, claim=claim)
    plan = AuditPlan(captured=str(made), model=MODEL)
    (run,) = CapturedGrid.of(plan).guards
    clip, noise = run.told("wire").update
    std = 0.005 * np.sqrt(2 * np.log(1.25 / 1e-5)) / 10
    assert clip.bound(0) == 0.5 and noise.multiplier(0) == pytest.approx(std)
    assert len(run.told("aggregate").update) == 1
