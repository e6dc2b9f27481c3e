"""A whole audit, small and real: cells kept, failures told, files valid."""

import csv
import json
import pathlib
import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

import gradaudit as ga
from gradaudit.audit import audit_cells as audit_cells
from gradaudit.audit.audit_gates import Gates
from gradaudit.audit.audit_grid import Grid
from gradaudit.audit.audit_plan import AuditPlan, changed
from gradaudit.errors import InputError
from gradaudit.report.result import AUDIT, RESULT, validate
from gradaudit.spec import Spec
from tests.conftest import SMALL_AUDIT

SMALL, PRUNE = SMALL_AUDIT, "prune:at=per_example"
NAME = re.compile(r"[a-z0-9][a-z0-9-]*")


@pytest.fixture
def done(audited):
    return audited


@pytest.fixture(autouse=True)
def without_a_page(request, monkeypatch):
    """Pages take a second each, and have tests of their own."""
    if "done" in request.fixturenames:
        request.getfixturevalue("audited")  # with its page, which others read
    monkeypatch.setattr("gradaudit.audit.audit.page", lambda *_: "<html>")


def untimed(value):
    times = ("timing", "environment", "date", "seconds")
    if isinstance(value, dict):
        return {k: untimed(v) for k, v in value.items() if k not in times}
    return [untimed(v) for v in value] if isinstance(value, list) else value


def nothing_runs(monkeypatch, but=()):
    """Makes every kind of cell fail that is run, instead of being read."""

    def run(*_):
        pytest.fail("a finished cell was run again")

    for kind in set(audit_cells._COMMANDS) - set(but):
        monkeypatch.setitem(audit_cells._COMMANDS, kind, run)


def test_the_document_is_of_its_schema_and_on_the_disk(done):
    document = done.to_dict()
    validate(document, AUDIT)
    assert json.loads((done.folder / "audit.json").read_text()) == document
    assert document["status"] == "done" and done.exit_code == 0
    for cell in document["cells"]:
        found = json.loads((done.folder / cell["folder"] / "result.json").read_text())
        validate(found, RESULT)


def test_the_grid_has_every_cell(done):
    document = done.to_dict()
    found = {(c["kind"], c["defense"]["text"]) for c in document["cells"]}
    expected = {(k, d) for k in ("attack", "line-up") for d in SMALL["defenses"]}
    assert found == expected
    (accounted,) = document["accounting"]
    assert accounted["defense"] == "fed-cdp:sigma=3"
    (tested,) = document["mechanism"]
    assert tested["verdict"] in ("refuted", "consistent", "can't tell")
    (norms,) = document["norms"]
    (row,) = norms["norms"]
    assert np.median(row["after"]) > np.median(row["before"])  # it is mostly noise
    assert all(cell["same_as"] is None for cell in document["cells"])
    rows = {(row["threat"], row["defense"]) for row in document["places"]}
    assert rows == {(t, d) for t in SMALL["threats"] for d in SMALL["defenses"]}


def test_the_verdict(done):
    head = done.to_dict()["headline"]
    by_defense = {
        (c["kind"], c["defense"]["text"]): c["verdict"]["kind"]
        for c in done.to_dict()["cells"]
    }
    assert by_defense["attack", "none"] == "leaks"
    assert by_defense["line-up", "none"] == "leaks"
    assert by_defense["attack", "fed-cdp:sigma=3"] != "leaks"
    assert "the attacks work" in head["control"]
    # Each tensor is clipped on its own: what is claimed does not hold, and that is
    # said where the verdict is.
    (claim,) = head["claims"]
    assert claim["defense"] == "fed-cdp:sigma=3" and "sqrt(M)" in claim["sentence"]


def test_the_summaries(done):
    with (done.folder / "cells.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["id"] for row in rows] == [c["id"] for c in done.to_dict()["cells"]]
    suites = ElementTree.parse(done.folder / "junit.xml").getroot()
    names = {suite.get("name"): suite for suite in suites}
    assert names["cells"].get("tests") == "4" and names["gates"].get("tests") == "0"
    text = (done.folder / "summary.md").read_text()
    assert text.startswith("# Audit of digits") and "no guarantee" in text


def test_a_rerun_runs_nothing(done, monkeypatch):
    nothing_runs(monkeypatch)
    again = ga.audit(**SMALL, out=done.folder)
    assert untimed(again.to_dict()) == untimed(done.to_dict())


def test_gates_are_judged_anew(done, monkeypatch):
    nothing_runs(monkeypatch)
    again = ga.audit(**SMALL, out=done.folder, gates=Gates(max_asr=0.05))
    assert again.exit_code == 3  # 0 of 6
    assert ga.audit(**SMALL, out=done.folder, gates=Gates(max_asr=1.0)).exit_code == 0


def test_another_audit_is_refused_and_can_extend(done, monkeypatch):
    other = SMALL | {"defenses": [*SMALL["defenses"], PRUNE], "threats": ["curious"]}
    with pytest.raises(InputError, match="--overwrite"):
        ga.audit(**other, out=done.folder)
    attack, ran = audit_cells._COMMANDS["attack"], []
    nothing_runs(monkeypatch, but=["norms"])

    def counted(arguments, *more):
        ran.append(arguments["defense"])
        return attack(arguments, *more)

    monkeypatch.setitem(audit_cells._COMMANDS, "attack", counted)
    wider = ga.audit(**other, out=done.folder, extend=True)
    assert ran == [PRUNE] and wider.to_dict()["status"] == "done"
    monkeypatch.undo()
    ga.audit(**SMALL, out=done.folder, extend=True)


def test_other_peoples_cells_are_left_alone(tmp_path):
    (tmp_path / "cells").mkdir()
    with pytest.raises(InputError, match="has a folder cells"):
        ga.audit(**SMALL, out=tmp_path)


BROKEN = """
import jax
from gradaudit.defenses import FromFunction, defend

def fails(key, tree, t):
    raise ValueError("no such thing")

broken = defend("broken", per_example=(FromFunction(fails),))
"""
PLAIN = {"threats": ["curious"], "mechanism_trials": 0}


def test_a_failing_cell_is_told_and_the_others_go_on(tmp_path):
    (tmp_path / "mine.py").write_text(BROKEN)
    mine = f"{tmp_path / 'mine.py'}:broken"
    asked = SMALL | PLAIN | {"defenses": [mine, "none"]}
    result = ga.audit(**asked, out=tmp_path / "out", gates=Gates(max_asr=0.9))
    document = result.to_dict()
    validate(document, AUDIT)
    failed, fine = document["cells"]
    assert (failed["status"], fine["status"]) == ("failed", "done")
    assert "mine.py:6" in failed["error"] and "no such thing" in failed["error"]
    assert document["status"] == "unfinished" and result.exit_code == 3
    assert document["headline"]["verdict"] == "failed"
    # Mended, it is run: what failed is not kept.
    mended = BROKEN.replace('raise ValueError("no such thing")', "return tree")
    (tmp_path / "mine.py").write_text(mended)
    again = ga.audit(**asked, out=tmp_path / "out", extend=True)
    assert again.to_dict()["status"] == "done"


def test_ctrl_c_leaves_a_valid_report_and_the_rest_is_run_later(tmp_path, monkeypatch):
    asked = (
        SMALL | PLAIN | {"defenses": ["none", PRUNE, "prune:ratio=0.2,at=per_example"]}
    )
    ran = []

    def once(arguments, folder, tell, attack=audit_cells._COMMANDS["attack"]):
        ran.append(arguments["defense"])
        if len(ran) == 2:
            raise KeyboardInterrupt
        return attack(arguments, folder, tell)

    monkeypatch.setitem(audit_cells._COMMANDS, "attack", once)
    result = ga.audit(**asked, out=tmp_path)
    assert result.interrupted and result.exit_code == 130
    document = result.to_dict()
    validate(document, AUDIT)
    ends = [cell["status"] for cell in document["cells"]]
    assert ends == ["done", "interrupted", "missing"]
    whole = ga.audit(**asked, out=tmp_path)
    assert whole.to_dict()["status"] == "done" and whole.exit_code == 0
    assert ran.count(ran[0]) == 1  # the finished one was not run again


@pytest.mark.parametrize(
    "damage", [b"", b"{}", b"[]", b'{"fingerprint": "x", "outcome": 1}', b"\xff"]
)
def test_a_damaged_record_is_run_again(tmp_path, damage, monkeypatch):
    cell = Grid.of(changed(AuditPlan(), SMALL)).cells()[0]
    (tmp_path / audit_cells.FINISHED).write_bytes(damage)
    (tmp_path / "stale").write_text("of another run")
    outcome = audit_cells.run_cell(cell, tmp_path)
    assert outcome["status"] == "done" and not (tmp_path / "stale").exists()
    nothing_runs(monkeypatch)
    assert audit_cells.run_cell(cell, tmp_path) == outcome


def test_a_cell_is_plain_data():
    for cell in Grid.of(changed(AuditPlan(), SMALL)).cells():
        assert json.loads(json.dumps(cell)) == cell
        assert NAME.fullmatch(cell["id"]) and len(cell["id"]) <= 100


EQUALS = changed(
    AuditPlan(),
    SMALL
    | {
        "types": [2, 1, 0],
        "threats": ["curious", "aware", "informed"],
        "defenses": ["none", "fed-sdp", "fed-sdp-client", "fed-cdp", "prune"],
        "attacks": ["dlg"],
        "batch_size": 2,
        "iterations": 2,
        "victims": 2,
        "draws": 1,
        "line_ups": 4,
    },
)


def test_a_victim_is_read_again_only_where_noise_averages_away():
    grid = Grid.of(
        AuditPlan(
            datasets=("digits",),
            threats=("informed",),
            defenses=("none", "prune:ratio=0.5,at=per_example", "fed-sdp", "fed-cdp"),
            looks=(1, 10),
        )
    )
    found = {
        (cell["defense"].partition(":")[0], cell["type"]): Spec(**cell["spec"]).call()
        for cell in grid.cells()
        if cell["kind"] == "line-up"
    }
    often = {key for key, arguments in found.items() if len(arguments["looks"]) > 1}
    assert len(found) == 12
    assert often == {("fed-sdp", 0), *(("fed-cdp", place) for place in (0, 1, 2))}


def test_a_malicious_server_runs_the_attack_that_only_it_can():
    grid = Grid.of(changed(AuditPlan(), {"threats": ["curious", "malicious"]}))
    assert grid.attacks_of("curious") == ("strongest",)
    assert grid.attacks_of("malicious") == ("imprint",)


def test_a_budget_of_the_grid_is_of_the_attacks_that_have_one():
    asked = {"threats": ["curious", "malicious"], "iterations": 7, "types": [0]}
    cells = Grid.of(changed(AuditPlan(), asked)).cells()
    found = {c["method"]: c["spec"] for c in cells if c["kind"] == "attack"}
    assert found["strongest"]["arguments"]["iterations"] == 7
    assert found["imprint"]["arguments"]["iterations"] is None
    for nobody in (["malicious"], ["informed"]):
        with pytest.raises(InputError, match="none of the attacks .* has iterations"):
            Grid.of(changed(AuditPlan(), asked | {"threats": nobody}))


def test_cells_are_the_same_only_if_the_same_is_read():
    cells = {c["id"]: c for c in Grid.of(EQUALS).cells()}
    found = {
        (c["kind"], c["type"], c["threat"], c["defense"]): cells[c["same_as"]]
        for c in cells.values()
        if c["same_as"]
    }
    for (kind, leakage, _, defense), other in found.items():
        assert kind == other["kind"] and other["same_as"] is None
        assert (leakage == 2) == (other["type"] == 2)
        if defense in ("fed-cdp", "prune"):  # nobody else does what they do
            assert other["defense"] in ("none", defense)
    own = ("attack", 0, "aware", "fed-sdp"), ("attack", 1, "aware", "fed-sdp-client")
    assert not set(own) & set(found)
    assert found["attack", 2, "aware", "fed-sdp"]["defense"] == "none"
    assert found["attack", 0, "aware", "fed-cdp"]["type"] == 1
    assert found["attack", 0, "aware", "fed-cdp"]["threat"] == "aware"


@pytest.mark.slow
def test_a_cell_that_is_the_same_has_the_same_numbers(tmp_path):
    cells = {c["id"]: c for c in Grid.of(EQUALS).cells()}
    compared = 0
    for cell in cells.values():
        if cell["same_as"] is None:
            continue
        numbers = []
        for each in (cell, cells[cell["same_as"]]):
            outcome = audit_cells.run_cell(each, tmp_path / each["id"])
            assert outcome["status"] == "done", outcome["error"]
            result = outcome["result"]
            rates = [
                (r["looks"], r["measured"]) for r in result["metrics"].get("cells", [])
            ]
            trials = tmp_path / each["id"] / "trials.csv"
            numbers.append(trials.read_text() if trials.exists() else rates)
        assert numbers[0] == numbers[1], cell["name"]
        compared += 1
    assert compared > 10


HOSTILE = ["<script>alert(1)</script>", "../../x", "🦄" * 20, "x" * 220, "a b\tc", "-"]


@pytest.mark.parametrize("name", HOSTILE)
def test_no_name_leaves_the_folder(name, tmp_path):
    data = tmp_path / f"{name.replace('/', '_')}.npz"
    np.savez(data, x=np.random.default_rng(0).random((12, 3)), y=np.arange(12) % 2)
    asked = SMALL | PLAIN | {"datasets": [str(data)], "defenses": ["none"]}
    asked |= {"title": name * 3, "victims": 2}
    result = ga.audit(**asked, out=tmp_path / "out")
    document = result.to_dict()
    validate(document, AUDIT)
    assert document["cells"][0]["status"] == "done", document["cells"][0]["error"]
    assert not document["cells"][0]["dataset"]["public"]
    assert set(tmp_path.iterdir()) == {data, tmp_path / "out"}
    for folder in (tmp_path / "out" / "cells").iterdir():
        assert NAME.fullmatch(folder.name)
    ElementTree.parse(tmp_path / "out" / "junit.xml")
    assert "<script>" not in (tmp_path / "out" / "summary.md").read_text()


def test_an_object_is_described_or_refused_in_words(tmp_path):
    asked = SMALL | PLAIN
    made = ga.defenses.fed_cdp(clip=2.0)
    grid = Grid.of(changed(AuditPlan(), asked | {"defenses": [made]}))
    (cell,) = [c for c in grid.cells() if c["kind"] == "attack"]
    assert audit_cells.run_cell(cell, tmp_path)["status"] == "done"
    data = ga.load_dataset("digits")
    with pytest.raises(InputError, match="plain data"):
        ga.audit(**asked | {"datasets": [data]})


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"defenses": ["fed-cpd"]}, "did you mean 'fed-cdp'"),
        ({"datasets": ["canser"]}, "did you mean 'cancer'"),
        ({"datasets": ["nowhere/x.npz"]}, "nowhere"),
        ({"attacks": ["analitic"]}, "did you mean 'analytic'"),
        ({"threats": ["curius"]}, "did you mean 'curious'"),
        ({"model": "mpl"}, "did you mean 'mlp'"),
        ({"victim": 3}, "did you mean 'victims'"),
        ({"attacks": ["cpl:labels=known"]}, "curious+labels"),
    ],
)
def test_everything_is_read_before_anything_runs(asked, words, tmp_path, monkeypatch):
    nothing_runs(monkeypatch)
    with pytest.raises(InputError, match=re.escape(words)):
        ga.audit(**SMALL | asked, out=tmp_path / "out")
    assert not (tmp_path / "out" / "audit.json").exists()


def test_without_a_folder_the_result_can_still_be_saved(tmp_path):
    asked = SMALL | PLAIN | {"defenses": ["none"]}
    result = ga.audit(**asked)
    result.save(tmp_path / "mine")
    document = json.loads((tmp_path / "mine" / "audit.json").read_text())
    for cell in document["cells"]:
        assert (tmp_path / "mine" / cell["folder"] / "trials.csv").exists()
    assert pathlib.Path(result.folder) != tmp_path / "mine"
