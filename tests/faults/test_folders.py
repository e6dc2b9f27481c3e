"""Result folders: checked before the work, one run each, nothing old left, any name."""

import fcntl
import json
import os
import pathlib
import re
import resource
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import gradaudit as ga
from gradaudit import files
from gradaudit.cli.app import app
from gradaudit.report import result as results
from gradaudit.report.result import Result
from tests.faults.commands import ATTACK, LDP, LINE_UP, SMALL, TRAIN

CALIBRATE = ["calibrate", "--max-success", "0.5", *LINE_UP[1:]]
COMMANDS = SMALL | {"calibrate": CALIBRATE}
NAMES = list(COMMANDS)


def invoke(*words):
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert "Traceback" not in done.output
    return done


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("place", ["/dev/null/x", "/proc/nowhere/x"])
def test_out_is_checked_before_the_work(name, place, monkeypatch):
    monkeypatch.setattr(ga.machine, "configure", lambda: pytest.fail("work began"))
    done = invoke(*COMMANDS[name], "--out", place)
    assert done.exit_code == 2, done.output
    assert "can't be written" in done.stderr and "--out" in done.stderr


@pytest.mark.parametrize("name", NAMES)
def test_a_full_disk_is_said_before_the_work(name, tmp_path, monkeypatch):
    monkeypatch.setattr(ga.machine, "configure", lambda: pytest.fail("work began"))
    limit = resource.RLIMIT_FSIZE
    before = resource.getrlimit(limit)
    resource.setrlimit(limit, (1000, before[1]))
    try:
        done = invoke(*COMMANDS[name], "--out", tmp_path / "out")
    finally:
        resource.setrlimit(limit, before)
    assert done.exit_code == 2, done.output
    assert "can't be written" in done.stderr and "File too large" in done.stderr


def test_a_plot_that_cannot_be_written_ends_in_words(tmp_path):
    words = ["account", "--q", "0.01", "--sigma", "6", "--steps", "10", "--plot"]
    done = invoke(*words, "/dev/null/x.png")
    assert done.exit_code == 2 and "can't write the plot" in done.stderr
    odd = tmp_path / "a[/]b[red]" / "x.png"
    odd.parent.mkdir(parents=True)
    done = invoke(*words, odd)
    assert done.exit_code == 0 and odd.exists(), done.output


@pytest.mark.parametrize("name", NAMES)
def test_a_folder_in_use_is_refused_by_every_command(name, tmp_path):
    handle = os.open(tmp_path / files.LOCK, os.O_RDWR | os.O_CREAT)
    os.write(handle, b"4711")
    fcntl.flock(handle, fcntl.LOCK_EX)
    done = invoke(*COMMANDS[name], "--out", tmp_path)
    assert done.exit_code == 2, done.output
    assert "another run (process 4711)" in done.stderr
    os.close(handle)
    assert not (tmp_path / "result.json").exists()


@pytest.mark.parametrize("name", NAMES)
def test_every_command_refuses_the_folder_of_another_run(name, tmp_path):
    spec = {"command": "other", "arguments": {}, "sources": {}}
    old = {"schema_version": 2, "spec": spec}
    files.write_json(tmp_path / "result.json", old)
    done = invoke(*COMMANDS[name], "--out", tmp_path)
    assert done.exit_code == 2 and "--overwrite" in done.stderr, done.output
    assert json.loads((tmp_path / "result.json").read_text()) == old


def test_a_run_again_refuses_the_folder_of_another(tmp_path):
    spec = {"command": "ldp", "arguments": {}, "sources": {}}
    files.write_json(tmp_path / "mine.json", spec)
    files.write_json(
        tmp_path / "out" / "result.json", {"spec": spec | {"command": "x"}}
    )
    done = invoke("run", tmp_path / "mine.json", "--out", tmp_path / "out")
    assert done.exit_code == 2 and "--overwrite" in done.stderr, done.output


@pytest.mark.parametrize(
    "name", [pytest.param("attack", marks=pytest.mark.slow), "ldp"]
)
def test_markup_in_a_path_is_a_path(name, tmp_path):
    folder = tmp_path / "a[/]b[red]c[/nothing]"
    done = invoke(*COMMANDS[name], "--out", folder)
    assert done.exit_code == 0, done.output
    assert (folder / "result.json").exists()
    again = invoke(*COMMANDS[name], "--seed", "7", "--out", folder)
    assert again.exit_code == 2 and "a[/]b[red]c[/nothing]" in again.stderr


def test_markup_in_the_name_of_the_data_is_a_name(tmp_path):
    data = tmp_path / "my[/]data[bold].csv"
    data.parent.mkdir()
    text = "".join(f"{i % 2},{i / 40},{(i * 7 % 40) / 40}\n" for i in range(40))
    data.write_text(text)
    words = ["attack", "--dataset", data, "--method", "analytic", "--victims", "2"]
    done = invoke(*words, "--draws", "1", "--line-ups", "0", "--out", tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert "[bold]" in done.output or "[bold" in re.sub(r"\s", "", done.output)


@pytest.mark.parametrize("content", [b"", b"no zip", b"PK\x03\x04torn"])
def test_a_damaged_checkpoint_is_said_in_words(tmp_path, content):
    (tmp_path / "checkpoint.npz").write_bytes(content)
    for more in ([], ["--resume"]):
        done = invoke(*TRAIN, *more, "--out", tmp_path)
        assert done.exit_code == 2, done.output
        assert "checkpoint" in done.stderr and "can't be read" in done.stderr
    assert (tmp_path / "checkpoint.npz").read_bytes() == content


class Pictured(Result):
    """A result with or without a picture."""

    def __init__(self, names):
        self.names = names

    def to_dict(self):
        return {"spec": {"command": "x", "arguments": {}}, "names": self.names}

    def rows(self):
        return {name: [{"a": 1}] for name in self.names}


def listed(folder):
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*.*"))


def test_nothing_of_an_older_result_is_left(tmp_path):
    (tmp_path / "mine.png").write_text("the user's own")
    Pictured(["trials.csv", "figures/victims.png"]).save(tmp_path)
    Pictured(["figures/norms.png"]).save(tmp_path)
    assert listed(tmp_path) == ["figures/norms.png", "mine.png", "result.json"]


def test_what_a_killed_run_could_not_finish_is_gone_with_the_next(tmp_path):
    """kill -9 between the first byte of a file and its last."""
    places = (tmp_path, tmp_path / "figures", tmp_path / "cells" / "a")
    killed = (
        "import os, pathlib, sys; from gradaudit.files import write_whole; "
        "write_whole(pathlib.Path(sys.argv[1]), lambda _: os.kill(os.getpid(), 9))"
    )
    for place in places:
        place.mkdir(parents=True, exist_ok=True)
        words = [sys.executable, "-c", killed, str(place / "x.json")]
        assert subprocess.run(words).returncode == -9
        assert len(list(place.glob(".x.json.*"))) == 1
        (place / ".mine").touch()
    with files.one_run_in(tmp_path):
        left = [p.name for p in tmp_path.rglob("*") if p.is_file()]
        assert sorted(left) == [files.LOCK, *[".mine"] * 3]


def test_what_cannot_be_written_leaves_the_old_result(tmp_path, monkeypatch):
    Pictured(["trials.csv", "figures/victims.png"]).save(tmp_path)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    write, calls = files.write_whole, []

    def full(path, content):
        calls.append(path)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        write(path, content)

    monkeypatch.setattr(files, "write_whole", full)
    with pytest.raises(OSError, match="No space"):
        Pictured(["trials.csv", "figures/norms.png"]).save(tmp_path)
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


def test_every_file_of_every_result_is_known():
    """A name that is not in the list would outlive its run."""
    library = pathlib.Path(results.__file__).parent.parent
    pattern = re.compile(r'"((?:figures/)?\w+\.(?:csv|npz|png))"')
    rooms = ("audit", "distinguish", "report")
    found = {
        name
        for room in rooms
        for path in (library / room).glob("*.py")
        if "class " in path.read_text()
        for name in pattern.findall(path.read_text())
    }
    assert found - set(results.UNFINISHED) <= results.KNOWN
    assert {"trials.csv", "curve.png", "figures/epsilon.png"} <= found


@pytest.mark.parametrize("words", [ATTACK, LDP], ids=["attack", "ldp"])
def test_a_cache_that_cannot_be_written_stops_nothing(words, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", "/dev/null")
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/cache")
    monkeypatch.setenv("GRADAUDIT_CACHE", "/dev/null/cache")
    done = invoke(*words, "--out", tmp_path / "out")
    assert done.exit_code == 0, done.output
