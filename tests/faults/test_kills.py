"""Runs that are killed and ended: afterwards the numbers are the same."""

import functools
import itertools
import json
import random
import signal
import time

import pytest

from gradaudit.files import LOCK
from tests.faults.commands import (
    ATTACK,
    AUDIT,
    LDP,
    SMALL,
    document,
    essence,
    finished,
    locked,
    ran,
    started,
    until,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]  # a busy machine

# kill -9 and SIGTERM, how often each.
KILLS = {"attack": (8, 4), "train": (4, 3), "ldp": (2, 3), "line-up": (0, 2)}
KILLS |= {"audit": (10, 2), "audit in two processes": (6, 2)}
RUNS = SMALL | {"audit in two processes": [*AUDIT, "--on", "local:2"]}
CASES = sum(sum(counts) for counts in KILLS.values())


def test_there_are_enough_cases():
    print(f"{CASES} random moments of kill -9 and SIGTERM")
    assert CASES >= 20


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """A command's result, and the seconds from its lock to its end, once compiled."""

    @functools.cache
    def of(name):
        for again in ("first", "second"):
            folder = tmp_path_factory.mktemp(f"{name}-{again}")
            process = started(RUNS[name], folder)
            began = locked(process, folder)
            code, said = finished(process)
            assert code == 0, said
        return essence(folder), time.monotonic() - began

    return of


def signalled(words, folder, number, after):
    """Runs a command and signals it so long after its lock; returns code and words."""
    process = started(words, folder)
    locked(process, folder)
    time.sleep(after)
    process.send_signal(number)
    return finished(process)


def finished_cells(folder):
    """Returns the records of an audit's finished cells; of another command, none."""
    records = {p: p.read_bytes() for p in folder.glob("cells/*/cell.json")}
    return {p: d for p, d in records.items() if json.loads(d)["outcome"] is not None}


def check_what_is_left(folder, number, code, said):
    """Checks what holds of a folder at every moment, however its run was ended."""
    if code == -signal.SIGTERM:  # all was written, Python itself was ending
        assert "written to" in said
    else:
        assert code in (0, 130, -signal.SIGKILL), said
    assert number == signal.SIGKILL or code != -signal.SIGKILL
    for path in folder.glob("*.json"):
        json.loads(path.read_text())  # whole
    report = document(folder)
    if code == 130 and report.exists():
        status = json.loads(report.read_text())["status"]
        assert status in ("interrupted", "done", "finished")


@pytest.mark.parametrize("name", RUNS)
def test_after_any_end_the_same_command_goes_on_to_the_same_result(
    name, undisturbed, tmp_path
):
    """Signals hit one run after the other; a run that was faster begins anew.

    Moments are a share of the undisturbed run, from the lock on: a busy machine makes
    the test longer, not different. A signal that came too late is sent again.
    """
    expected, seconds = undisturbed(name)
    kills, terms = KILLS[name]
    moments = random.Random(f"moments of {name}")
    waiting = [signal.SIGKILL] * kills + [signal.SIGTERM] * terms
    moments.shuffle(waiting)
    folders = (tmp_path / str(number) for number in itertools.count())
    folder, kept, most, late = next(folders), {}, 0, 0
    while waiting:
        share = moments.uniform(0.0, 0.95)
        code, said = signalled(RUNS[name], folder, waiting[0], share * seconds)
        print(f"{name}: {waiting[0].name} at {share:.2f} of {seconds:.2f} s: {code}")
        check_what_is_left(folder, waiting[0], code, said)
        assert finished_cells(folder).items() >= kept.items()  # not run again
        kept = finished_cells(folder)
        most = max(most, len(kept))
        if code:
            waiting.pop(0)
            continue
        late += 1
        assert late <= 3 * (kills + terms), "the signals come after the end"
        assert essence(folder) == expected
        folder, kept = next(folders), {}
    code, said = ran(RUNS[name], folder)
    assert code == 0, said
    assert essence(folder) == expected
    assert finished_cells(folder).items() >= kept.items()
    assert "audit" not in name or most > 1


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
