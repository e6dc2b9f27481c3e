"""`gradaudit ldp`: tables, JSON, figures, exit codes, errors in words."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from gradaudit.cli.app import app
from gradaudit.distinguish import ldp_sgd as report_module

FAST = ["--trials", "200", "--measurements", "2", "--box", "white"]
MECHANISMS = """
import jax, jax.numpy as jnp
from gradaudit.defenses import randomize

def honest(key, vector):
    return randomize(key, vector, 1.0, 1.0)

def broken(key, vector):
    return vector

def nan(key, vector):
    return vector * jnp.nan

def short(key, vector):
    return vector[:5]
"""


@pytest.fixture
def gradaudit(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MECHANISMS)

    def call(*words):
        return CliRunner().invoke(app, ["ldp", *words])

    return call


def test_table_figures_and_result(gradaudit, tmp_path):
    result = gradaudit(*FAST, "--epsilon", "0.5,2", "--norms", "0.5,1")
    assert result.exit_code == 0, result.output
    for name in ("benign", "collusion", "dummy", "ε = 0.5", "verdicts: 12 consistent"):
        assert name in result.stdout
    folder = tmp_path / "gradaudit-ldp"
    assert (folder / "figures" / "epsilon.png").stat().st_size > 10_000
    assert (folder / "figures" / "norms.png").stat().st_size > 5_000
    saved = json.loads((folder / "result.json").read_text())
    assert saved["schema_version"] == 1
    assert len(saved["cells"]) == 12
    assert len(saved["sweep"]) == 4
    assert saved["environment"]["packages"]["jax"]


def test_json_is_all_of_stdout_and_runs_again(gradaudit):
    words = (*FAST, "--adversary", "dummy-gradient", "--epsilon", "4", "--json")
    first = json.loads(gradaudit(*words).stdout)
    cell = first["cells"][0]
    assert cell["adversary"] == "dummy-gradient"
    # 400 trials can prove 3.98 at most; 408 would do.
    assert (cell["verdict"], cell["trials_needed"]) == ("can't tell", 408)
    assert set(cell["estimates"]) == {"split", "one_run", "raw"}
    config = first["config"]
    config["boxes"] = [report_module.Box(box) for box in config["boxes"]]
    config["server"] = report_module.Server(**config["server"])
    again = report_module.ldp_audit(**config).to_dict()
    assert again["cells"] == first["cells"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--epsilon", "0"], "epsilon must be positive and finite, got 0.0"),
        (["--epsilon", "-1"], "epsilon must be positive"),
        (["--epsilon", "one"], "must be numbers with commas"),
        (["--trials", "99"], "at least 100 trials, got 99"),
        (["--adversary", "benin"], "did you mean 'benign'?"),
        (["--box", "grey"], "--box must be white, black or both"),
        (["--white-rule", "cosin"], "did you mean 'cosine'?"),
        (["--dataset", "digit"], "did you mean 'digits'?"),
        (["--mechanism", "fed-cpd"], "did you mean 'fed-cdp'?"),
        (["--mechanism", "none"], "claims no privacy of its own"),
        (["--mechanism", "mine.py:honest"], "claims nothing by itself"),
        (["--mechanism", "mine.py:nan", "--epsilon", "1"], "values that are NaN"),
        (["--mechanism", "mine.py:short", "--epsilon", "1"], "got (5,)"),
        (["--mechanism", "mine.py:other", "--epsilon", "1"], "unknown name in mine.py"),
        (["--mechanism", "no.py:other", "--epsilon", "1"], "there is no file no.py"),
        (["--mechanism", "fed-cdp", "--epsilon", "1,2"], "one epsilon, got 2"),
        (["--mechanism", "fed-cdp", "--neighbours", "near"], "--neighbours must be"),
    ],
)
def test_errors_are_words_and_exit_2(gradaudit, words, message):
    result = gradaudit(*words)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stdout == ""
    assert "Traceback" not in result.stderr


def test_gate(gradaudit):
    tested = ["--epsilon", "1", "--model", "mlp", "--trials", "500", "--gate"]
    honest = gradaudit("--mechanism", "mine.py:honest", *tested)
    assert honest.exit_code == 0, honest.output
    assert "gate held" in honest.stderr
    broken = gradaudit("--mechanism", "mine.py:broken", *tested, "--json")
    assert broken.exit_code == 1
    assert json.loads(broken.stdout)["result"]["verdict"] == "refuted"
    few = gradaudit("--mechanism", "mine.py:honest", *tested, "--epsilon", "9")
    assert few.exit_code == 3
    assert "needs 59,788 trials" in " ".join(few.stdout.split())


def test_an_interrupt_keeps_the_finished_cells(gradaudit, monkeypatch, tmp_path):
    play = report_module.play_cells

    def interrupted(*arguments, **options):
        for count, cell in enumerate(play(*arguments, **options)):
            if count == 3:
                raise KeyboardInterrupt
            yield cell

    monkeypatch.setattr(report_module, "play_cells", interrupted)
    result = gradaudit(*FAST)
    assert result.exit_code == 130
    assert "interrupted" in result.stderr
    saved = json.loads((tmp_path / "gradaudit-ldp" / "result.json").read_text())
    assert saved["interrupted"] is True
    assert len(saved["cells"]) == 3


def test_help_does_not_import_jax():
    code = (
        "import sys; from typer.testing import CliRunner; "
        "from gradaudit.cli.app import app; "
        "assert CliRunner().invoke(app, ['ldp', '--help']).exit_code == 0; "
        "assert 'jax' not in sys.modules and 'numpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
