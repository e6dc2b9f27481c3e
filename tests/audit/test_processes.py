"""One attack over several processes: the same bytes, and every end in words."""

import contextlib
import json
import signal
import socket
import threading
import time

import numpy as np
import pytest
from typer.testing import CliRunner

from gradaudit.audit import processes
from gradaudit.audit.processes import Processes
from gradaudit.cli.app import app
from gradaudit.errors import InputError, LostProcess
from tests.faults.commands import ATTACK, essence, finished, ran, started


class Shared:
    """jax's store of keys and values, for processes that are threads of a test."""

    def __init__(self):
        self.values = {}
        self.changed = threading.Condition()

    def key_value_set(self, key, value, allow_overwrite=False):
        with self.changed:
            assert allow_overwrite or key not in self.values
            self.values[key] = value
            self.changed.notify_all()

    def blocking_key_value_get(self, key, timeout_in_ms):
        with self.changed:
            assert self.changed.wait_for(lambda: key in self.values, 10)
            return self.values[key]

    def key_value_dir_get(self, key):
        with self.changed:
            return [(k, v) for k, v in self.values.items() if k.startswith(key)]

    def key_value_delete(self, key):
        with self.changed:
            del self.values[key]


@pytest.fixture
def several(monkeypatch):
    """Returns the processes of one attack, and what process 0 takes."""
    monkeypatch.setattr(processes, "_BEAT", 0.02)
    monkeypatch.setattr(processes, "_LOST", 0.4)
    monkeypatch.setattr(processes, "_FAREWELL", 0.2)
    store = Shared()

    def made(count):
        monkeypatch.setattr(processes, "_attacks", iter([7] * count))
        return [Processes(index, count, store) for index in range(count)]

    return made


@pytest.mark.parametrize("count", [1, 2, 3, 5, 20])
@pytest.mark.parametrize("victims", [0, 1, 12, 64])
def test_every_victim_is_attacked_by_one_process(count, victims):
    finished = {3, 5}
    parts = [
        Processes(index, count).part("this one", finished, victims)
        for index in range(count)
    ]
    everybody = sorted(set(range(victims)) - finished)
    np.testing.assert_array_equal(np.concatenate(parts), everybody)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_what_is_finished_reaches_process_0_whole(several, monkeypatch):
    monkeypatch.setattr(processes, "_PIECE", 3)
    first, *others = several(3)
    took = []
    with contextlib.ExitStack() as held:
        held.enter_context(first.together(took.extend))
        for other in others:
            with other.together(took.extend):
                other.send([f"line of {other.index}", "ab", "abc", "abcd"])
        first.wait(lambda: None)
    assert sorted(took) == sorted(
        ["line of 1", "line of 2", *("ab", "abc", "abcd") * 2]
    )


def test_everybody_knows_who_is_finished_and_which_attack_it_is(several):
    first, second, third = several(3)
    assert first.part("this one", {3, 5}, 8).tolist() == [0, 1]
    assert second.part("this one", (), 8).tolist() == [2, 4]
    with pytest.raises(InputError, match="process 2 was started with another attack"):
        third.part("another one", (), 8)


def test_a_silent_process_is_lost(several):
    first, _ = several(2)
    with (
        pytest.raises(LostProcess, match="process 1 of 2 has not been heard of"),
        first.together(list),
    ):
        first.wait(lambda: None)


def test_a_failing_process_ends_the_run_with_its_words(several):
    first, second = several(2)
    with pytest.raises(InputError), second.together(list):
        raise InputError("there is no dataset 'x'")
    with (
        pytest.raises(LostProcess, match="process 1 of 2 ended: there is no dataset"),
        first.together(list),
    ):
        first.wait(lambda: None)


def test_an_interrupted_process_interrupts_all(several):
    first, second = several(2)
    with second.together(list):
        second.stop()
    with pytest.raises(KeyboardInterrupt), first.together(list):
        first.wait(lambda: None)


def test_what_process_0_ends_the_others_end_too(several):
    first, second = several(2)
    with second.together(list), pytest.raises(KeyboardInterrupt):
        first.stop()
        time.sleep(10)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--processes", "2"], "several processes need all of"),
        (["--coordinator", "here", "--processes", "2", "--process", "0"], "HOST:PORT"),
        (["--coordinator", "h:1", "--processes", "2", "--process", "2"], "0..1"),
        (["--coordinator", "h:1", "--processes", "0", "--process", "0"], "at least 1"),
    ],
)
def test_wrong_processes_are_refused_in_words(options, words, tmp_path):
    result = CliRunner().invoke(app, ["attack", *options, "--out", str(tmp_path)])
    assert result.exit_code == 2 and words in " ".join(result.output.split())


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def together(words, folder, count):
    """Starts the processes of one attack; process 0 comes first."""
    port = free_port()
    return [
        started(
            [*words, "--coordinator", f"127.0.0.1:{port}"]
            + ["--processes", str(count), "--process", str(index)],
            folder,
        )
        for index in range(count)
    ]


def lines(folder):
    path = folder / "victims.jsonl"
    return path.read_text().splitlines()[1:] if path.exists() else []


def until_kept(folder, count, running):
    end = time.monotonic() + 200
    while len(lines(folder)) < count and all(p.poll() is None for p in running):
        assert time.monotonic() < end
        time.sleep(0.05)


SIXTY_FOUR = [*ATTACK[:-8], "--victims", "64", "--draws", "4", "--iterations", "3"]


@pytest.mark.slow
@pytest.mark.parametrize("leakage", ["2", "0"])
def test_one_two_and_four_processes_write_the_same_bytes(leakage, tmp_path):
    words = [*SIXTY_FOUR, "--type", leakage]
    assert ran(words, tmp_path / "1")[0] == 0
    for count in (2, 4):
        ends = [finished(p) for p in together(words, tmp_path / str(count), count)]
        assert [code for code, _ in ends] == [0] * count, ends
        assert f"{64 // count} victims were attacked here" in ends[1][1]
        for name in ("trials.csv", "reconstructions.npz"):
            found = [(tmp_path / n / name).read_bytes() for n in ("1", str(count))]
            assert found[0] == found[1], name


LONG = [*ATTACK[:-8], "--victims", "32", "--draws", "2", "--iterations", "400"]
LONG += ["--slots", "2", "--method", "gradinv"]


@pytest.mark.slow
@pytest.mark.parametrize("killed", [0, 1])
def test_after_a_killed_process_the_same_commands_go_on(killed, tmp_path):
    words, folder = LONG, tmp_path / "out"
    assert ran(words, tmp_path / "alone")[0] == 0
    running = together(words, folder, 2)
    until_kept(folder, 3, running)
    running[killed].send_signal(signal.SIGKILL)
    running[killed].communicate()
    left = running[1 - killed]
    said = left.communicate(timeout=100)[1]
    if killed == 1:
        assert left.returncode == 3 and "Traceback" not in said
        assert "process 1 of 2 has not been heard of" in " ".join(said.split())
    else:  # the store is gone with process 0: jax ends the others itself
        assert left.returncode not in (0, 1) and "died" in said
    before = lines(folder)
    assert 3 <= len(before) < 32 and not (folder / "result.json").exists()
    ends = [finished(p) for p in together(words, folder, 2)]
    assert [code for code, _ in ends] == [0, 0], ends
    assert lines(folder)[: len(before)] == before  # nobody was attacked twice
    assert len(lines(folder)) == 32
    assert essence(folder) == essence(tmp_path / "alone")


@pytest.mark.slow
@pytest.mark.parametrize("ended", [0, 1])
def test_an_ended_process_ends_all_and_the_result_says_so(ended, tmp_path):
    running = together(LONG, tmp_path, 2)
    until_kept(tmp_path, 3, running)
    running[ended].send_signal(signal.SIGTERM)
    ends = [finished(process) for process in running]
    assert [code for code, _ in ends] == [130, 130], ends
    report = json.loads((tmp_path / "result.json").read_text())
    assert report["status"] == "interrupted" and report["victims"]["missing"]


@pytest.mark.slow
def test_processes_that_disagree_are_refused(tmp_path):
    port = free_port()
    shared = ["--coordinator", f"127.0.0.1:{port}", "--processes", "2", "--process"]
    running = [
        started([*ATTACK, *shared, "0"], tmp_path),
        started([*ATTACK, "--seed", "1", *shared, "1"], tmp_path),
    ]
    ends = [finished(process) for process in running]
    assert [code for code, _ in ends] == [3, 2]
    assert all("another attack than process 0" in said for _, said in ends)
