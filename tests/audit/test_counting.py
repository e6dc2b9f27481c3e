"""Every victim that was asked for is counted, and every draw of the network."""

import dataclasses
import inspect
import itertools
import json
import math

import jax
import numpy as np
import pytest
from typer.testing import CliRunner

import gradaudit as ga
from gradaudit.attacks import lanes
from gradaudit.audit.attack import _Asked, attack
from gradaudit.audit.attack_result import AttackResult
from gradaudit.audit.scenario import Simulated
from gradaudit.audit.scores import Score
from gradaudit.cli.app import app
from gradaudit.models.networks import build_model
from gradaudit.report import metrics
from gradaudit.spec import Spec

SMALL = {"dataset": "digits", "model": "dpfl-2conv", "iterations": 12}


def spoil(monkeypatch, clients):
    """What these clients send overflows the objective at its first evaluation."""
    original = Simulated._observe

    def spoiled(self, everybody, *arguments):
        seen = original(self, everybody, *arguments)
        bad = np.isin(everybody[arguments[-1]], clients)

        def overflow(leaf):
            return np.where(bad.reshape(-1, *[1] * (leaf.ndim - 1)), 1e30, leaf)

        sent = jax.tree.map(lambda leaf: overflow(leaf).astype(leaf.dtype), seen.sent)
        return dataclasses.replace(seen, sent=sent)

    monkeypatch.setattr(Simulated, "_observe", spoiled)


@pytest.mark.parametrize("draws", [1, 4])
def test_victims_that_diverge_at_their_first_evaluation_are_failures(
    monkeypatch, draws
):
    spoil(monkeypatch, [1, 2, 4, 6, 7])
    result = ga.attack(victims=8, draws=draws, **SMALL)
    assert len(result.scores) == 8 and result.missing == []
    ended = {score.victim: score.status for score in result.scores}
    assert {victim for victim, end in ended.items() if end == "diverged"} == {
        1, 2, 4, 6, 7
    }  # fmt: skip
    good = [score for score in result.scores if score.victim in (0, 3, 5)]
    assert all(score.success for score in good)
    assert result.asr.value == 3 / 8
    report = result.to_dict()
    assert report["victims"] == {"asked": 8, "missing": []}
    assert report["ended"]["diverged"] == 5
    assert report["status"] == "done"
    assert sum(row["victims"] for row in report["draws"]) == 8
    assert report["oracle"]["asr"]["value"] == 3 / 8


def test_a_start_that_happens_to_be_near_is_no_success_of_a_diverged_search(
    monkeypatch,
):
    spoil(monkeypatch, [1])
    result = ga.attack(victims=2, draws=1, success_rmse=0.99, **SMALL)
    (spoiled,) = (score for score in result.scores if score.victim == 1)
    assert spoiled.rmse <= 0.99 and not spoiled.success
    assert spoiled.examples_rebuilt == 0 and spoiled.iterations_to_success is None
    assert result.asr.value == 1 / 2


@pytest.mark.slow
def test_a_run_in_which_all_diverge_is_done_and_failed(tmp_path):
    arguments = ["--dataset", "digits", "--model", "mlp", "--victims", "8"]
    arguments += ["--type", "1", "--defense", "gaussian-noise:std=1e20"]
    arguments += ["--line-ups", "0", "--draws", "1"]
    ran = CliRunner().invoke(
        app, ["attack", *arguments, "--json", "--out", str(tmp_path)]
    )
    assert ran.exit_code == 0, ran.stderr
    report = json.loads(ran.stdout)
    asr = report["metrics"]["asr"]
    assert asr["value"] == 0.0 and asr["low"] == 0.0
    assert report["victims"] == {"asked": 8, "missing": []}
    assert report["ended"] == {"diverged": 8}
    assert report["status"] == "done"
    rows = (tmp_path / "trials.csv").read_text().splitlines()
    assert len(rows) == 9


def press_ctrl_c(monkeypatch, call):
    """Ctrl-C comes after so many calls of the compiled program."""
    original, calls = lanes.advance, itertools.count(1)

    def advance(*arguments):
        made = original(*arguments)
        if next(calls) == call:
            raise KeyboardInterrupt
        return made

    monkeypatch.setattr(lanes, "advance", advance)


def test_after_ctrl_c_the_never_begun_are_missing_and_still_counted(monkeypatch):
    """Two draws of six, two at a time, one call each: the fourth call is cut."""
    press_ctrl_c(monkeypatch, 4)
    wanted = SMALL | {"iterations": 2}
    result = ga.attack(victims=12, draws=2, slots=2, **wanted)
    begun = {score.victim for score in result.scores}
    assert begun == {0, 1, 2, 3, 4, 5}
    assert result.missing == [6, 7, 8, 9, 10, 11]
    report = result.to_dict()
    assert report["status"] == "interrupted"
    assert report["victims"] == {"asked": 12, "missing": result.missing}
    hits = sum(score.success for score in result.scores)
    asr = report["metrics"]["asr"]
    assert asr["value"] == hits / 12
    assert asr["low"] <= hits / 12 and asr["high"] >= (hits + 6) / 12
    assert sum(row["victims"] for row in report["draws"]) == 12


@pytest.mark.parametrize("victims", [4, 8])
def test_ctrl_c_when_a_draw_is_done_ends_the_run(monkeypatch, victims):
    """It comes in the evaluator, after the last victim of the first draw."""
    told = []

    def progress(done, total):
        told.append((done, total))
        raise KeyboardInterrupt

    result = ga.attack(
        victims=victims, draws=2, progress=progress, **(SMALL | {"iterations": 2})
    )
    assert len(told) == 1  # the second draw was not begun
    assert result.interrupted
    assert [score.victim for score in result.scores] == list(range(victims // 2))
    assert result.missing == list(range(victims // 2, victims))


def made(successes: list[list[bool]], missing: tuple[int, ...] = ()) -> AttackResult:
    """A result of these successes, draw by draw; the missing have none."""
    scores, victim = [], 0
    for draw, hits in enumerate(successes):
        for hit in hits:
            if victim not in missing:
                scores.append(_score(victim, draw, hit))
            victim += 1
    blank = np.zeros((len(scores), 1, 2), np.float32)
    return AttackResult(
        spec=Spec.of("attack"),
        about={"success_rmse": 0.1, "iterations": 1},
        threat={},
        environment={},
        scores=scores,
        traces=[],
        draws=len(successes),
        missing=list(missing),
        guess=metrics.rate(0, 1),
        timing={},
        accounting=None,
        limitations=[],
        inputs=blank,
        truth=blank,
        pictured=[],
    )


def _score(victim: int, draw: int, success: bool) -> Score:
    error = 0.0 if success else 1.0
    return Score(
        victim=victim, draw=draw, labels=(0,), recovered_labels=(0,), rmse=error,
        rmse_raw=error, psnr=0.0, ssim=None, success=success,
        examples_rebuilt=int(success), iterations_to_success=None, iterations=1,
        evaluations=1, objective=error, status="budget", label_accuracy=1.0,
        oracle_rmse=error,
    )  # fmt: skip


def test_the_interval_counts_the_draws():
    """Four draws that are all or nothing say little about the next draw."""
    result = made([[True] * 16, [True] * 16, [True] * 16, [False] * 16])
    wilson = metrics.rate(48, 64)
    assert result.asr.value == wilson.value == 0.75
    assert result.asr.interval == "over draws"
    assert result.asr.low < wilson.low - 0.1 and result.asr.high > wilson.high + 0.05
    assert [row["asr"] for row in result.by_draw()] == [1.0, 1.0, 1.0, 0.0]
    one = made([[True] * 48 + [False] * 16])
    assert one.asr == wilson


@pytest.mark.parametrize("missing", [(63,), (0, 20), tuple(range(16, 64))])
def test_missing_victims_widen_the_interval_over_draws(missing):
    """As if they had all failed, and as if all had been rebuilt."""
    wanted = [[True] * 16, [True] * 16, [True] * 16, [False] * 16]
    lost = made(wanted, missing)
    ends = []
    for outcome in (False, True):
        counted = [list(hits) for hits in wanted]
        for victim in missing:
            counted[victim // 16][victim % 16] = outcome
        ends.append(made(counted).asr)
    assert lost.asked == 64
    assert lost.asr.value == ends[0].value
    assert lost.asr.low == pytest.approx(ends[0].low)
    assert lost.asr.high == pytest.approx(ends[1].high)
    assert [row["victims"] for row in lost.by_draw()] == [16] * 4
    assert math.isclose(
        lost.to_dict()["metrics"]["asr"]["value"],
        sum(row["successes"] for row in lost.by_draw()) / 64,
    )


def test_a_run_of_several_draws_begins_like_a_run_of_one():
    wanted = SMALL | {"iterations": 2}
    one = ga.attack(victims=3, draws=1, **wanted)
    several = ga.attack(victims=9, draws=3, **wanted)
    np.testing.assert_array_equal(several.truth[:3], one.truth)
    np.testing.assert_array_equal(several.inputs[:3], one.inputs)
    assert [row["victims"] for row in several.by_draw()] == [3, 3, 3]
    assert [score.draw for score in several.scores] == [0] * 3 + [1] * 3 + [2] * 3


def _asked(**said):
    """What `attack` is asked by default, with this."""
    fields = {field.name for field in dataclasses.fields(_Asked)}
    named = inspect.signature(attack).parameters.items()
    defaults = {name: each.default for name, each in named if name in fields}
    return _Asked(**defaults | said)


def test_several_networks_are_drawn_unless_one_is_asked_for_or_trained():
    model = build_model("mlp", (4,), 2)

    def drawn(draws, victims, round_index=0, params=None):
        asked = _asked(draws=draws, victims=victims, round=round_index, params=params)
        return asked._networks(model)

    assert [drawn(None, victims) for victims in (5, 4, 2)] == [4, 4, 2]
    assert drawn(None, 5, round_index=1) == drawn(1, 5) == 1
    assert drawn(None, 5, params="weights.npz") == 1  # parameters from a file
    wanted = SMALL | {"iterations": 2}
    assert ga.attack(victims=5, **wanted).draws == 4
    one = ga.attack(victims=3, draws=1, **wanted)
    assert one.draws == 1
    assert any("one draw of the network" in sentence for sentence in one.limitations)
    with pytest.raises(ga.InputError, match="draws must lie in 1..3"):
        ga.attack(victims=3, draws=4, **wanted)
