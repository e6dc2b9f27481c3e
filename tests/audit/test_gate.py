"""Gates: what they need, the sequential test's error rate, and the whole way."""

import functools
import json
import math

import numpy as np
import pytest
from typer.testing import CliRunner

from gradaudit.audit import gate
from gradaudit.audit.gate import Verdict, decide, judge, victims_needed
from gradaudit.cli.app import app
from gradaudit.report.metrics import rate, rate_over_draws

LIMIT = 0.05


def test_the_number_of_victims_is_what_the_interval_asks_for():
    for limit in (0.02, 0.05, 0.2):
        alone = victims_needed(limit)
        for count, holds in ((alone, True), (alone - 1, False)):
            over = rate_over_draws([0] * count, [1] * count)
            assert (judge(over, limit) is Verdict.HELD) == holds
    # One draw speaks of itself: Wilson's 0 of 73.
    assert victims_needed(0.05, draws=1) == 73
    assert judge(rate(0, 73), 0.05) is Verdict.HELD
    assert judge(rate(0, 72), 0.05) is Verdict.UNCLEAR
    # Few draws never hold a small limit, however many victims they have.
    assert victims_needed(0.05, draws=4) is None


def test_without_exceptions_the_sequential_test_ends_soon():
    held = [n for n in range(1, 200) if decide(0, n, LIMIT) is Verdict.HELD]
    assert 59 <= held[0] <= 75  # 59: whoever knows that there will be none
    assert decide(2, 2, LIMIT) is Verdict.BROKEN
    assert decide(1, 1, LIMIT) is Verdict.UNCLEAR


def test_evidence_is_one_on_average_if_the_limit_is_the_truth():
    """The martingale itself, exactly: over every outcome of n victims."""
    for limit in (0.05, 0.5):
        for victims in (1, 7, 40):
            hits = np.arange(victims + 1)
            chances = np.array(
                [
                    math.comb(victims, int(s)) * limit**s * (1 - limit) ** (victims - s)
                    for s in hits
                ]
            )
            both = np.array([gate.evidence(int(s), victims, limit) for s in hits])
            np.testing.assert_allclose(chances @ np.exp(both), [1.0, 1.0], rtol=1e-9)


@pytest.fixture
def remembered(monkeypatch):
    """The same counts come again and again."""
    monkeypatch.setattr(gate, "decide", functools.cache(decide))


def ends(chance: float, runs: int, seed: int, rule=None) -> dict[Verdict, float]:
    """Simulates the very batches of `attack_until_clear`."""
    generator, found = np.random.default_rng(seed), dict.fromkeys(Verdict, 0)
    for _ in range(runs):
        hits, victims, verdict = 0, 0, Verdict.UNCLEAR
        while verdict is Verdict.UNCLEAR and victims < 1000:
            more = gate._next_batch(hits, victims, LIMIT)
            hits += int(generator.binomial(more, chance))
            victims += more
            verdict = (rule or gate.decide)(hits, victims, LIMIT)
        found[verdict] += 1
    return {verdict: count / runs for verdict, count in found.items()}


def test_the_error_rate_is_kept_at_the_limit(remembered):
    """At the limit itself both answers are wrong: each in at most 5 % of 1,000 runs.

    3 standard deviations of 1,000 runs at 5 % are 0.02.
    """
    found = ends(LIMIT, 1000, seed=0)
    assert found[Verdict.HELD] <= 0.07 and found[Verdict.BROKEN] <= 0.07
    assert ends(0.06, 500, seed=1)[Verdict.HELD] <= 0.05
    assert ends(0.04, 500, seed=2)[Verdict.BROKEN] <= 0.05


def test_looking_at_a_fixed_interval_again_and_again_would_not_keep_it(remembered):
    """What the sequential test is for: the same looks at a Wilson interval fail."""
    rule = functools.cache(lambda s, n, limit: judge(rate(s, n), limit))
    often = ends(LIMIT, 1000, seed=0, rule=rule)
    assert often[Verdict.BROKEN] + often[Verdict.HELD] > 0.14


def test_clear_cases_are_answered(remembered):
    assert ends(0.001, 200, seed=3)[Verdict.HELD] > 0.95
    assert ends(0.2, 200, seed=4)[Verdict.BROKEN] > 0.95


def attack(*words: str):
    base = ("attack", "--dataset", "cancer", "--method", "analytic", "--line-ups", "0")
    return CliRunner().invoke(app, [*base, *words])


def test_auto_breaks_after_a_few_and_is_written_whole(tmp_path):
    out = tmp_path / "out"
    words = ("--max-asr", "0.05", "--victims", "auto", "--out", str(out))
    done = attack(*words, "--defense", "none", "--json")
    assert done.exit_code == 1, done.output
    assert "4 of 4 victims were rebuilt" in done.stderr and "5%" in done.stderr
    report = json.loads(done.stdout)
    assert report == json.loads((out / "result.json").read_text())
    assert report["gate"]["verdict"] == "broken" and report["gate"]["victims"] == 4
    assert report["victims"]["asked"] == 4 and len(report["draws"]) == 4
    again = CliRunner().invoke(app, ["run", str(out), "--out", str(tmp_path / "b")])
    assert again.exit_code == 0, again.output
    repeated = json.loads((tmp_path / "b" / "result.json").read_text())
    assert (
        repeated["metrics"] == report["metrics"] and repeated["gate"] == report["gate"]
    )


def test_auto_holds_and_says_how_many_victims_it_took(tmp_path, monkeypatch):
    """A limit of 0.5 needs few; so much noise leaves the closed form nothing."""
    words = ("--max-asr", "0.5", "--victims", "auto", "--out", str(tmp_path / "out"))
    done = attack(*words, "--defense", "fed-cdp:clip=4,sigma=6")
    assert done.exit_code == 0, done.output
    assert "gate held: 0 of 5 victims were rebuilt" in done.stderr


def test_victims_of_every_batch_are_others(tmp_path):
    result = gate.attack_until_clear(
        0.5,
        dataset="cancer",
        method="analytic",
        defense="fed-cdp:clip=4,sigma=6",
        line_ups=0,
    )
    assert [score.victim for score in result.scores] == list(range(result.asked))
    assert len(np.unique(result.truth[:, 0], axis=0)) == result.asked
    assert result.draws == result.asked == result.beside["gate"]["victims"]


def test_an_unclear_gate_says_what_it_needs(tmp_path):
    words = ("--max-asr", "0.05", "--out", str(tmp_path / "out"))
    done = attack(*words, "--victims", "8", "--defense", "fed-cdp:clip=4,sigma=6")
    assert done.exit_code == 3, done.output
    said = " ".join(done.stderr.split())
    assert f"needs {victims_needed(0.05)} victims with a network each" in said
    assert "4 draws are too few" in said and "--victims auto" in said


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--victims", "auto"], "needs --max-asr"),
        (["--victims", "some", "--max-asr", "0.1"], "a whole number or auto"),
        (["--victims", "auto", "--max-asr", "0"], "(0, 1)"),
        (["--victims", "auto", "--max-asr", "1"], "(0, 1)"),
        (["--victims", "auto", "--max-asr", "0.1", "--draws", "3"], "--draws"),
        (["--victims", "auto", "--max-asr", "0.1", "--round", "2"], "took place"),
    ],
)
def test_what_auto_can_not_do_is_said(words, says, tmp_path):
    done = attack(*words, "--out", str(tmp_path / "out"))
    assert done.exit_code == 2 and says in done.stderr, done.output


def test_an_interrupt_keeps_the_batches_before_it(monkeypatch):
    real, calls = gate.attack, []

    def second_is_interrupted(**asked):
        calls.append(asked)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(**asked)

    monkeypatch.setattr(gate, "attack", second_is_interrupted)
    result = gate.attack_until_clear(
        0.05,
        dataset="cancer",
        method="analytic",
        defense="fed-cdp:clip=4,sigma=6",
        line_ups=0,
    )
    assert result.interrupted and result.asked == 4


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_readme_gate_passes_for_fed_cdp(tmp_path):
    words = ["attack", "--max-asr", "0.05", "--victims", "auto", "--defense", "fed-cdp"]
    done = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert "gate held: 0 of 68 victims" in done.stderr
