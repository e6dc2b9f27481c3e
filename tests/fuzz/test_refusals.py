"""Nonsense that must be refused, each line with the words that it needs."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

LONG = "x" * 5000
# Command lines as people type them; none of them may begin any work.
REFUSED = {
    "attack --slots -3": "slots must be at least 1",
    "attack --slots 0": "slots must be at least 1",
    "attack --success-rmse inf": "success_rmse",
    "attack --success-rmse nan": "success_rmse",
    "attack --seed 99999999999999999999": "seed",
    "attack --batch-size 0": "batch_size must be at least 1",
    "attack --local-steps 0": "local_steps must be at least 1",
    "attack --restarts 0": "restarts must be at least 1",
    "attack --iterations 0": "iterations must be at least 1",
    "attack --victims 0": "victims must be at least 1",
    "attack --victims 1.5": "a whole number or auto",
    "attack --draws 0": "draws must lie in",
    "attack --round -1": "round must not be negative",
    "attack --max-asr nan": "--max-asr",
    "attack --max-asr -0.1": "--max-asr",
    f"attack --dataset {LONG}": "xxx...",
    "attack --dataset ~nouser/x": "nouser",
    "attack --dataset /dev/zero": "/dev/zero",
    "attack --dataset /dev/stdin": "/dev/stdin",
    "attack --defense fed-cdp:clip=4,clip=5": "clip is given twice",
    "attack --defense fed-cdp:clip=nan": "nan",
    "attack --defense fed-cdp:clip=inf": "inf",
    "attack --defense fed-cdp:sigma=-1": "-1",
    "attack --defense fed-cdp:clip": "write key=value",
    "attack --method cpl:init=none": "init",
    "attack --run nowhere": "nowhere",
    "attack --run nowhere --dataset mnist": "--dataset has no effect",
    "attack --run nowhere --defense fed-cdp": "--defense has no effect",
    "attack --run nowhere --batch-size 3": "--batch-size has no effect",
    "train --seed -1": "seed",
    "train --seed 99999999999999999999": "seed",
    "train --batch-size 0": "batch_size must be at least 1",
    "train --evaluate-every 0": "evaluate_every must be at least 1",
    "train --record-every 0": "record must be at least 1",
    "train --chunk 0": "chunk must be at least 1",
    "train --target-accuracy nan": "target_accuracy",
    "train --target-accuracy 2": "target_accuracy",
    "train --target-epsilon -1": "target_epsilon",
    "train --learning-rate inf": "learning_rate must be positive and finite",
    "train --learning-rate nan": "learning_rate",
    "train --learning-rate 0": "learning_rate",
    "train --delta 0": "delta",
    "train --delta nan": "delta",
    "train --rounds 0": "rounds must be at least 1",
    "train --clients 100000000000": "clients must be at most",
    "train --dataset ~nouser/x": "nouser",
    f"train --dataset {LONG}": "xxx...",
    "train --optimizer adm": "did you mean 'adam'",
    "account --sigma 1e300 --q 0.01 --steps 10": "sigma must be at most",
    f"account --sigma 1 --q 0.01 --steps {10**23}": "steps must be at most",
    f"account --sigma 1 --q 0.01 --steps {10**12}": "steps must be at most",
    f"account --schedule linear:sigma0=2,sigma1=1 --q 0.01 --steps {10**12}": "at most",
    f"account --calibrate --target-epsilon 1 --q 0.01 --steps {10**12}": "--calibrate",
    f"account --defense fed-cdp --rounds {10**9}": "not accounted",
    f"account --defense fed-cdp --examples {10**12}": "examples must be at most",
    f"account --defense fed-cdp --clients {10**23}": "clients must be at most",
    "account --sigma nan --q 0.01 --steps 10": "sigma must be positive",
    "account --sigma 1 --q 2 --steps 10": "q must lie in (0, 1]",
    "account --sigma 1 --q 0.01 --steps 10 --delta 1": "delta",
    "account --calibrate --sigma 3 --target-epsilon 1 --q 1 --steps 9": "--sigma has",
    "account --sigma 1 --q 0.01 --steps 10 --clients 5": "--clients has no effect",
    "account --sigma 1 --q 0.01 --steps 10 --noise-std 5": "--noise-std has no effect",
    "account --defense fed-cdp --q 0.5": "--q has no effect",
    "ldp --epsilon 1000": "epsilon",
    "ldp --epsilon 0": "epsilon",
    "ldp --epsilon nan": "epsilon",
    "ldp --epsilon 1,1": "twice",
    "ldp --norms -1": "norm",
    "ldp --norms 1 --trials 0": "trials",
    "ldp --mechanism fed-cdp --adversary benign": "--adversary has no effect",
    "ldp --mechanism fed-cdp --delta 0": "delta",
    "ldp --delta 0.1": "--delta has no effect",
    "ldp --clip inf": "clip",
    "ldp --clip 0": "clip",
    "ldp --learning-rate nan": "learning",
    "ldp --significance 0": "significance",
    "ldp --significance nan": "significance",
    "ldp --seed -1": "seed",
    "ldp --radius -1": "radius",
    "ldp --seed 99999999999999999999": "seed",
    "line-up --seed 99999999999999999999": "seed must lie in",
    "line-up --seed -1": "seed must lie in",
    "line-up --candidates 1": "candidates must be at least 2",
    "line-up --candidates x": "whole numbers",
    "line-up --candidates ,": "candidates must be at least 2",
    "line-up --dataset cancer --candidates 1000 --from any": "has 569",
    "line-up --from worst --candidates 100000": "candidates must be at most 2,000",
    "line-up --looks 0": "looks must be at least 1",
    f"line-up --looks {10**9}": "looks must be at most",
    f"line-up --victims {10**12}": "victims must be at most",
    "line-up --victims 4 --draws 5": "draws must lie in 1..4",
    "line-up --sigmas -1": "sigma must be finite",
    "line-up --sigmas nan": "sigma must be finite",
    "line-up --batch-size 3": "leave batch_size",
    "line-up --type 1 --batch-size 1000 --dataset cancer": "has 569",
    "line-up --type 7": "type must be 0, 1 or 2",
    "line-up --defense prune --sigmas 1": "no parameter sigma",
    "line-up --captured nowhere": "need each other",
    "line-up --captured nowhere --candidates-file digits": "there is no folder nowhere",
    "line-up --captured x --candidates-file digits --looks 3": "--looks has no effect",
    "calibrate --max-success nan": "in (0, 1)",
    "calibrate --max-success 0": "in (0, 1)",
    "calibrate --max-success 0.05": "without reading anything",
    "calibrate --max-success 0.2 --rounds 3": "--rounds has no effect",
    "calibrate --max-success 0.2 --threat curious": "informed",
    "calibrate --max-success 0.2 --defense none": "no parameter sigma",
    "calibrate --max-success 0.2 --type 1 --defense fed-sdp": "after this adversary",
    "calibrate --max-success 0.2 --seed -1": "seed must lie in",
    "attack --line-ups -1": "line_ups must lie in",
    "run nowhere.json": "there is no result",
    "run /dev/zero": "no regular file",
    "data check nothing": "nothing",
    "data fetch ../../etc": "../../etc",
    "list everything": "unknown list",
}  # fmt: skip


@pytest.mark.parametrize("line", REFUSED, ids=lambda line: line[:60])
def test_nonsense_is_refused_before_the_work(line, ask):
    command = line.split()
    out = [] if command[0] in ("account", "data", "list") else ["--out", "out"]
    answer = ask(*command, *out)
    assert answer.code == 2, "the work began" if answer.code is None else answer
    assert REFUSED[line] in " ".join(answer.err.split()), answer.err
    assert len(answer.err) < 2500


SPECS = {
    "an own command": {"command": "rm", "arguments": {}},
    "code of the system": {
        "command": "attack", "arguments": {"method": {"call": "os:system"}},
    },
    "a function that does something": {
        "command": "attack",
        "arguments": {"method": {"function": "gradaudit.files:write_text"}},
    },
    "a call of ours with arguments": {
        "command": "attack",
        "arguments": {
            "dataset": {
                "call": "gradaudit.files:write_text",
                "arguments": {"path": "hacked", "text": "x"},
            }
        },
    },
    "a part that is none": {
        "command": "attack",
        "arguments": {"method": {"part": "subprocess:Popen", "fields": {"args": "ls"}}},
    },
    "an argument that is none": {"command": "attack", "arguments": {"hacked": 1}},
    "no arguments": {"command": "attack"},
    "a list": [1, 2],
    "a wrong type": {"command": "attack", "arguments": {"victims": "many"}},
    "a source that changed": {
        "command": "attack", "arguments": {}, "sources": {"mine.py": "0" * 64},
    },
    "a place to write": {
        "command": "attack", "arguments": {"keep": "hacked", "overwrite": True},
    },
    "a place to train": {"command": "train", "arguments": {"out": "hacked"}},
    "a plug-in": {"command": "attack", "arguments": {"defense": "mine.py:make"}},
    "a plug-in of a training": {
        "command": "train", "arguments": {"defense": "mine.py:make"},
    },
    "a plug-in of an audit": {
        "command": "ldp-mechanism",
        "arguments": {"mechanism": "mine.py:make", "epsilon": 1.0},
    },
    "nested for ever": {"command": "attack", "arguments": {"x": None}},
}  # fmt: skip


@pytest.mark.parametrize("case", SPECS)
def test_a_spec_is_data_and_runs_nothing(case, ask, monkeypatch):
    called = []
    monkeypatch.setattr(os, "system", called.append)
    pathlib.Path("spec.json").write_text(json.dumps(SPECS[case]))
    pathlib.Path("mine.py").write_text("open('hacked', 'w')")
    if case == "nested for ever":
        pathlib.Path("spec.json").write_text('{"command":' + "[" * 10**5)
    answer = ask("run", "spec.json", "--out", "out", ours=("spec.json", "mine.py"))
    assert answer.code == 2 and not called


def program(*words: str, **options):
    return subprocess.run(
        [sys.executable, "-m", "gradaudit.cli", *words],
        capture_output=True,
        timeout=120,
        **options,
    )


PLAIN = {"PYTHONIOENCODING": "ascii", "LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0"}


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(
            ("account", "--defense", "fed-cdp", "--dataset", "cancer"),
            marks=pytest.mark.slow,
        ),
        ("data", "check", "ü\u2603"),
        ("list",),
    ],
    ids=lambda words: words[0],
)
def test_a_terminal_without_unicode_is_spoken_to_in_letters(words):
    done = program(*words, env=os.environ | PLAIN)
    assert done.returncode in (0, 2), done.stderr
    assert (done.stdout + done.stderr).isascii() and b"Traceback" not in done.stderr
    assert done.stdout or done.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize(
    "words",
    [
        ("--help",),
        ("--version",),
        ("data", "list"),
        pytest.param(("list", "--json"), marks=pytest.mark.slow),
    ],
    ids=" ".join,
)
def test_a_full_disk_behind_stdout_is_said(words):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "gradaudit.cli", *words],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
        )
    assert done.returncode == 2, done.stderr
    assert "No space left" in done.stderr and done.stderr.count("\n") == 1


def test_a_reader_that_leaves_is_no_error():
    line = f"{sys.executable} -m gradaudit.cli data list | head -1"
    done = subprocess.run(line, shell=True, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stderr == ""
