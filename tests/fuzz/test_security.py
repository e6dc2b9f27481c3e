"""What SECURITY.md says, where no other test does."""

import json
import pathlib
import re

import numpy as np
import pytest
from typer.testing import CliRunner

import gradaudit.audit.attack
import gradaudit.audit.scenario  # noqa: F401 - before what they import is replaced
from gradaudit import files
from gradaudit.audit import captured_files, training_plan
from gradaudit.cli import account_command, console
from gradaudit.cli.app import app
from gradaudit.defenses import parse
from gradaudit.errors import InputError
from gradaudit.privacy import events

PLUG_IN = """\
import pathlib
from gradaudit.defenses import none
pathlib.Path("hacked").write_text("x")

def make():
    return none()
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*words: str):
    return CliRunner().invoke(app, words)


def test_a_recorded_training_runs_no_plug_in_unasked(here, monkeypatch):
    """Whatever reads the folder is kept from importing what the folder names."""
    pathlib.Path("mine.py").write_text(PLUG_IN)

    def rebuild(folder, number):
        parse("mine.py:make")
        raise InputError("imported")

    monkeypatch.setattr("gradaudit.audit.training_plan.recorded_round", rebuild)
    for place in ("gradaudit.audit.attack", "gradaudit.audit.scenario"):
        monkeypatch.setattr(f"{place}.recorded_round", rebuild, raising=False)
    attack = ("attack", "--run", "run", "--victims", "1", "--out", "out")
    refused = run(*attack)
    assert refused.exit_code == 2 and "--trust" in refused.stderr, refused.output
    assert not pathlib.Path("hacked").exists()
    assert "imported" in run(*attack, "--trust").stderr


@pytest.mark.slow
def test_a_recorded_training_with_a_plug_in_needs_trust(here):
    pathlib.Path("mine.py").write_text(PLUG_IN)
    small = ("--clients", "4", "--clients-per-round", "2", "--examples", "8")
    words = ("--dataset", "cancer", "--defense", "mine.py:make", "--out", "run")
    trained = run("train", *words, *small, "--rounds", "1", "--local-steps", "1")
    assert trained.exit_code == 0, trained.output
    pathlib.Path("mine.py").write_text(PLUG_IN + "# the same, but imported anew\n")
    spec_of(here / "run")
    pathlib.Path("hacked").unlink()
    attack = ("attack", "--run", "run", "--round", "1", "--victims", "1")
    attack = (*attack, "--type", "1", "--iterations", "1", "--out", "out")
    refused = run(*attack)
    assert refused.exit_code == 2 and "--trust" in refused.stderr, refused.output
    assert not pathlib.Path("hacked").exists()
    assert run(*attack, "--trust").exit_code == 0
    assert pathlib.Path("hacked").exists()


def spec_of(folder: pathlib.Path) -> None:
    """Makes the folder's digests those of the file as it is now."""
    known = files.digest(pathlib.Path("mine.py"))
    for file in folder.rglob("*.json"):
        text = file.read_text()
        file.write_text(re.sub(r'("mine\.py": )"[0-9a-f]{64}"', rf'\1"{known}"', text))


def test_a_plug_in_of_a_result_is_run_with_trust_only(here):
    pathlib.Path("mine.py").write_text(PLUG_IN)
    arguments = {
        "defense": "mine.py:make", "dataset": "cancer", "method": "analytic",
        "victims": 1,
    }  # fmt: skip
    spec = {"command": "attack", "arguments": arguments}
    pathlib.Path("spec.json").write_text(json.dumps(spec))
    refused = run("run", "spec.json", "--out", "out")
    assert refused.exit_code == 2 and "mine.py" in refused.stderr
    assert not pathlib.Path("hacked").exists()
    trusted = run("run", "spec.json", "--out", "out", "--trust")
    assert trusted.exit_code == 0, trusted.output


def test_a_message_can_not_steer_the_terminal(here):
    name = "evil\x1b[2J\x1b]0;title\x07.csv"
    pathlib.Path(name).write_text("\x1b[31m,1\n")
    done = run("attack", "--dataset", name, "--out", "out")
    assert done.exit_code == 2
    assert "\x1b" not in done.stderr and "\x07" not in done.stderr
    assert r"\x1b[2J" in done.stderr


def test_a_message_is_one_readable_line():
    assert console.readable("a\nb\tc ü") == r"a\nb\tc ü"
    assert len(console.readable("x" * 5000)) < 200


def test_a_result_that_is_too_large_is_not_read(here, monkeypatch):
    monkeypatch.setattr(files, "_LARGEST_JSON", 10)
    pathlib.Path("big.json").write_text('{"command": "attack"}')
    with pytest.raises(InputError, match="larger than"):
        files.read_json(pathlib.Path("big.json"))


def test_the_limits_are_those_of_the_code(root):
    said = (root / "SECURITY.md").read_text()
    gib = files.DEFAULT_GIB
    assert f"| {gib:g} GiB; `{files.LIMIT_VARIABLE}` moves it" in said
    assert f"{captured_files.MOST_BYTES >> 30} GiB a file" in said
    assert f"{files._LARGEST_JSON >> 20} MiB" in said
    assert f"{events.MOST_STEPS:,} equal ones" in said
    assert f"{account_command._MOST_CHANGES:,} of a schedule" in said
    assert f"{training_plan._MOST_HELD:,} examples" in said


def test_every_test_that_is_named_exists(root):
    said = (root / "SECURITY.md").read_text()
    named = set(re.findall(r"`(tests/[\w/.]+|test_\w+)`", said))
    assert len(named) >= 6
    every = "\n".join(p.read_text() for p in (root / "tests").rglob("test_*.py"))
    for name in named:
        exists = (root / name).exists() if "/" in name else f"def {name}(" in every
        assert exists, name


def test_a_checkpoint_is_no_pickle(here):
    """A file that would run code when it is unpickled is refused, and runs nothing."""
    import pickle

    class Evil:
        def __reduce__(self):
            return pathlib.Path("hacked").touch, ()

    folder = here / "run"
    folder.mkdir()
    for name in ("checkpoint.npz", "spec.json", "result.json"):
        (folder / name).write_bytes(pickle.dumps(Evil()))
    with (folder / "round-1.npz").open("wb") as file:
        np.savez(file, x=np.array([Evil()], dtype=object))
    assert run("attack", "--run", "run", "--out", "out").exit_code == 2
    train = ("train", "--dataset", "cancer", "--out", "run", "--resume")
    assert run(*train).exit_code == 2
    assert run("run", "run", "--out", "out").exit_code == 2
    assert not pathlib.Path("hacked").exists()
