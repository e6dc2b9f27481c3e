"""`gradaudit train`: results, targets, errors in words, death and resurrection."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from typer.testing import CliRunner

from gradaudit.cli.app import app

SMALL = [
    "train",
    "--dataset=cancer",
    "--clients=6",
    "--clients-per-round=2",
    "--local-steps=3",
    "--examples=30",
    "--rounds=3",
]


def run(*arguments: str):
    return CliRunner().invoke(app, [*SMALL, *arguments])


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("train")
    defense = "--defense=fed-cdp:clip=1,sigma=2"
    return folder, run(f"--out={folder}", "--json", defense), defense


def test_the_result_is_complete(trained):
    folder, done, _ = trained
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report == json.loads((folder / "result.json").read_text())
    assert (folder / "curve.png").stat().st_size > 5000
    assert report["config"]["setting"]["clients"] == 6
    assert report["stopped"]["reason"] == "rounds"
    assert [record["round"] for record in report["rounds"]] == [1, 2, 3]
    assert len(report["rounds"][0]["norm_after"]) == len(report["tensors"]) == 6
    assert 0 <= report["metrics"]["accuracy"] <= 1
    assert report["metrics"]["milliseconds_per_client_and_iteration"] > 0
    assert report["accounting"]["steps"] == 9
    assert report["accounting"]["epsilon"]["accounted"] > 0


def test_more_rounds_go_on_from_the_checkpoint(trained):
    folder, done, defense = trained
    before = json.loads(done.stdout)["rounds"]
    more = run(f"--out={folder}", "--json", defense, "--resume", "--rounds=4")
    assert json.loads(more.stdout)["rounds"][:3] == before
    assert len(json.loads(more.stdout)["rounds"]) == 4
    other = run(f"--out={folder}", defense, "--resume", "--seed=1")
    assert other.exit_code == 2 and "another training" in other.output


def test_tables_are_for_people(tmp_path):
    done = run(f"--out={tmp_path}", "--target-accuracy=0.01", "--standardize")
    assert done.exit_code == 0
    for words in ("validation accuracy", "target accuracy is reached", "ms"):
        assert words in done.output


def test_a_target_epsilon_ends_the_training_early(tmp_path):
    arguments = [f"--out={tmp_path}", "--json", "--rounds=50"]
    defense = "--defense=fed-cdp:clip=1,sigma=2"
    done = run(*arguments, defense, "--target-epsilon=1.2")
    report = json.loads(done.stdout)
    assert 1 <= report["metrics"]["rounds"] < 50
    assert report["accounting"]["epsilon"]["accounted"] <= 1.2


def test_centralized_is_one_client(tmp_path):
    done = run(
        f"--out={tmp_path}",
        "--json",
        "--centralized",
        "--clients=1",
        "--clients-per-round=1",
        "--local-steps=1",
        "--examples=455",
        "--batch-size=50",
    )
    report = json.loads(done.stdout)
    assert report["config"]["setting"]["examples"] == 455
    assert {record["clients"] for record in report["rounds"]} == {1}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--dataset=mnits"], "did you mean 'mnist'"),
        (["--defense=fed-cpd"], "did you mean 'fed-cdp'"),
        (["--clients=0"], "clients must be at least 1, got 0"),
        (["--clients-per-round=7"], "at most clients (6), got 7"),
        (["--batch-size=31"], "at most the 30 examples"),
        (["--selection=pison"], "did you mean 'poisson'"),
        (["--partition=shard"], "did you mean 'shards'"),
        (["--optimizer=adm"], "did you mean 'adam'"),
        (["--model=cnn"], "reads images"),
        (["--target-epsilon=1"], "claims no finite epsilon"),
        (["--public-examples=9999"], "public examples must lie in"),
        (["--resume"], "there is no checkpoint"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(arguments, words, tmp_path):
    done = run(f"--out={tmp_path}", *arguments)
    assert done.exit_code == 2
    assert words in " ".join(done.output.split())
    assert "Traceback" not in done.output


def start(folder, rounds=400):
    command = [sys.executable, "-m", "gradaudit.cli", *SMALL]
    command += [f"--rounds={rounds}", f"--out={folder}", "--defense=fed-cdp"]
    return command


def wait_for_round(process, folder, seconds=120):
    limit = time.monotonic() + seconds
    while not (folder / "checkpoint.npz").exists():
        assert process.poll() is None and time.monotonic() < limit
        time.sleep(0.05)
    time.sleep(random.Random(0).uniform(0.0, 1.0))


def leaves(folder):
    with np.load(folder / "checkpoint.npz") as file:
        return {name: file[name] for name in file.files if name != "about"}


@pytest.mark.slow
def test_killed_and_resumed_equals_never_killed(tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    subprocess.run(start(whole), check=True, capture_output=True)
    process = subprocess.Popen(start(broken), stderr=subprocess.DEVNULL)
    wait_for_round(process, broken)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not (broken / "result.json").exists()
    subprocess.run([*start(broken), "--resume"], check=True, capture_output=True)
    expected, found = leaves(whole), leaves(broken)
    assert expected.keys() == found.keys() and len(expected) > 6
    for name in expected:
        np.testing.assert_array_equal(expected[name], found[name])


@pytest.mark.slow
def test_ctrl_c_leaves_a_result_and_a_checkpoint(tmp_path):
    process = subprocess.Popen(start(tmp_path, 100000), stderr=subprocess.DEVNULL)
    wait_for_round(process, tmp_path)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    report = json.loads((tmp_path / "result.json").read_text())
    assert report["stopped"]["reason"] == "interrupted"
    assert 1 <= report["metrics"]["rounds"] < 100000
