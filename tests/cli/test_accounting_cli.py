"""`gradaudit account`: tables, JSON, exit codes."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from gradaudit.cli.app import app
from gradaudit.privacy import METHODS

PLAIN = ["--sigma", "6", "--q", "0.01", "--steps", "1000"]


def run(*arguments, code=0):
    result = CliRunner().invoke(app, ["account", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result


def run_json(*arguments):
    return json.loads(run(*arguments, "--json").stdout)


def test_table_names_every_method_and_the_question():
    shown = run(*PLAIN).stdout
    for words in ("base", "advanced", "optimal", "zCDP", "moments", "Renyi", "tight"):
        assert words in shown
    for words in ("1,000 steps", "delta = 1e-05", "add or remove one example", "clean"):
        assert words in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_json_is_one_object_with_all_methods():
    answer = run_json(*PLAIN)
    assert list(answer["methods"]) == list(METHODS)
    assert answer["methods"]["moments"] == pytest.approx(0.275978, rel=1e-4)
    assert (answer["steps"], answer["delta"], answer["unit"]) == (1000, 1e-5, "example")
    assert answer["delta_spent"]["base"] == pytest.approx(1e-4)


def test_a_schedule_says_where_the_budget_ends():
    schedule = ["--schedule", "exponential:sigma0=15,sigma1=4.85"]
    answer = run_json(*schedule, "--q", 0.01, "--steps", 200, "--target-epsilon", 0.08)
    assert answer["exhausted_at"]["base"] < answer["exhausted_at"]["zcdp"] <= 200
    assert answer["exhausted_at"]["pld"] is None
    shown = run(*schedule, "--q", 0.01, "--steps", 200, "--target-epsilon", 0.08).stdout
    assert "never" in shown


def test_calibration_answers_with_a_sigma_per_method():
    question = ["--calibrate", "--target-epsilon", 1, "--q", 0.01, "--steps", 1000]
    sigmas = run_json(*question)["sigma"]
    assert sigmas["pld"] < sigmas["rdp"] < sigmas["moments"] < sigmas["base"]
    back = run_json("--sigma", sigmas["pld"], "--q", 0.01, "--steps", 1000)
    assert back["methods"]["pld"] == pytest.approx(1, rel=1e-3)
    question[2] = 0.02
    assert "out of reach" in run(*question).stdout
    assert run_json(*question)["sigma"]["moments"] is None


def test_a_defense_brings_its_own_numbers_and_a_verdict():
    defense = ["--defense", "fed-cdp:clip=4,sigma=6", "--dataset", "mnist"]
    answer = run_json(*defense)
    assert answer["epsilon"]["claimed"] == pytest.approx(0.8227, abs=1e-4)
    assert answer["methods"]["pld"] == pytest.approx(0.601, abs=1e-3)
    assert answer["guarantee"]["verdict"] == "not valid"
    assert answer["guarantee"]["effective_multiplier"] == pytest.approx(2.449, abs=1e-3)
    shown = run(*defense).stdout
    for words in ("claimed", "accounted", "effective", "guarantee: not valid"):
        assert words in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_options_of_the_setting_replace_the_published_ones():
    answer = run_json("--defense", "fed-cdp", "--rounds", 3, "--local-steps", 7)
    assert answer["steps"] == 21
    drawn = ["--selection", "active", "--batches", "poisson", "--partition", "iid"]
    setting = run_json("--defense", "fed-cdp", "--rounds", 3, *drawn)["setting"]
    assert (setting["selection"], setting["batches"]) == ("active", "poisson")
    assert setting["partition"] == {"scheme": "iid"}


def test_shared_examples_are_counted_and_explained():
    """Every client of `cancer` holds the whole set; a hundred take part."""
    question = ["--dataset", "cancer", "--defense", "fed-cdp:scope=global"]
    fixed, coins = run_json(*question), run_json(*question, "--batches", "poisson")
    assert coins["epsilon"]["effective"] == pytest.approx(1.096, abs=1e-3)
    assert fixed["epsilon"]["effective"] > coins["epsilon"]["effective"]
    assert (fixed["copies"], fixed["holders_per_round"]) == (1000, 100)
    assert fixed["guarantee"]["verdict"] == "not valid"
    shown = " ".join(run(*question).stdout.split())
    for words in ("0.147", "0.08989", "1.096", "2.750", "up to 1,000 clients"):
        assert words in shown
    for words in ("setting: N = 1,000 clients with 400 examples", "B = 4 (fixed)"):
        assert words in shown
    alone = run_json(*question, "--copies", 1, "--batches", "poisson")
    assert alone["epsilon"]["effective"] == pytest.approx(0.0899, abs=1e-4)
    assert alone["guarantee"]["verdict"] == "valid"


def test_the_budget_of_a_run_is_answered_in_rounds():
    answer = run_json("--defense", "fed-sdp", "--target-epsilon", 1)
    assert 0 < answer["rounds_within"] < 100
    shown = run("--defense", "fed-sdp", "--target-epsilon", 1).stdout
    assert f"within 1: {answer['rounds_within']}" in shown


def test_infinity_is_a_word_in_json_and_has_a_reason():
    answer = run_json("--sigma", 1e-200, "--q", 0.01, "--steps", 5)
    assert answer["methods"]["pld"] == "inf"
    assert "so small" in answer["infinite_because"]["pld"]
    assert run_json("--defense", "none")["epsilon"]["effective"] == "inf"


def test_a_training_log_and_a_trace_of_sensitivities(tmp_path):
    log, trace = tmp_path / "log.csv", tmp_path / "trace.txt"
    log.write_text("round,accuracy\n1,0.5\n2,0.9\n3,0.95\n")
    trace.write_text("4 4 2 2 1")
    reached = ["--log", log, "--target-accuracy", 0.9]
    assert run_json("--defense", "fed-cdp", *reached)["steps"] == 200
    assert run_json(*PLAIN, *reached)["steps"] == 2
    fixed = run_json("--trace", trace, "--noise-std", 24, "--q", 0.01)
    constant = run_json("--sigma", 6, "--q", 0.01, "--steps", 5)
    assert fixed["steps"] == 5
    assert fixed["methods"]["zcdp"] < constant["methods"]["zcdp"]


def test_the_plot_is_a_picture_and_json_stays_clean(tmp_path):
    path = tmp_path / "out.png"
    answer = run_json(*PLAIN, "--plot", path, "--target-epsilon", 0.1)
    assert answer["target_epsilon"] == 0.1
    assert path.read_bytes().startswith(b"\x89PNG")


BAD = {
    "sigma must be positive": ["--sigma", -1, "--q", 0.01, "--steps", 3],
    "got nan": ["--sigma", "nan", "--q", 0.01, "--steps", 3],
    "q must lie in (0, 1]": ["--sigma", 1, "--q", 1.5, "--steps", 3],
    "steps must be at least 1": ["--sigma", 1, "--q", 0.1, "--steps", 0],
    "delta must lie in (0, 1)": [*PLAIN, "--delta", 1],
    "--q": ["--sigma", 1],
    "exactly one of": ["--q", 0.1, "--steps", 3],
    "did you mean 'fed-cdp'": ["--defense", "fed-cpd"],
    "derived from it": ["--defense", "fed-cdp", "--sigma", 3],
    "POLICY:sigma0=A,sigma1=B": ["--schedule", "x:y", "--q", 0.1, "--steps", 3],
    "unknown decay policy": [
        *("--schedule", "x:sigma0=2,sigma1=1", "--q", 0.1, "--steps", 3)
    ],
    "can't be written": [*PLAIN, "--plot", "/dev/null/plot.png"],
    "no finite epsilon": ["--defense", "none", "--target-epsilon", 1],
    "--calibrate needs": ["--calibrate", "--q", 0.1],
    "belong together": [*PLAIN, "--target-accuracy", 0.9],
    "unknown sampling": ["--defense", "fed-cdp", "--sampling", "other"],
    "unknown selection 'x'": ["--defense", "fed-cdp", "--selection", "x"],
    "unknown batches 'x'": ["--defense", "fed-cdp", "--batches", "x"],
    "unknown partition 'x'": ["--defense", "fed-cdp", "--partition", "x"],
    "copies must lie in 1..1000": ["--defense", "fed-cdp", "--copies", 1001],
    "participations must lie in 0..100": [
        *("--defense", "fed-cdp", "--participations", 101)
    ],
    "--trace needs --noise-std": ["--trace", "x", "--q", 0.1],
}


@pytest.mark.parametrize("message", BAD)
def test_bad_input_exits_2_in_words(message):
    result = run(*BAD[message], code=2)
    assert message in " ".join(result.stderr.split())
    assert result.stdout == ""


def test_accounting_does_not_wait_for_jax():
    code = (
        "import sys, gradaudit.privacy as a; a.account(a.gaussian(6, 0.01, 10));"
        "sys.exit('jax' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
