"""`gradaudit line-up` and `gradaudit calibrate`: what they print and how they end."""

import json
import types

import pytest
from typer.testing import CliRunner

from gradaudit.audit import least_noise
from gradaudit.audit.line_up_cells import LineUps
from gradaudit.cli.app import app
from gradaudit.cli.options import numbers
from gradaudit.errors import InputError
from gradaudit.federation.training import Stopped

WORST = ["--from", "worst", "--dataset", "digits", "--victims", "300"]
HALF = """
import dataclasses
from gradaudit import defenses

defense = dataclasses.replace(
    defenses.fed_cdp(sigma=1.0), mechanisms=defenses.fed_cdp(sigma=4.0).mechanisms
)
"""


def invoke(*words):
    return CliRunner().invoke(app, list(map(str, words)))


def test_measured_certified_and_guessing_are_printed_and_drawn(tmp_path):
    told = invoke(
        "line-up", *WORST, "--candidates", "2,5", "--looks", "1,3", "--out", tmp_path
    )
    assert told.exit_code == 0, told.output
    for word in ("guessing", "picked", "certified", "add or remove one"):
        assert word in told.stdout
    assert (tmp_path / "figures" / "line_up.png").exists()
    assert len((tmp_path / "line_ups.csv").read_text().splitlines()) == 5
    report = json.loads((tmp_path / "result.json").read_text())
    assert report["threat"]["name"] == "informed"
    cells = report["metrics"]["cells"]
    assert [(c["candidates"], c["looks"]) for c in cells] == [
        (2, 1), (2, 3), (5, 1), (5, 3),
    ]  # fmt: skip
    again = invoke(
        "run", tmp_path / "result.json", "--out", tmp_path / "again", "--json"
    )
    assert json.loads(again.stdout)["metrics"]["cells"] == cells


def test_noise_that_is_not_what_it_says_ends_with_1(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(HALF)
    told = invoke(
        "line-up", *WORST, "--defense", f"{file}:defense", "--out", tmp_path, "--json"
    )
    assert told.exit_code == 1, told.output
    assert "certificate broken" in told.stderr and "look at" in told.stderr
    assert json.loads(told.stdout)["metrics"]["certificate_broken"] == 1


@pytest.mark.slow
def test_the_least_noise(tmp_path):
    told = invoke(
        "calibrate", "--threat", "informed", "--max-success", 0.2, "--candidates", 10,
        "--defense", "fed-cdp", *WORST, "--out", tmp_path, "--json",
    )  # fmt: skip
    assert told.exit_code == 0, told.output
    found = json.loads(told.stdout)["metrics"]
    assert 0.198 <= found["certified"]["value"] <= 0.2
    assert (tmp_path / "figures" / "enough.png").exists()


@pytest.mark.slow
def test_calibrate_ends_with_1_where_the_noise_is_not_what_it_says(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(LESS)
    asked = ("--max-success", 0.15, *WORST, "--defense", f"{file}:mine")
    told = invoke("calibrate", *asked, "--out", tmp_path / "out", "--json")
    assert told.exit_code == 1, told.output
    assert "certificate broken" in told.stderr and "look at" in told.stderr
    assert json.loads(told.stdout)["metrics"]["certificate_broken"] >= 1


LESS = """
import dataclasses
from gradaudit import defenses

def mine(sigma: float = 6.0):
    said = defenses.fed_cdp(sigma=sigma)
    less = defenses.fed_cdp(sigma=sigma / 4)
    made = dataclasses.replace(less, mechanisms=said.mechanisms)
    return dataclasses.replace(made, made_by=mine, parameters=(("sigma", sigma),))
"""


def test_ctrl_c_in_calibrate_keeps_the_answer(tmp_path, monkeypatch):
    """The least sigma is played first: interrupted after it, it is the answer."""
    play = LineUps.play

    def until_the_second(table, key, defense):
        if dict(defense.parameters)["sigma"] < 7:
            raise KeyboardInterrupt
        yield from play(table, key, defense)

    monkeypatch.setattr(LineUps, "play", until_the_second)
    asked = ("--max-success", 0.2, *WORST, "--out", tmp_path, "--json")
    told = invoke("calibrate", *asked)
    assert told.exit_code == 130, told.output
    report = json.loads(told.stdout)
    assert report["status"] == "interrupted" and len(report["points"]) == 1
    assert 0.198 <= report["metrics"]["certified"]["value"] <= 0.2
    assert json.loads((tmp_path / "result.json").read_text()) == report


@pytest.mark.parametrize(
    "when", [pytest.param("first", marks=pytest.mark.slow), "second"]
)
def test_ctrl_c_in_a_training_of_calibrate_keeps_the_line_ups(
    tmp_path, monkeypatch, when
):
    calls = []

    def trained(*_, out, **__):
        calls.append(out)
        if when == "first":
            raise KeyboardInterrupt
        stopped = Stopped.INTERRUPTED if len(calls) == 2 else Stopped.ROUNDS
        return types.SimpleNamespace(stopped=stopped, accuracy=0.5)

    monkeypatch.setattr(least_noise, "run_training", trained)
    asked = ("--max-success", 0.2, *WORST, "--train", "--rounds", 2, "--json")
    told = invoke("calibrate", *asked, "--model", "mlp", "--out", tmp_path)
    assert told.exit_code == 130, told.output
    points = json.loads(told.stdout)["points"]
    accuracies = [point["accuracy"] for point in points]
    assert accuracies == [None, 0.5 if when == "second" else None, None]
    assert len(set(calls)) == len(calls)  # each training has a folder of its own


@pytest.mark.slow
def test_the_least_noise_and_the_accuracy_that_is_left(tmp_path):
    told = invoke(
        "calibrate", "--max-success", 0.3, "--dataset", "digits", "--victims", 100,
        "--train", "--rounds", 2, "--out", tmp_path, "--json",
    )  # fmt: skip
    assert told.exit_code == 0, told.output
    points = json.loads(told.stdout)["points"]
    assert all(0 <= point["accuracy"] <= 1 for point in points)


@pytest.mark.parametrize(
    "words, says",
    [
        (["line-up", "--candidates", "ten"], "whole numbers"),
        (["line-up", "--candidates", "1"], "at least 2"),
        (["line-up", "--from", "crowd"], "label, any, worst"),
        (["calibrate", "--max-success", "0.05"], "without reading anything"),
        (["calibrate", "--max-success", "0.2", "--threat", "curious"], "informed"),
        (["calibrate", "--max-success", "0.2", "--defense", "prune"], "sigma"),
    ],
)
def test_bad_input_ends_with_2_and_words(words, says, tmp_path):
    told = invoke(*words, "--dataset", "digits", "--out", tmp_path)
    assert told.exit_code == 2
    assert says in " ".join(told.stderr.split())


def test_lists_of_numbers():
    assert numbers("--looks", "1,10, 100", int) == [1, 10, 100]
    assert numbers("--sigmas", "", float) == []
    with pytest.raises(InputError, match="--sigmas must be numbers"):
        numbers("--sigmas", "a", float)


def test_a_capture_leaves_the_folder_of_another_run_alone(tmp_path):
    old = {"schema_version": 2, "spec": {"command": "other", "arguments": {}}}
    (tmp_path / "result.json").write_text(json.dumps(old))
    words = ("line-up", "--captured", "x", "--candidates-file", "digits")
    told = invoke(*words, "--out", tmp_path)
    assert told.exit_code == 2 and "--overwrite" in told.stderr, told.output
    assert json.loads((tmp_path / "result.json").read_text()) == old
