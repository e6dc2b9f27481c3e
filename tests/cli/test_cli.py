"""The program as a person meets it: help, version, lists, and errors in one line."""

import json
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from gradaudit._version import __version__
from gradaudit.attacks import PRESETS as ATTACKS
from gradaudit.cli.app import app
from gradaudit.data import CATALOGUE
from gradaudit.defenses import PRESETS as DEFENSES
from gradaudit.models.networks import MODELS

TABLES = {
    "attacks": ATTACKS,
    "defenses": DEFENSES,
    "datasets": CATALOGUE,
    "models": MODELS,
}


def run(*arguments: str):
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "80", "TERM": "dumb"})


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


def test_errors_in_a_real_process_have_no_traceback(root):
    done = subprocess.run(
        [sys.executable, "-m", "gradaudit.cli", "list", "defence"],
        cwd=root,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and "did you mean 'defenses'" in done.stderr
