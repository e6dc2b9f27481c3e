"""`gradaudit attack` and `ga.attack` as a user meets them."""

import csv
import dataclasses
import itertools
import json
import os
import subprocess
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

import gradaudit as ga
from gradaudit.attacks import lanes, search
from gradaudit.cli.app import app
from gradaudit.data import load_dataset

SMALL = ["--dataset", "digits", "--model", "dpfl-2conv", "--victims", "4"]
RUNNER = CliRunner()


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    """The command writes into the folder it is called in: each test has its own."""
    monkeypatch.chdir(tmp_path)


def attack(*arguments):
    return RUNNER.invoke(app, ["attack", *arguments])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    target = tmp_path_factory.mktemp("attack")
    result = attack("--type", "2", *SMALL, "--out", str(target), "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout) == json.loads((target / "result.json").read_text())
    return target


def test_the_result_holds_what_the_contract_names(folder):
    report = json.loads((folder / "result.json").read_text())
    assert report["schema_version"] == 2
    assert report["victims"] == {"asked": 4, "missing": []}
    assert report["status"] == "done"
    assert sum(report["ended"].values()) == 4
    assert report["draws"] == [{"victims": 1, "successes": 1, "asr": 1.0}] * 4
    metrics = report["metrics"]
    assert set(metrics["asr"]) == {
        "value", "low", "high", "interval", "threshold", "guess"
    }  # fmt: skip
    assert metrics["asr"]["value"] == 1.0 and metrics["asr"]["guess"] < 1.0
    for name in ("rmse", "rmse_raw", "psnr", "ssim", "evaluations"):
        assert set(metrics[name]) == {"mean", "median", "worst", "best"}
    assert metrics["label_accuracy"] == 1.0
    assert metrics["iterations"]["median"] <= metrics["iterations"]["cap"]
    assert set(report["oracle"]) == {"asr", "rmse"}
    assert report["oracle"]["rmse"]["median"] <= metrics["rmse"]["median"]
    assert set(report["timing"]) >= {"compile_s", "run_s", "victims_per_s"}
    assert report["environment"]["backend"] == "cpu"
    assert report["threat"]["name"] == "curious"
    assert report["threat"]["attack_needs"] == []
    assert not any("labels" in words for words in report["threat"]["knows"])
    assert report["about"]["method"] == "cpl" and report["about"]["victims"] == 4
    assert report["limitations"]


def test_the_folder_holds_rows_arrays_and_pictures(folder):
    with (folder / "trials.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["victim"] for row in rows] == ["0", "1", "2", "3"]
    with np.load(folder / "reconstructions.npz") as file:
        arrays = dict(file)
    assert arrays["truth"].shape == arrays["reconstruction"].shape == (4, 1, 8, 8, 1)
    error = np.sqrt(np.mean((arrays["truth"] - arrays["reconstruction"]) ** 2))
    assert error < 0.01
    for name in ("victims.png", "convergence.png"):
        image = (folder / "figures" / name).read_bytes()
        assert image.startswith(b"\x89PNG") and len(image) > 5000


def test_a_result_runs_again_from_itself(folder, tmp_path):
    again = RUNNER.invoke(app, ["run", str(folder), "--out", str(tmp_path)])
    assert again.exit_code == 0, again.stderr
    with (
        np.load(folder / "reconstructions.npz") as before,
        np.load(tmp_path / "reconstructions.npz") as after,
    ):
        for name in ("reconstruction", "truth", "victim"):
            np.testing.assert_array_equal(after[name], before[name])
    reports = [
        json.loads((path / "result.json").read_text()) for path in (folder, tmp_path)
    ]
    for report in reports:
        report.pop("timing")
    assert reports[0] == reports[1]
    assert (folder / "trials.csv").read_text() == (tmp_path / "trials.csv").read_text()


def test_a_broken_gate_ends_with_1(folder, tmp_path):
    result = attack(
        "--type", "2", *SMALL, "--max-asr", "0.05", "--out", str(tmp_path / "x")
    )
    assert result.exit_code == 1
    assert "gate broken" in result.stderr
    assert "attack success rate" in result.stdout


def test_an_undecided_gate_ends_with_3(folder, tmp_path):
    result = attack(
        "--type", "2", *SMALL, "--max-asr", "0.7", "--out", str(tmp_path / "x")
    )
    assert result.exit_code == 3
    assert "inconclusive" in result.stderr


@pytest.mark.parametrize("leakage", [0, 1])
def test_updates_of_one_local_step_leak_too(leakage, tmp_path):
    result = ga.attack(
        type=leakage,
        dataset="digits",
        model="dpfl-2conv",
        victims=4,
        batch_size=1,
        draws=1,
    )
    assert result.asr.value == 1.0
    assert result.about["type"] == leakage


def test_the_analytic_attack_rebuilds_patients():
    result = ga.attack(
        type=2, method="analytic", dataset="cancer", victims=300, line_ups=0
    )
    assert result.asr.value == 1.0
    assert result.rmse["worst"] <= 1e-5
    assert result.to_dict()["metrics"]["iterations"]["median"] == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--type", "3"], "type must be 0, 1 or 2"),
        (["--method", "clp"], "did you mean 'cpl'"),
        (["--defense", "fed-cpd"], "did you mean 'fed-cdp'"),
        (["--dataset", "lfw-patch"], "did you mean 'lfw-patches'"),
        (["--model", "cnnn"], "did you mean 'cnn'"),
        (["--victims", "100000"], "at most 200 victims"),
        (["--victims", "0"], "victims must be at least 1"),
        (["--success-rmse", "0"], "success_rmse must lie in (0, 1)"),
        (["--round", "-1"], "round must not be negative"),
        (["--max-asr", "2"], "must be in [0, 1]"),
        (["--method", "analytic"], "first layer is a convolution"),
        (["--dataset", "cancer", "--model", "cpl"], "reads images"),
        (["--iterations", "0"], "iterations must be at least 1"),
        (["--slots", "0"], "slots must be at least 1"),
        (["--draws", "3"], "draws must lie in 1..2"),
        (["--draws", "0"], "draws must lie in 1..2"),
        (["--threat", "curios"], "did you mean 'curious'"),
        (["--method", "cpl:labels=known"], "--threat curious+labels"),
    ],
)
def test_wrong_input_is_one_line_and_exit_2(arguments, words):
    result = attack("--victims", "2", *arguments)
    assert result.exit_code == 2, result.output
    assert words in " ".join(result.stderr.split())
    assert "Traceback" not in result.output
    assert result.stdout == ""


DEVICES = """
import sys
import numpy as np
import gradaudit as ga
result = ga.attack(type=2, dataset="digits", model="dpfl-2conv", victims=24, slots=3,
                   iterations=4, draws=1)
sys.stdout.write(result.inputs.tobytes().hex())
"""


@pytest.mark.slow
def test_the_number_of_devices_changes_no_byte():
    outputs = []
    for devices in (1, 8):
        flags = f"--xla_force_host_platform_device_count={devices}"
        environment = {**os.environ, "XLA_FLAGS": flags}
        environment.pop("JAX_NUM_CPU_DEVICES", None)
        done = subprocess.run(
            [sys.executable, "-c", DEVICES],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        outputs.append(done.stdout)
    assert outputs[0] == outputs[1]
    assert len(outputs[0]) == 24 * 64 * 4 * 2


@pytest.mark.parametrize("strategy", ["known", "last-layer"])
def test_labels_reach_an_attacker_only_if_the_threat_model_says_so(strategy):
    threat = "curious+labels" if strategy == "known" else "curious"
    result = ga.attack(
        dataset="digits",
        model="dpfl-2conv",
        method=f"cpl:labels={strategy}",
        victims=2,
        line_ups=0,
        iterations=1,
        threat=threat,
    ).to_dict()
    told = any("the true labels" in words for words in result["threat"]["knows"])
    assert told == (strategy == "known")
    assert bool(result["threat"]["attack_needs"]) == told
    assert result["metrics"]["label_accuracy"] == 1.0


def test_the_whole_set_may_be_victims():
    digits = load_dataset("digits")
    few = dataclasses.replace(
        digits, inputs=digits.inputs[:40], labels=digits.labels[:40]
    )
    result = ga.attack(
        dataset=few, model="mlp", victims=40, method="analytic", line_ups=0
    )
    truth = {picture.tobytes() for picture in result.truth}
    assert truth == {digit.tobytes() for digit in few.inputs}


def test_ctrl_c_before_the_first_victim_is_no_wrong_input(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(lanes, "advance", interrupted)
    # Nothing was evaluated: what the slots hold are starts, not answers.
    result = attack("--type", "2", *SMALL)
    assert result.exit_code == 130
    assert "before the first victim" in result.stderr


@pytest.mark.parametrize(("moment", "victims"), [("advance", 4), ("collect", 8)])
def test_ctrl_c_at_any_moment_leaves_what_there_is(moment, victims, monkeypatch):
    """Four victims at a time, one call each; it comes in the second call."""
    owner = lanes if moment == "advance" else search._Conveyor
    original, calls = getattr(owner, moment), itertools.count(1)

    def interrupted(*arguments, **options):
        second = next(calls) == 2
        if second and moment == "collect":
            raise KeyboardInterrupt
        result = original(*arguments, **options)
        if second:  # the state went in and never comes out
            raise KeyboardInterrupt
        return result

    monkeypatch.setattr(owner, moment, interrupted)
    attack = {"method": "cpl:iterations=2", "victims": 12, "slots": 4, "draws": 1}
    result = ga.attack(dataset="digits", model="mlp", line_ups=0, **attack)
    assert result.interrupted and len(result.scores) == victims
    assert np.isfinite(result.inputs).all()
    report = result.to_dict()
    assert report["status"] == "interrupted"
    assert report["victims"] == {"asked": 12, "missing": list(range(victims, 12))}
