"""`gradaudit ldp`: tables, JSON, figures, exit codes, errors in words."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from gradaudit import machine
from gradaudit.cli.app import app
from gradaudit.distinguish import any_mechanism
from gradaudit.distinguish import ldp_sgd as report_module
from gradaudit.files import finite
from gradaudit.spec import Spec

FAST = ["--trials", "200", "--measurements", "2", "--box", "white"]
MECHANISMS = """
import jax, jax.numpy as jnp
from gradaudit.defenses import randomize

def honest(key, vector):
    return randomize(key, vector, 1.0, 1.0)

def broken(key, vector):
    return vector

def nan(key, vector):
    return vector * jnp.nan

def short(key, vector):
    return vector[:5]

def exits(key, vector):
    raise SystemExit(0)
"""


@pytest.fixture
def gradaudit(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MECHANISMS)

    def call(*words):
        return CliRunner().invoke(app, ["ldp", *words])

    return call


def test_table_figures_and_result(gradaudit, tmp_path):
    result = gradaudit(*FAST, "--epsilon", "0.5,2", "--norms", "0.5,1")
    assert result.exit_code == 0, result.output
    for name in ("benign", "collusion", "dummy", "ε = 0.5", "verdicts: 12 consistent"):
        assert name in result.stdout
    folder = tmp_path / "gradaudit-ldp"
    assert (folder / "figures" / "epsilon.png").stat().st_size > 10_000
    assert (folder / "figures" / "norms.png").stat().st_size > 5_000
    saved = json.loads((folder / "result.json").read_text())
    assert saved["status"] == "done"
    assert saved["metrics"] == {
        **{"cells": 12, "refuted": 0, "consistent": 12, "can't tell": 0}
    }
    assert saved["family"]["per_cell"] == pytest.approx(0.05 / 12)
    assert len(saved["cells"]) == 12
    assert len(saved["sweep"]) == 4
    assert saved["environment"]["packages"]["jax"]


def test_json_is_all_of_stdout_and_runs_again(gradaudit):
    words = (*FAST, "--adversary", "dummy-gradient", "--epsilon", "4", "--json")
    first = json.loads(gradaudit(*words).stdout)
    cell = first["cells"][0]
    assert cell["adversary"] == "dummy-gradient"
    # 400 trials can prove 3.98 at most; 408 would do.
    assert (cell["verdict"], cell["trials_needed"]) == ("can't tell", 408)
    assert set(cell["estimates"]) == {"split", "one_run", "raw"}
    spec = first["spec"]
    again = report_module.ldp_audit(**Spec("ldp", spec["arguments"]).call()).to_dict()
    assert finite(again["cells"]) == first["cells"]


@pytest.mark.parametrize("columns", [40, pytest.param(80, marks=pytest.mark.slow)])
def test_names_and_numbers_are_never_cut(gradaudit, monkeypatch, tmp_path, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    words = ("--box", "white", "--trials", "2000", "--model", "mlp", "--norms", "0.5,1")
    longest = "input-perturbation,parameter-retrogression,dummy-gradient"
    shown = gradaudit(*words, "--adversary", longest).stdout
    report = json.loads((tmp_path / "gradaudit-ldp" / "result.json").read_text())
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= columns
    for cell in report["cells"]:
        assert set(cell["adversary"].split("-")) <= set(shown.split())
        assert f"{cell['mean']:.2f} ± {cell['spread']:.2f}" in shown
        assert f"≥ {cell['lower_bound']:.2f}" in shown
    for point in report["sweep"]:
        assert f"({point['exact']:.2f})" in shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--epsilon", "0"], "epsilon must be positive and finite, got 0.0"),
        (["--epsilon", "-1"], "epsilon must be positive"),
        (["--epsilon", "one"], "must be numbers with commas"),
        (["--trials", "99"], "at least 100 trials, got 99"),
        (["--adversary", "benin"], "did you mean 'benign'?"),
        (["--box", "grey"], "--box must be white, black or both"),
        (["--white-rule", "cosin"], "did you mean 'cosine'?"),
        (["--dataset", "digit"], "did you mean 'digits'?"),
        (["--mechanism", "fed-cpd"], "did you mean 'fed-cdp'?"),
        (["--mechanism", "none"], "claims no privacy of its own"),
        (["--mechanism", "mine.py:honest"], "claims nothing by itself"),
        (["--mechanism", "mine.py:nan", "--epsilon", "1"], "values that are NaN"),
        (["--mechanism", "mine.py:short", "--epsilon", "1"], "got (5,)"),
        (["--mechanism", "mine.py:other", "--epsilon", "1"], "unknown name in mine.py"),
        (["--mechanism", "no.py:other", "--epsilon", "1"], "there is no file no.py"),
        (["--mechanism", "fed-cdp", "--epsilon", "1,2"], "one epsilon, got 2"),
        (["--mechanism", "fed-cdp", "--neighbours", "near"], "neighbours 'near'"),
        (["--mechanism", "fed-cdp", "--delta", "0"], "needs a positive delta, got 0"),
        (["--mechanism", "fed-cdp", "--delta", "2"], "delta must lie in [0, 1)"),
        (["--mechanism", "fed-cdp", "--adversary", "benign"], "--adversary has no"),
        (["--mechanism", "fed-cdp", "--norms", "1"], "--norms has no effect"),
        (["--delta", "0.1"], "--delta has no effect without --mechanism"),
        (["--box", "white", "--clients", "2"], "--clients has no effect with --box"),
        (["--box", "black", "--white-rule", "cosine"], "--white-rule has no effect"),
        (["--paper", "--trials", "500"], "--trials has no effect beside --paper"),
        (["--norms", "-1"], "must be positive and finite, got -1.0"),
        (["--norms", "nan"], "must be positive and finite, got nan"),
        (["--epsilon", "1000"], "epsilon must be at most 30, got 1000"),
        (["--epsilon", "1,1"], "an epsilon is named twice"),
        (["--seed", "99999999999999999999"], "seed must lie in"),
        (["--radius", "inf"], "radius must be positive and finite"),
        (["--measurements", "0"], "measurements must be at least 1"),
        (["--mechanism", "mine.py:exits", "--epsilon", "1"], "mine.py:"),
    ],
)
def test_errors_are_words_and_exit_2(gradaudit, monkeypatch, words, message):
    """Before the work: no trial is played for any of them."""

    def work(*arguments, **options):
        raise AssertionError("trials were played")

    monkeypatch.setattr(report_module, "play_cells", work)
    monkeypatch.setattr(any_mechanism.ReleaseGame, "play", work)
    result = gradaudit(*words)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stdout == ""
    assert "Traceback" not in result.stderr


def test_gate(gradaudit):
    tested = ["--epsilon", "1", "--model", "mlp", "--trials", "500", "--gate"]
    tested.append("--overwrite")  # three audits, one folder
    honest = gradaudit("--mechanism", "mine.py:honest", *tested)
    assert honest.exit_code == 0, honest.output
    assert "gate held" in honest.stderr
    broken = gradaudit("--mechanism", "mine.py:broken", *tested, "--json")
    assert broken.exit_code == 1
    assert json.loads(broken.stdout)["result"]["verdict"] == "refuted"
    few = gradaudit("--mechanism", "mine.py:honest", *tested, "--epsilon", "9")
    assert few.exit_code == 3
    assert "needs 59,788 trials" in " ".join(few.stdout.split())


def test_an_interrupt_keeps_the_finished_cells(gradaudit, monkeypatch, tmp_path):
    play = report_module.play_cells

    def interrupted(*arguments, **options):
        for count, cell in enumerate(play(*arguments, **options)):
            if count == 3:
                raise KeyboardInterrupt
            yield cell

    monkeypatch.setattr(report_module, "play_cells", interrupted)
    result = gradaudit(*FAST)
    assert result.exit_code == 130
    assert "interrupted" in result.stderr
    saved = json.loads((tmp_path / "gradaudit-ldp" / "result.json").read_text())
    assert saved["status"] == "interrupted"
    assert len(saved["cells"]) == 3


def test_caches_and_devices_are_configured_before_the_work(gradaudit, monkeypatch):
    done = []
    monkeypatch.setattr(machine, "configure", lambda: done.append("configured"))
    for module, name in ((report_module, "_play"), (any_mechanism, "audit_release")):
        original = getattr(module, name)

        def work(*arguments, original=original, **options):
            done.append("work")
            return original(*arguments, **options)

        monkeypatch.setattr(module, name, work)
    assert gradaudit(*FAST, "--adversary", "dummy-gradient").exit_code == 0
    mechanism = ["--mechanism", "ldp-sgd", "--model", "mlp", "--trials", "200"]
    assert gradaudit(*mechanism, "--overwrite").exit_code == 0
    assert done == ["configured", "work"] * 2


PLAYING = """
import sys
from gradaudit.cli.app import app
from gradaudit.distinguish import ldp_sgd

play = ldp_sgd._play

def told(*arguments):
    print("playing", file=sys.stderr, flush=True)
    return play(*arguments)

ldp_sgd._play = told
app(["ldp", "--out", sys.argv[1]])
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("seconds", [0.5, 4.0, 8.0])
def test_a_signal_ends_with_130_and_what_was_done(tmp_path, number, seconds):
    """A real process without a cache, so that the signal meets compilations.

    jax compiles on a thread of its own: left behind, it crashed the process (5 of 6).
    """
    process = subprocess.Popen(
        [sys.executable, "-c", PLAYING, str(tmp_path)],
        env=os.environ | {"GRADAUDIT_CACHE": "off"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    assert process.stderr.readline() == "playing\n"
    time.sleep(seconds)
    process.send_signal(number)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130, errors
    assert "interrupted: the result covers what was done" in errors
    assert "Traceback" not in errors
    saved = json.loads((tmp_path / "result.json").read_text())
    assert saved["status"] == "interrupted"
    assert saved["metrics"]["cells"] == len(saved["cells"]) < 48


def test_help_does_not_import_jax():
    code = (
        "import sys; from typer.testing import CliRunner; "
        "from gradaudit.cli.app import app; "
        "assert CliRunner().invoke(app, ['ldp', '--help']).exit_code == 0; "
        "assert 'jax' not in sys.modules and 'numpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
