"""`gradaudit line-up` and `gradaudit calibrate`: what they print and how they end."""

import json

import pytest
from typer.testing import CliRunner

from gradaudit.cli.app import app
from gradaudit.cli.line_up import numbers
from gradaudit.errors import InputError

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
    cells = json.loads((tmp_path / "result.json").read_text())["metrics"]["cells"]
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
    with pytest.raises(InputError, match="--sigmas takes numbers"):
        numbers("--sigmas", "a", float)
