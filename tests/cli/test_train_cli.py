"""`gradaudit train`: results, targets, errors in words, death and resurrection."""

import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
from typer.testing import CliRunner

from gradaudit import defenses
from gradaudit.audit.train import train
from gradaudit.audit.training_plan import recorded_round
from gradaudit.cli.app import app
from gradaudit.data import Dirichlet
from gradaudit.errors import InputError
from gradaudit.federation.round import run_round
from gradaudit.federation.setting import Selection, Setting
from gradaudit.federation.training import Progress
from gradaudit.models.networks import build_model
from gradaudit.privacy.calibrate import read_log
from gradaudit.spec import Spec

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


def test_a_training_that_ended_before_its_first_round_begins_again(tmp_path):
    """It leaves a result and no checkpoint; another training is still refused."""
    said = (f"--out={tmp_path}", "--json", "--rounds=1")
    first = run(*said)
    for name in ("checkpoint.npz", "history.jsonl"):
        (tmp_path / name).unlink()
    other = run(*said, "--seed=1")
    assert other.exit_code == 2 and "another training" in other.output
    again = run(*said)
    assert again.exit_code == 0
    accuracy = [
        json.loads(one.stdout)["rounds"][0]["accuracy"] for one in (first, again)
    ]
    assert accuracy[0] == accuracy[1]


def test_more_rounds_go_on_from_the_checkpoint(trained):
    folder, done, defense = trained
    before = json.loads(done.stdout)["rounds"]
    more = run(f"--out={folder}", "--json", defense, "--resume", "--rounds=4")
    assert json.loads(more.stdout)["rounds"][:3] == before
    assert len(json.loads(more.stdout)["rounds"]) == 4
    forgotten = run(f"--out={folder}", "--json", defense, "--rounds=5")
    assert json.loads(forgotten.stdout)["rounds"][:3] == before
    kept = (folder / "checkpoint.npz").read_bytes()
    for resume in ([], ["--resume"]):
        other = run(f"--out={folder}", defense, "--seed=1", *resume)
        assert other.exit_code == 2 and "another training" in other.output
    assert (folder / "checkpoint.npz").read_bytes() == kept
    anew = run(f"--out={folder}", "--json", "--seed=1", "--rounds=1", "--overwrite")
    assert len(json.loads(anew.stdout)["rounds"]) == 1


MINE = """
from gradaudit import defenses

def mine():
    return defenses.fed_cdp(clip={clip}, sigma=0.1)
"""


def test_an_edited_defense_is_another_training(tmp_path):
    file, folder = tmp_path / "mine.py", tmp_path / "run"
    file.write_text(MINE.format(clip=1.0))
    arguments = [f"--out={folder}", f"--defense={file}:mine", "--rounds=1"]
    assert run(*arguments).exit_code == 0
    file.write_text(MINE.format(clip=2.0))
    again = run(*arguments, "--resume")
    assert again.exit_code == 2 and "another training" in again.output


def test_an_edited_data_file_is_another_training(tmp_path):
    file, folder = tmp_path / "mine.npz", tmp_path / "run"
    rng = np.random.default_rng(0)
    arrays = {}
    for split in ("train", "test"):
        arrays[f"x_{split}"] = rng.random((200, 5)).astype(np.float32)
        arrays[f"y_{split}"] = np.arange(200) % 2
    np.savez(file, **arrays)
    arguments = [f"--dataset={file}", f"--out={folder}", "--rounds=1"]
    done = run(*arguments)
    assert done.exit_code == 0, done.output
    kept = (folder / "checkpoint.npz").read_bytes()
    arrays["x_train"][0, 0] = 0.5
    np.savez(file, **arrays)
    for more in (["--resume"], []):
        again = run(*arguments, *more)
        assert again.exit_code == 2 and "another training" in again.output
    assert (folder / "checkpoint.npz").read_bytes() == kept


NUMBERS = ("accuracy", "loss", "training_loss", "norm_before", "norm_after", "clients")


def numbers(report):
    return [[record[name] for name in NUMBERS] for record in report["rounds"]]


def repeated(path):
    arguments = Spec.read(path).call()
    return train(**arguments).to_dict()


@pytest.mark.parametrize(
    "which",
    [
        pytest.param("names", marks=pytest.mark.slow),
        "objects",
        "a file",
    ],
)
def test_a_result_runs_again_to_the_same_numbers(tmp_path, which):
    file = tmp_path / "mine.py"
    file.write_text(MINE.format(clip=1.0))
    setting = Setting(
        clients=6, clients_per_round=2, local_steps=2, batch_size=4, rounds=2,
        examples=30, selection=Selection.POISSON, partition=Dirichlet(alpha=0.3),
    )  # fmt: skip
    fixed = dataclasses.replace(setting, selection=Selection.FIXED)
    asked = {
        "names": {"setting": setting, "defense": "fed-cdp:clip=1,sigma=0.2"},
        "objects": {
            "setting": fixed,
            "defense": defenses.fed_sdp(clip=2.0, sigma=0.1),
            "model": build_model("mlp", (30,), 2),
            "standardize": True,
        },
        "a file": {"setting": fixed, "defense": f"{file}:mine", "seed": 7},
    }
    first = train(dataset="cancer", out=tmp_path / "out", **asked[which]).to_dict()
    assert numbers(repeated(tmp_path / "out")) == numbers(first)
    if which == "a file":
        file.write_text(MINE.format(clip=3.0))
        with pytest.raises(InputError, match="has changed since the run"):
            repeated(tmp_path / "out")


def test_a_recorded_round_is_the_training_that_took_place(tmp_path):
    assert run(f"--out={tmp_path}", "--record-every=2", "--rounds=4").exit_code == 0
    found = recorded_round(tmp_path, 2)
    assert int(found.state.round) == 1 and len(found.participants) == 2
    after, _ = run_round(
        found.training.recipe,
        found.training.population,
        found.key,
        found.state,
        np.array(found.participants),
    )
    later = recorded_round(tmp_path, 4)
    third, _ = run_round(
        found.training.recipe,
        found.training.population,
        found.key,
        after,
        found.training.participants(found.key, Progress(after, np.zeros(0))),
    )
    for one, two in zip(
        jax.tree.leaves(third), jax.tree.leaves(later.state), strict=True
    ):
        np.testing.assert_allclose(one, two, rtol=1e-6, atol=1e-7)


def test_the_log_is_what_accounting_reads(trained, tmp_path):
    done = run(f"--out={tmp_path}", "--evaluate-every=2", "--rounds=4")
    assert done.exit_code == 0
    assert [step for step, _ in read_log(tmp_path / "rounds.csv")] == [2, 4]
    assert len((tmp_path / "rounds.csv").read_text().splitlines()) == 5


def test_a_diverged_training_says_so_in_valid_json(tmp_path):
    arguments = [f"--out={tmp_path}", "--learning-rate=1e30"]
    done = run(*arguments, "--json")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout, parse_constant=pytest.fail)
    json.loads((tmp_path / "result.json").read_text(), parse_constant=pytest.fail)
    assert report["status"] == "diverged" and report["metrics"]["accuracy"] is None
    assert "diverged" in run(*arguments, "--overwrite").output


def test_statistics_are_private_and_said_so_or_public(tmp_path):
    private, public = tmp_path / "private", tmp_path / "public"
    done = run(f"--out={private}", "--json", "--standardize", "--rounds=1")
    said = " ".join(json.loads(done.stdout)["limitations"])
    assert "private data" in said and "no epsilon counts them" in said
    words = ["--standardize", "--statistics=public", "--rounds=1"]
    done = run(f"--out={public}", "--json", "--public-examples=50", *words)
    assert "private data" not in " ".join(json.loads(done.stdout)["limitations"])
    mean = recorded_round(public, 1).plan.network.network.mean
    known = recorded_round(public, 1).training.public.inputs
    np.testing.assert_allclose(mean, np.asarray(known).mean(axis=0), rtol=1e-4)
    refused = run(f"--out={tmp_path}", *words)
    assert refused.exit_code == 2 and "need --public-examples" in refused.output


@pytest.mark.slow  # tests/federation/test_poisson_batches.py trains with them
def test_poisson_batches_train(tmp_path):
    done = run(
        f"--out={tmp_path}", "--json", "--batches=poisson", "--selection=poisson",
        "--defense=fed-cdp:clip=1,sigma=2", "--rounds=1", "--local-steps=1",
    )  # fmt: skip
    report = json.loads(done.stdout)
    assert report["config"]["setting"]["batches"] == "poisson"
    assert "Poisson batch is cut" in " ".join(report["limitations"])


def test_tables_are_for_people(tmp_path):
    done = run(f"--out={tmp_path}", "--target-accuracy=0.01", "--standardize")
    assert done.exit_code == 0
    for words in ("validation accuracy", "target accuracy is reached", "ms"):
        assert words in done.output


def test_a_target_epsilon_ends_the_training_early(tmp_path):
    coins = ["--selection=poisson", "--batches=poisson", "--partition=iid"]
    arguments = [f"--out={tmp_path}", "--json", "--rounds=50", *coins]
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
        (["--delta=0"], "delta must lie in (0, 1), got 0"),
        (["--target-accuracy=2"], "target_accuracy must lie in (0, 1], got 2"),
        (["--target-accuracy=nan"], "target_accuracy must lie in (0, 1], got nan"),
        (["--target-epsilon=inf"], "target_epsilon must be positive and finite"),
        (["--evaluate-every=0"], "evaluate_every must be at least 1, got 0"),
        (["--record-every=0"], "record must be at least 1, got 0"),
        (["--chunk=0"], "chunk must be at least 1, got 0"),
        (["--learning-rate=inf"], "learning_rate must be"),
        (["--seed=-1"], "seed must lie in 0..2^32 - 1, got -1"),
        (["--seed=99999999999999999999"], "seed must lie in 0..2^32 - 1"),
        (["--statistics=publik"], "did you mean 'public'"),
        (["--batches=pison"], "did you mean 'poisson'"),
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
