"""Plug-ins that fail in every way, through attack, train and ldp alike.

Each is refused with exit code 2, its file and its line, and leaves stdout alone.
"""

import json
import pathlib

import pytest
from typer.testing import CliRunner

from gradaudit.cli.app import app

HEAD = """\
import sys
import jax, jax.numpy as jnp
from gradaudit.defenses import FromFunction, defend
print("imported")
"""
BODY = """
def change(key, tree, t):
    print("called")
    {body}

def make():
    return defend("mine", per_example=(FromFunction(change),))
"""
# (the plug-in, words that the message must hold)
BROKEN = {
    "exit at import": ("sys.exit(0)\n", "sys.exit(0)"),
    "error at import": ("1 / 0\n", "ZeroDivisionError"),
    "no syntax": ("def (:\n", "SyntaxError"),
    "exit in the maker": ("def make():\n    sys.exit(0)\n", "sys.exit(0)"),
    "error in the maker": ("def make():\n    raise KeyError('x')\n", "KeyError"),
    "nothing made": ("def make():\n    pass\n", "got None"),
    "exit in a call": (BODY.format(body="sys.exit(0)"), "sys.exit(0)"),
    "error in a call": (BODY.format(body="raise RuntimeError('no')"), "RuntimeError"),
    "None": (BODY.format(body="return None"), "mine.py"),
    "another shape": (
        BODY.format(body="return jax.tree.map(lambda x: x.sum(), tree)"),
        "shape",
    ),
    "another dtype": (
        BODY.format(body="return jax.tree.map(lambda x: x.astype('int32'), tree)"),
        "int32",
    ),
    "another tree": (BODY.format(body="return {'mine': 1.0}"), "mine.py"),
    "a python branch on a tracer": (
        BODY.format(body="return tree if jax.tree.leaves(tree)[0].sum() > 0 else 0"),
        "TracerBoolConversionError",
    ),
    "too few parameters": (
        BODY.format(body="return tree").replace("(key, tree, t)", "(tree)"),
        "mine.py",
    ),
}
COMMANDS = {
    "attack": [
        "attack",
        "--dataset",
        "cancer",
        "--victims",
        "2",
        "--method",
        "analytic",
    ],
    "train": [
        *("train", "--dataset", "cancer", "--clients", "4", "--clients-per-round", "2"),
        *("--rounds", "1", "--local-steps", "1", "--examples", "8"),
    ],
    "ldp": ["ldp", "--epsilon", "1", "--trials", "128"],
}
OPTION = {"attack": "--defense", "train": "--defense", "ldp": "--mechanism"}


@pytest.fixture
def run(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)

    def ask(command: str, source: str):
        pathlib.Path("mine.py").write_text(HEAD + source)
        words = [*COMMANDS[command], OPTION[command], "mine.py:make", "--out", "out"]
        return CliRunner().invoke(app, [*words, "--json"])

    return ask


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_plug_in_is_refused_with_its_line(case, command, run):
    source, words = BROKEN[case]
    done = run(command, source)
    assert done.exit_code == 2, f"{done.output}\n{done.exception!r}"
    assert done.stdout == ""
    message = done.stderr.strip().splitlines()[-1]
    assert message.startswith("error: ") and words in message
    if case != "nothing made":
        assert "mine.py:" in message


FUNCTIONS = {
    "exit": "def make(key, vector):\n    sys.exit(0)\n",
    "error": "def make(key, vector):\n    raise RuntimeError('no')\n",
    "None": "def make(key, vector):\n    return None\n",
    "another shape": "def make(key, vector):\n    return vector[:2]\n",
    "a string": "def make(key, vector):\n    return 'x'\n",
    "NaN": "def make(key, vector):\n    return vector * jnp.nan\n",
    "a branch": "def make(key, vector):\n    return vector if vector[0] > 0 else key\n",
}


@pytest.mark.parametrize("case", FUNCTIONS)
def test_a_broken_mechanism_is_refused(case, run):
    done = run("ldp", FUNCTIONS[case])
    assert done.exit_code == 2, f"{done.output}\n{done.exception!r}"
    assert done.stdout == "" and "error: " in done.stderr


TALKS = BODY.format(
    body="jax.debug.print('inside {}', t)\n    return jax.tree.map(jnp.sin, tree)"
)


@pytest.mark.parametrize("command", ["attack", "train"])
def test_a_plug_in_that_talks_leaves_json_alone(command, run):
    done = run(command, TALKS)
    assert done.exit_code == 0, f"{done.output}\n{done.exception!r}"
    json.loads(done.stdout)
    assert "called" in done.stderr and "inside" in done.stderr


def test_a_plug_in_can_not_make_a_broken_gate_pass(run, tmp_path):
    """The gate's exit code is not the plug-in's to choose."""
    pathlib.Path("mine.py").write_text(HEAD + BODY.format(body="sys.exit(0)"))
    words = [*COMMANDS["attack"], "--defense", "mine.py:make", "--max-asr", "0.5"]
    assert CliRunner().invoke(app, [*words, "--out", "out"]).exit_code == 2
