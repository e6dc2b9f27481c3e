"""Runs that are killed, ended and starved: afterwards the numbers are the same."""

import functools
import json
import os
import pathlib
import random
import resource
import shutil
import signal
import time

import pytest

from gradaudit.files import LOCK
from tests.faults.commands import (
    ATTACK,
    LDP,
    SMALL,
    document,
    essence,
    finished,
    ran,
    started,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]  # a busy machine

# kill -9 and SIGTERM, how often each.
KILLS = {"attack": (8, 4), "train": (4, 3), "ldp": (2, 3), "line-up": (0, 2)}
KILLS |= {"audit": (10, 2)}
CASES = sum(sum(counts) for counts in KILLS.values())


def test_there_are_enough_cases():
    print(f"{CASES} random moments of kill -9 and SIGTERM")
    assert CASES >= 20


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """A command's result, and how long it takes when it is compiled already."""

    @functools.cache
    def of(name):
        for again in ("first", "second"):
            folder = tmp_path_factory.mktemp(f"{name}-{again}")
            began = time.monotonic()
            code, said = ran(SMALL[name], folder)
            assert code == 0, said
        return essence(folder), time.monotonic() - began

    return of


def signalled(words, folder, number, after):
    """Runs a command and signals it; returns its exit code and what it said."""
    process = started(words, folder)
    if number == signal.SIGTERM:  # before that there is nothing to end
        until(lambda: (pathlib.Path(folder) / LOCK).exists() or process.poll() == 0)
    time.sleep(after)
    process.send_signal(number)
    return finished(process)


def until(condition, limit=120):
    end = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.005)


def finished_cells(folder):
    """Returns the records of an audit's finished cells; of another command, none."""
    records = {p: p.read_bytes() for p in folder.glob("cells/*/cell.json")}
    return {p: d for p, d in records.items() if json.loads(d)["outcome"] is not None}


@pytest.mark.parametrize("name", SMALL)
def test_after_any_end_the_same_command_goes_on_to_the_same_result(
    name, undisturbed, tmp_path
):
    expected, seconds = undisturbed(name)
    kills, terms = KILLS[name]
    moments = random.Random(f"moments of {name}")
    numbers = [signal.SIGKILL] * kills + [signal.SIGTERM] * terms
    moments.shuffle(numbers)
    kept = {}
    for number in numbers:
        after = moments.uniform(0.2, 1.1) * seconds
        after *= 1.0 if number == signal.SIGKILL else 0.6  # from the lock on
        code, said = signalled(SMALL[name], tmp_path, number, after)
        if code == -signal.SIGTERM:  # all was written, Python itself was ending
            assert "written to" in said
        else:
            assert code in (0, 130, -signal.SIGKILL), said
        assert number == signal.SIGKILL or code != -signal.SIGKILL
        print(f"{name}: {number.name} after {after:.2f} s: exit {code}")
        for path in tmp_path.glob("*.json"):
            json.loads(path.read_text())  # whole, at every moment
        report = document(tmp_path)
        if code == 130 and report.exists():
            assert json.loads(report.read_text())["status"] in (
                *("interrupted", "done", "finished"),
            )
        assert finished_cells(tmp_path).items() >= kept.items()  # not run again
        kept = finished_cells(tmp_path)
    code, said = ran(SMALL[name], tmp_path)
    assert code == 0, said
    assert essence(tmp_path) == expected
    assert finished_cells(tmp_path).items() >= kept.items()
    assert name != "audit" or len(kept) > 2


@pytest.mark.parametrize("name", ["attack", "train", "ldp"])
def test_what_ended_early_says_so_and_is_valid(name, tmp_path):
    """SIGTERM when the first part is done: exit 130, a whole result, marked."""
    long = {
        "attack": [*ATTACK[:-8], *("--iterations", "200", "--victims", "64")],
        "train": [*SMALL["train"][:-1], "100000"],
        "ldp": [*LDP[:-3], "100000", "--measurements", "50"],
    }
    process = started(long[name], tmp_path)
    kept = {"attack": "victims.jsonl", "train": "history.jsonl"}.get(name)
    if kept is None:
        until((tmp_path / LOCK).exists)
        time.sleep(8)
    else:
        path = tmp_path / kept
        until(lambda: path.exists() and path.read_bytes().count(b"\n") >= 2)
    process.send_signal(signal.SIGTERM)
    code, said = finished(process)
    assert code == 130, said
    if name != "ldp" or (tmp_path / "result.json").exists():
        report = json.loads((tmp_path / "result.json").read_text())
        assert report["status"] == "interrupted"
    assert not (tmp_path / LOCK).exists() and not list(tmp_path.glob(".*"))


def test_two_runs_in_one_folder(tmp_path, undisturbed):
    first = started(ATTACK, tmp_path)
    until((tmp_path / LOCK).exists)
    code, said = ran(ATTACK, tmp_path)
    if first.poll() is None:
        assert code == 2 and f"process {first.pid}" in said
    code, said = finished(first)
    assert code == 0, said
    assert essence(tmp_path) == undisturbed("attack")[0]


def tiny_files():
    """No file may grow beyond 6 kB, as on a disk that gets full."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000))


@pytest.mark.parametrize("name", SMALL)
def test_a_full_disk_ends_in_words_and_leaves_the_old_result(name, tmp_path):
    code, said = ran(SMALL[name], tmp_path / "out")
    assert code == 0, said
    before = essence(tmp_path / "out")
    off = {"GRADAUDIT_CACHE": "off"}
    code, said = ran(SMALL[name], tmp_path / "out", off, preexec_fn=tiny_files)
    assert code == 2, said
    assert "can't be written: File too large" in " ".join(said.split())
    assert essence(tmp_path / "out") == before
    code, said = ran(SMALL[name], tmp_path / "new", off, preexec_fn=tiny_files)
    assert code == 2 and "can't be written" in said, said
    assert not document(tmp_path / "new").exists()
    code, said = ran(SMALL[name], tmp_path / "new")  # there is room again
    assert code == 0, said
    assert essence(tmp_path / "new") == before


# Whoever may do everything may write everywhere: that right is put down first.
NO_OVERRIDE = ("setpriv", "--bounding-set=-dac_override,-dac_read_search")


@pytest.mark.parametrize("name", SMALL)
def test_a_read_only_folder_is_said_before_the_work_and_stays(name, tmp_path):
    before = NO_OVERRIDE if os.geteuid() == 0 else ()
    if before and shutil.which(before[0]) is None:
        pytest.skip("nothing here puts the rights of root down")
    closed = tmp_path / "closed"
    closed.mkdir()
    (closed / "mine.txt").write_text("the user's own")
    closed.chmod(0o555)
    for folder in (closed, closed / "new" / "folder"):
        code, said = ran(SMALL[name], folder, before=before)
        assert code == 2, said
        assert "can't be written" in said and "Permission denied" in said
    assert [path.name for path in closed.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize("name", SMALL)
def test_a_home_and_a_cache_that_cannot_be_written_stop_nothing(name, tmp_path):
    nowhere = dict.fromkeys(
        ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "MPLCONFIGDIR"), "/dev/null"
    )
    data = os.environ.get("GRADAUDIT_DATA")
    kept = {"GRADAUDIT_DATA": data} if data else {}
    code, said = ran(SMALL[name], tmp_path, nowhere | kept)
    assert code == 0, said


WIDTHS = [
    ["attack", "--dataset", "cancer", "--iterations", "30", "--victims", "16"],
    ["attack", "--dataset", "digits", "--iterations", "6", "--victims", "6"],
]


@pytest.mark.parametrize("words", WIDTHS, ids=["mlp", "cpl"])
def test_slots_and_devices_change_no_number(words, tmp_path):
    """With the compiler's optimisations, as people run it."""
    plain = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "0", "XLA_FLAGS": ""}
    cases = {
        "one": ([], {"JAX_NUM_CPU_DEVICES": "1"}),
        "two": ([], {"JAX_NUM_CPU_DEVICES": "2"}),
        "three slots": (["--slots", "3"], {"JAX_NUM_CPU_DEVICES": "2"}),
        "eight": ([], {"JAX_NUM_CPU_DEVICES": "8"}),
    }
    found = {}
    for name, (more, environment) in cases.items():
        folder = tmp_path / name
        code, said = ran([*words, *more, "--draws", "1"], folder, plain | environment)
        assert code == 0, said
        found[name] = essence(folder)["trials"]
    assert set(found.values()) == {found["one"]}
