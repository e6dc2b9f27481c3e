"""The verdict of an audit: what each cell says, what decides, and the gates."""

import itertools
import json

import hypothesis
import hypothesis.strategies as st
import pytest

from gradaudit.audit.audit_gates import Gates
from gradaudit.errors import InputError
from gradaudit.report import metrics
from gradaudit.report import verdict as verdicts
from gradaudit.report.verdict import (
    CERTIFIED,
    FAILED,
    LEAKS,
    MISSING,
    ORDER,
    UNSHOWN,
    headline,
    places,
    verdict_of,
    worst,
)

CELL = {"kind": "attack", "method": "cpl", "threat": "curious"}


def bound(value):
    return {"value": value, "reason": "" if value is not None else "no noise"}


def attacked(successes, victims, guess=0.0, certified=None, missing=0, best=0.3):
    rate = metrics.rate(successes, victims)
    return {
        "status": "done",
        "error": None,
        "seconds": 1.0,
        "result": {
            "about": {"batch_size": 1, "local_steps": 1},
            "victims": {"asked": victims, "missing": list(range(missing))},
            "draws": [{"victims": victims, "successes": successes}],
            "metrics": {
                "asr": {**vars(rate), "threshold": 0.1, "guess": guess},
                "iterations": {"cap": 300},
                "examples_rebuilt": successes / victims,
                "rmse": {"best": best},
            },
            "certificate": bound(certified),
        },
    }


def lined_up(won, played, certified=None, broken=0, candidates=10):
    rate = vars(metrics.rate(won, played))
    row = {
        "candidates": candidates,
        "looks": 1,
        "line_ups": played,
        "measured": rate,
        "certified": bound(certified),
        "guessing": 1 / candidates,
    }
    found = {"cells": [row], "certificate_broken": broken}
    return {"status": "done", "error": None, "result": {"metrics": found}}


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (attacked(0, 16), UNSHOWN),
        (attacked(1, 16), LEAKS),
        (attacked(16, 16, guess=0.5), LEAKS),  # however few networks there are
        (attacked(8, 16, guess=0.5), UNSHOWN),  # guessing does as well
        (attacked(0, 16, certified=0.1), CERTIFIED),
        (attacked(0, 16, certified=0.9), UNSHOWN),  # such a bound says nothing
        (attacked(3, 16, certified=0.4), LEAKS),  # rebuilt is rebuilt
        (attacked(9, 16, certified=0.01), LEAKS),  # the noise is not on
    ],
)
def test_an_attack(outcome, expected):
    found = verdict_of(CELL, outcome)
    assert found["kind"] == expected
    assert found["rate"]["high"] >= found["rate"]["low"]
    if expected == UNSHOWN:
        assert f"{found['rate']['high']:.2f}" in found["sentence"]
        assert "cpl" in found["tried"] and "300" in found["tried"]
    if expected == CERTIFIED:
        assert "certified" in found["sentence"]


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (lined_up(40, 400), UNSHOWN),
        (lined_up(200, 400), LEAKS),
        (lined_up(65, 400, certified=0.225), CERTIFIED),
        (lined_up(200, 400, certified=0.97), LEAKS),
        (lined_up(200, 400, certified=0.2, broken=1), LEAKS),
    ],
)
def test_a_line_up(outcome, expected):
    found = verdict_of(CELL | {"kind": "line-up"}, outcome)
    assert found["kind"] == expected
    assert found["guess"] == 0.1


def test_what_was_not_run_is_said():
    assert verdict_of(CELL, None)["kind"] == MISSING
    failed = {"status": "failed", "error": "no such file", "result": None}
    found = verdict_of(CELL, failed)
    assert found["kind"] == FAILED and "no such file" in found["sentence"]


def cell(outcome, defense="mine", control=False, kind="attack", leakage=2, at=0):
    plain = CELL | {"kind": kind}
    certificate = (outcome or {}).get("result") or {}
    return {
        "id": f"c{at}",
        "name": f"{kind} {defense}",
        "kind": kind,
        "type": leakage,
        "threat": {"name": "curious"},
        "place": "here",
        "defense": {"text": defense, "control": control, "claims": []},
        "status": "done" if outcome else "missing",
        "victims": certificate.get("victims"),
        "metrics": certificate.get("metrics"),
        "certificate": certificate.get("certificate"),
        "verdict": verdict_of(plain, outcome),
    }


OUTCOMES = {
    LEAKS: attacked(5, 8),
    FAILED: {"status": "failed", "error": "x", "result": None},
    MISSING: None,
    UNSHOWN: attacked(0, 8),
    CERTIFIED: attacked(0, 8, certified=0.01),
}


@hypothesis.given(st.lists(st.sampled_from(ORDER), min_size=1, max_size=6))
def test_the_worst_cell_decides(kinds):
    cells = [cell(OUTCOMES[kind], at=i) for i, kind in enumerate(kinds)]
    found = headline(cells, [])
    assert found["verdict"] == min(kinds, key=ORDER.index)
    assert found["counts"] == {kind: kinds.count(kind) for kind in ORDER}
    decides = next(c for c in cells if c["id"] == found["cell"])
    assert decides["verdict"]["kind"] == found["verdict"]


def test_the_worst_of_equals():
    more, less = cell(attacked(7, 8), at=1), cell(attacked(2, 8), at=2)
    assert worst([less, more]) is more
    few, many = cell(attacked(0, 4), at=1), cell(attacked(0, 64), at=2)
    assert worst([many, few]) is few  # more could have been missed


def test_a_control_decides_nothing_but_is_heard():
    control = cell(attacked(8, 8), "none", control=True)
    found = headline([control, cell(attacked(0, 8))], [])
    assert found["verdict"] == UNSHOWN
    assert "the attacks work" in found["control"]
    weak = cell(attacked(0, 8), "none", control=True)
    assert "too weak" in headline([weak, cell(attacked(0, 8))], [])["control"]
    assert headline([control], [])["verdict"] == MISSING
    waiting = cell(None, "none", control=True)  # what was not run is no failure
    assert "1 more were not run" in headline([control, waiting], [])["control"]
    assert "was not run" in headline([waiting], [])["control"]


def test_a_place_has_the_verdict_of_its_worst_cell():
    rows = places([cell(attacked(0, 8), at=1), cell(attacked(5, 8), at=2)])
    assert [(row["cell"], row["verdict"]) for row in rows] == [("c2", LEAKS)]


ACCOUNTED = {
    "epsilon": {"claimed": 0.8, "effective": 5.0},
    "guarantee": {"valid": False, "reasons": ["Each tensor is clipped on its own."]},
}


@pytest.mark.parametrize(
    ("accounting", "words"),
    [
        (ACCOUNTED, ["0.8", "no guarantee", "Each tensor", "5"]),
        (
            ACCOUNTED | {"epsilon": {"claimed": "inf", "effective": "inf"}},
            ["no guarantee to claim", "No finite"],
        ),
    ],
)
def test_a_claim_that_does_not_hold_is_said(accounting, words):
    (sentence,) = verdicts.claims_of("mine", accounting, None)
    assert all(word in sentence for word in words)


def test_noise_that_is_off_is_said():
    tested = {"result": {"lower_bound": 4.0, "closed_form": 1.5}}
    (sentence,) = verdicts.claims_of("mine", None, tested)
    assert "not what it says" in sentence
    fine = {"result": {"lower_bound": 1.0, "closed_form": 1.5}}
    assert verdicts.claims_of("mine", None, fine) == []


def document(*cells, accounting=(), status="done"):
    return {"cells": list(cells), "accounting": list(accounting), "status": status}


def judged(gates, *cells, **more):
    found = gates.judge(document(*cells, **more))
    return found["verdict"], found["exit_code"]


def accounted(effective):
    figures = {"epsilon": {"effective": effective}}
    return {"defense": "mine", "error": None, "accounting": figures}


@pytest.mark.parametrize(
    ("gates", "outcome", "expected"),
    [
        (Gates(), attacked(8, 8), ("none", 0)),
        (Gates(max_asr=0.05), attacked(0, 16), ("unclear", 3)),
        (Gates(max_asr=0.05), attacked(0, 160), ("held", 0)),
        (Gates(max_asr=0.05), attacked(9, 16), ("broken", 1)),
        (Gates(max_asr=0.05), attacked(0, 16, certified=0.03), ("held", 0)),
        (Gates(max_asr=0.05), attacked(9, 16, certified=0.03), ("broken", 1)),
        (Gates(max_asr=0.05), None, ("unclear", 3)),
        (Gates(min_rmse=0.2), attacked(0, 16, best=0.3), ("held", 0)),
        (Gates(min_rmse=0.2), attacked(0, 16, best=0.1), ("broken", 1)),
        (Gates(min_rmse=0.2), None, ("unclear", 3)),
        (Gates(require_certificate=True), attacked(0, 16), ("broken", 1)),
        (Gates(require_certificate=True), attacked(0, 16, certified=0.2), ("held", 0)),
        (Gates(require_certificate=True), attacked(0, 9, certified=0.7), ("broken", 1)),
    ],
)
def test_gates_on_an_attack(gates, outcome, expected):
    assert judged(gates, cell(outcome)) == expected


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (lined_up(40, 400), ("held", 0)),
        (lined_up(80, 400), ("unclear", 3)),
        (lined_up(300, 400), ("broken", 1)),
        (lined_up(10, 40, certified=0.19), ("held", 0)),
    ],
)
def test_gates_on_a_line_up(outcome, expected):
    assert judged(Gates(max_line_up=0.2), cell(outcome, kind="line-up")) == expected


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([], ("broken", 1)),
        ([accounted(0.5)], ("held", 0)),
        ([accounted(5.0)], ("broken", 1)),
        ([accounted("inf")], ("broken", 1)),
        ([accounted(0.5) | {"accounting": None}], ("unclear", 3)),
    ],
)
def test_gates_on_epsilon(rows, expected):
    assert judged(Gates(max_epsilon=1.0), cell(None), accounting=rows) == expected


def test_a_control_is_not_gated():
    control = cell(attacked(8, 8), "none", control=True)
    fine = cell(attacked(0, 160))
    assert judged(Gates(max_asr=0.05), control, fine) == ("held", 0)


def test_the_worst_gate_decides_and_ends_come_first():
    broken, unclear, held = (
        cell(attacked(*counts), at=i)
        for i, counts in enumerate([(9, 16), (0, 16), (0, 160)])
    )
    gates = Gates(max_asr=0.05)
    for order in itertools.permutations([broken, unclear, held]):
        assert judged(gates, *order) == ("broken", 1)
    assert judged(gates, held, unclear) == ("unclear", 3)
    assert judged(gates, held, status="unfinished") == ("held", 3)
    assert judged(gates, broken, status="unfinished") == ("broken", 1)
    assert judged(gates, held, status="interrupted") == ("held", 130)


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_asr": -0.1},
        {"max_asr": 1.1},
        {"max_line_up": float("nan")},
        {"min_rmse": -1.0},
        {"max_epsilon": float("inf")},
    ],
)
def test_a_limit_that_can_not_be_is_refused(wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        Gates(**wrong)


def test_no_answer_is_ever_called_safe():
    found = [cell(outcome) for outcome in OUTCOMES.values()]
    text = json.dumps([found, headline(found, [])]).lower()
    assert "safe" not in text
