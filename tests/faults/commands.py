"""Small commands, and what their folders must be equal in."""

import json
import os
import pathlib
import subprocess
import sys
import time

import numpy as np

from gradaudit.files import LOCK

ATTACK = ["attack", "--dataset", "digits", "--model", "dpfl-2conv"]
ATTACK += ["--iterations", "4", "--victims", "8", "--draws", "2", "--slots", "2"]
TRAIN = ["train", "--dataset", "digits", "--clients", "4", "--clients-per-round", "2"]
TRAIN += ["--local-steps", "1", "--batch-size", "2", "--examples", "8"]
TRAIN += ["--rounds", "3"]
LDP = ["ldp", "--epsilon", "1", "--adversary", "gradient-flip,dummy-gradient"]
LDP += ["--box", "white", "--trials", "200", "--measurements", "1"]
LINE_UP = ["line-up", "--dataset", "digits", "--model", "dpfl-2conv"]
LINE_UP += ["--victims", "8", "--draws", "1", "--candidates", "3"]
AUDIT = ["audit", "--dataset", "cancer", "--attack", "analytic", "--type", "2"]
AUDIT += ["--threat", "curious", "--mechanism-trials", "0", "--victims", "8"]
AUDIT += ["--defense", "none", "--defense", "prune:at=per_example"]
AUDIT += ["--defense", "prune:at=update", "--defense", "fed-cdp"]
SMALL = {"attack": ATTACK, "train": TRAIN, "ldp": LDP, "line-up": LINE_UP}
SMALL |= {"audit": AUDIT}

PROGRAM = [sys.executable, "-m", "gradaudit.cli"]


def started(words, folder, environment=None, before=(), **more):
    """Starts a command in a process of its own; `before` it another one may stand."""
    return subprocess.Popen(
        [*before, *PROGRAM, *words, "--out", str(folder)],
        env=os.environ | {"JAX_NUM_CPU_DEVICES": "1"} | (environment or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **more,
    )


def finished(process, limit=900):
    """Waits for the end; returns the exit code and what was said."""
    try:
        out, err = process.communicate(timeout=limit)
    finally:
        process.kill()  # nothing of a test that failed runs on
    assert "Traceback" not in err and "Segmentation" not in err, err
    return process.returncode, out + err


def ran(words, folder, environment=None, **more):
    """Runs a command in a process of its own; returns its exit code and words."""
    return finished(started(words, folder, environment, **more))


def until(condition, limit=900):
    end = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.005)


def locked(process, folder):
    """Waits until a command holds its folder, and returns when; before, it imports."""
    lock = pathlib.Path(folder, LOCK)

    def held():
        try:  # another process that was killed may have left the file
            return lock.read_text() == f"{process.pid}\n" or process.poll() is not None
        except OSError:
            return process.poll() is not None

    until(held)
    return time.monotonic()


def document(folder):
    """Returns where the numbers of a run are."""
    audit = pathlib.Path(folder, "audit.json")
    return audit if audit.exists() else pathlib.Path(folder, "result.json")


def essence(folder):
    """Returns all of a result but how long it took, and where."""
    folder = pathlib.Path(folder)
    found = {"result": untimed(json.loads(document(folder).read_text()))}
    table = folder / "trials.csv"
    if table.exists():
        found["trials"] = table.read_text()
    for name in ("reconstructions.npz", "checkpoint.npz"):
        if (folder / name).exists():
            with np.load(folder / name) as file:
                found[name] = {key: file[key].tobytes() for key in file.files}
    found["files"] = sorted(
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and path.name != LOCK
    )
    return found


TIMES = (
    "timing",
    "seconds",
    "milliseconds_per_client_and_iteration",
    "environment",
    "date",
)


def untimed(value):
    if isinstance(value, dict):
        return {k: untimed(v) for k, v in value.items() if k not in TIMES}
    return [untimed(each) for each in value] if isinstance(value, list) else value
