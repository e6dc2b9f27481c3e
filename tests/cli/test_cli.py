"""The program as a person meets it: help, version, lists, and errors in one line."""

import functools
import gc
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

import pytest
import typer
from typer.testing import CliRunner

from gradaudit import __version__
from gradaudit.attacks import PRESETS as ATTACKS
from gradaudit.cli import console
from gradaudit.cli.app import app
from gradaudit.data import CATALOGUE
from gradaudit.defenses import PRESETS as DEFENSES
from gradaudit.models.networks import MODELS
from gradaudit.report.tables import attack_table

TABLES = {
    "attacks": ATTACKS,
    "defenses": DEFENSES,
    "datasets": CATALOGUE,
    "models": MODELS,
}


def run(*arguments: str, columns: int = 80):
    screen = {"COLUMNS": str(columns), "TERM": "dumb"}
    return CliRunner().invoke(app, arguments, env=screen)


def commands(group, path: tuple[str, ...] = ()):
    """Yields (path, command) of everything that can be typed, groups included."""
    for name, command in group.commands.items():
        yield (*path, name), command
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))


EVERY_COMMAND = dict(commands(typer.main.get_command(app)))
LEAVES = [p for p, command in EVERY_COMMAND.items() if not hasattr(command, "commands")]


@pytest.mark.parametrize("path", [(), *EVERY_COMMAND], ids=" ".join)
@pytest.mark.parametrize("option", ["--help", "-h"])
def test_everything_has_help(path, option):
    shown = run(*path, option)
    assert shown.exit_code == 0, shown.output
    assert "Usage" in shown.stdout
    assert max(map(len, shown.stdout.splitlines())) <= 80


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_every_command_explains_itself_with_an_example(path):
    command = EVERY_COMMAND[path]
    assert f"gradaudit {' '.join(path)}" in (command.epilog or "")
    assert command.help
    for parameter in command.params:
        assert getattr(parameter, "help", None), parameter.name


def test_the_program_without_arguments_shows_its_help():
    for path in ((), ("data",)):
        shown = run(*path)
        assert "Usage" in shown.output
        assert "Traceback" not in shown.output


def test_version():
    shown = run("--version")
    assert shown.exit_code == 0 and shown.stdout == f"gradaudit {__version__}\n"


def test_list_shows_every_name():
    shown = run("list")
    assert shown.exit_code == 0
    for table in TABLES.values():
        for name in table:
            assert name in shown.stdout
    assert max(map(len, shown.stdout.splitlines())) <= 80


def test_list_as_json_is_complete():
    everything = json.loads(run("list", "--json").stdout)
    for title, table in TABLES.items():
        assert [row["name"] for row in everything[title]] == list(table)
        assert all(row["summary"] for row in everything[title])
        # Everything names where it is from; no defense is nobody's idea.
        assert {r["name"] for r in everything[title] if not r["paper"]} <= {"none"}
        assert json.loads(run("list", title, "--json").stdout) == {
            title: everything[title]
        }


UNKNOWN = {
    "list": (("list", "defence"), "defenses"),
    "method": (("attack", "--method", "cpll"), "cpl"),
    "defense": (("attack", "--defense", "fed-cpd"), "fed-cdp"),
    "defense's parameter": (("attack", "--defense", "fed-cdp:sigm=1"), "sigma"),
    "dataset": (("attack", "--dataset", "lfw-patch"), "lfw-patches"),
    "model": (("attack", "--model", "ldp-cn"), "ldp-cnn"),
    "data to fetch": (("data", "fetch", "mnits"), "mnist"),
}


@pytest.mark.parametrize("case", UNKNOWN)
def test_unknown_names_are_answered_with_the_nearest(case):
    arguments, nearest = UNKNOWN[case]
    assert_one_line(run(*arguments), f"did you mean '{nearest}'?")


WRONG = {
    "type": (("--type", "3"), "3"),
    "victims": (("--victims", "0"), "0"),
    "threshold": (("--success-rmse", "-1"), "-1"),
    "gate": (("--max-asr", "2"), "2"),
    "a table in a convolutional net": (
        ("--dataset", "cancer", "--model", "cpl"),
        "'cpl' reads images",
    ),
    "a file that is not there": (("--dataset", "./nothing.npz"), "nothing.npz"),
    "a word for a number": (("--defense", "fed-cdp:clip=big"), "'big'"),
    "no bound": (("--defense", "fed-cdp:clip=-4"), "-4"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_values_are_named(case):
    arguments, value = WRONG[case]
    assert_one_line(run("attack", *arguments), value)


@pytest.mark.parametrize("split", ["labels", "pixels", "empty", "rank"])
def test_files_with_wrong_data_are_refused(tmp_path, split):
    import numpy as np

    inputs, labels = np.full((4, 8, 8, 1), 0.5), np.array([0, 1, 2, 1])
    if split == "labels":
        labels = np.array([0, -1, 2, 1])
    elif split == "pixels":
        inputs[1, 2, 3] = np.nan
    elif split == "empty":
        inputs, labels = inputs[:0], labels[:0]
    else:
        inputs = inputs.reshape(4, 2, 2, 4, 4)
    path = tmp_path / "mine.npz"
    np.savez(path, x=inputs, y=labels)
    assert_one_line(run("attack", "--dataset", str(path)), "mine")


def assert_one_line(result, words: str) -> None:
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: "), result.stderr
    assert words in lines[0]


def test_json_is_clean_in_a_real_process(root):
    """stdout is one document and stderr is silent, whatever the backend prints."""
    done = subprocess.run(
        [sys.executable, "-m", "gradaudit.cli", "list", "models", "--json"],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    )
    assert [row["name"] for row in json.loads(done.stdout)["models"]] == list(MODELS)
    assert done.stderr == ""


@pytest.mark.slow
def test_errors_in_a_real_process_have_no_traceback(root):
    done = subprocess.run(
        [sys.executable, "-m", "gradaudit.cli", "list", "defence"],
        cwd=root,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and "did you mean 'defenses'" in done.stderr


# Where each command does its work.
WORK = {
    ("attack",): ("gradaudit.audit.attack.attack", ()),
    ("audit",): ("gradaudit.audit.audit.audit", ()),
    ("train",): ("gradaudit.audit.train.train", ()),
    ("run",): ("gradaudit.spec.Spec.read", ("result.json",)),
    ("report",): ("gradaudit.report.result.load", ("result.json",)),
    ("list",): ("gradaudit.cli.list_command._tables", ()),
    ("account",): ("gradaudit.privacy.epsilon", ("--defense", "fed-cdp")),
    ("ldp",): ("gradaudit.distinguish.ldp_audit", ()),
    ("line-up",): ("gradaudit.audit.informed.line_up", ()),
    ("calibrate",): (
        "gradaudit.audit.least_noise.enough_noise",
        ("--max-success", "0.5"),
    ),
    ("bench", "list"): ("gradaudit.cli.bench_command.Table", ()),
    ("bench", "run"): ("gradaudit.benchmarks.running.run_benchmark", ("accounting",)),
    ("bench", "show"): ("gradaudit.benchmarks.logbook.records_in", ("--from", ".")),
    ("captured", "show"): ("gradaudit.audit.captured_files.find", (".",)),
    ("captured", "check"): ("gradaudit.audit.mechanism_check.mechanism_check", (".",)),
    ("model", "check"): ("gradaudit.models.adapters.model_for", ("net.py:build",)),
    ("data", "list"): ("gradaudit.data.store.data_folder", ()),
    ("data", "fetch"): ("gradaudit.data.fetch.fetch", ("mnist",)),
    ("data", "check"): ("gradaudit.data.fetch.problem", ("mnist",)),
}


@pytest.mark.parametrize("path", WORK, ids=" ".join)
@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (RuntimeError("planted"), 70, "crashed: RuntimeError: planted"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (OSError(28, "No space left on device"), 2, "No space left"),
        (MemoryError("1 TiB"), 2, "not enough memory"),
        (SystemExit(0), 2, "sys.exit(0)"),
    ],
    ids=lambda part: type(part).__name__ if isinstance(part, BaseException) else "",
)
def test_every_command_ends_with_its_code_and_words(
    path, error, code, says, monkeypatch, tmp_path
):
    place, needs = WORK[path]

    def fail(*_, **__):
        raise error

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(place, fail)
    done = run(*path, *needs)
    assert done.exit_code == code, done.output
    assert says in " ".join(done.stderr.split()) and "Traceback" not in done.output
    crashes = list(tmp_path.glob("gradaudit-crash-*"))
    assert len(crashes) == (code == 70)
    for file in crashes:
        assert "RuntimeError: planted" in file.read_text()
        assert str(file) in done.stderr.replace("\n", "")


def test_a_signal_inside_the_garbage_collector_is_not_lost(capsys):
    """Python drops what a handler raises there, and the run would go on."""
    sent = []

    def collecting(phase, info):
        if not sent:
            sent.append(phase)
            os.kill(os.getpid(), signal.SIGTERM)

    gc.callbacks.append(collecting)
    try:
        with pytest.raises(typer.Exit) as end, console.errors_in_words():
            gc.collect()
            for _ in range(300):
                time.sleep(0.01)
    finally:
        gc.callbacks.remove(collecting)
    assert sent and end.value.exit_code == 130
    assert "Traceback" not in capsys.readouterr().err


def test_no_command_is_left_out_of_the_exit_codes():
    assert set(LEAVES) <= set(WORK)


WIDE = {
    "list": ("list",),
    "data": ("data", "list"),
    "noise": ("account", "--sigma", "6", "--q", "0.01", "--steps", "9999"),
    "budget": (
        *("account", "--sigma", "6", "--q", "0.01", "--steps", "9999"),
        *("--target-epsilon", "0.5"),
    ),
    "defense": ("account", "--defense", "fed-cdp", "--dataset", "cancer"),
    "sigmas": (
        *("account", "--calibrate", "--target-epsilon", "1", "--q", "0.01"),
        *("--steps", "100"),
    ),
}


def words_of(text: str) -> list[str]:
    """The words that are no drawing: sorted, as tables may stack their columns."""
    return sorted(set(re.findall(r"[\w.,%+-]*\w[\w.,%+-]*", text)))


@pytest.mark.parametrize("forced", ["FORCE_COLOR", "TTY_COMPATIBLE"])
def test_a_dumb_terminal_keeps_its_width(forced, monkeypatch):
    """Continuous integration often forces a terminal that can do nothing."""
    monkeypatch.setenv(forced, "1")
    shown = run("data", "list", columns=50).stdout
    assert max(map(len, shown.splitlines())) <= 50


@functools.cache
def unfolded(case):
    return run(*WIDE[case], columns=1000)


@pytest.mark.parametrize(
    "columns", [40, *(pytest.param(c, marks=pytest.mark.slow) for c in (60, 80))]
)
@pytest.mark.parametrize(
    "case",
    [pytest.param(c, marks=[pytest.mark.slow] * (c == "sigmas")) for c in WIDE],
)
def test_no_table_cuts_a_name_or_a_number(case, columns):
    """Every word of a terminal of 1,000 columns is there in a narrow one, whole."""
    wide, narrow = unfolded(case), run(*WIDE[case], columns=columns)
    assert wide.exit_code == narrow.exit_code == 0, narrow.output
    assert "…" not in narrow.stdout
    assert max(map(len, narrow.stdout.splitlines())) <= columns
    shown = set(words_of(narrow.stdout))
    # Longer than the screen: folded over two lines, which no screen can avoid.
    lost = {w for w in words_of(wide.stdout) if w not in shown and len(w) <= 24}
    assert lost <= {"name", "kind", "method"}  # heads of what each stack begins with


@pytest.mark.parametrize("columns", [40, 60, 80])
def test_the_attack_table_cuts_nothing(columns, capsys, monkeypatch):
    result = {
        "about": {
            "type": 2, "method": "cpl:init=uniform,iterations=300",
            "defense": "fed-cdp:clip=4,sigma=6", "dataset": "lfw-patches",
            "batch_size": 3, "local_steps": 1,
        },
        "victims": {"asked": 10000, "missing": [1, 2]},
        "draws": [{"successes": 100, "victims": 2500}] * 4,
        "metrics": {
            "asr": {
                "value": 0.04, "low": 0.0123, "high": 0.123, "threshold": 0.1,
                "guess": 0.25,
            },
            "rmse": {"median": 1.234e-7, "mean": 123.4},
            "examples_rebuilt": 0.123,
            "psnr": {"median": 123.4}, "ssim": {"median": 0.987},
            "iterations": {"median": 123.5, "cap": 300, "run_median": 250},
            "evaluations": {"median": 12345.5}, "label_accuracy": 0.987,
        },
        "oracle": {"asr": {"value": 0.05}, "rmse": {"median": 1.2e-8}},
        "timing": {"total_s": 12345.6, "compile_s": 123.4, "victims_per_s": 1234.5},
        "accounting": {
            "epsilon": {"claimed": 0.823, "effective": "inf"},
            "guarantee": {"verdict": "not valid"},
        },
        "ended": {"converged": 4000, "stalled": 5998},
        "threat": {"name": "curious+labels"},
    }  # fmt: skip
    shown = {}
    for width in (1000, columns):
        monkeypatch.setenv("COLUMNS", str(width))
        console._Out(highlight=False).print(attack_table(result))
        shown[width] = capsys.readouterr().out
    assert "…" not in shown[columns]
    assert set(words_of(shown[1000])) <= set(words_of(shown[columns]))
