"""`gradaudit audit`: the file, the gates, and every exit code."""

import json

import pytest
from typer.testing import CliRunner

from gradaudit.audit import audit_cells as audit_cells
from gradaudit.cli.app import app
from gradaudit.report.result import AUDIT, validate

WORDS = ["audit", "--dataset", "digits", "--model", "mlp", "--type", "2"]
WORDS += ["--attack", "analytic"]
WORDS += ["--threat", "curious", "--mechanism-trials", "0", "--victims", "16"]
OPEN, LATE = ["--defense", "none"], ["--defense", "prune:at=update"]


def invoke(*words):
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert "Traceback" not in done.output, done.output
    return done


@pytest.fixture(autouse=True)
def without_a_page(monkeypatch):
    """Pages take a second each, and have tests of their own."""
    monkeypatch.setattr("gradaudit.audit.audit.page", lambda *_: "<html>")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Cells that every test of this file goes on from."""
    return tmp_path_factory.mktemp("audit") / "out"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (OPEN, 0),
        ([*OPEN, "--max-asr", "1"], 0),
        ([*OPEN, "--max-asr", "0.05"], 1),  # 16 of 16
        (["--defense", "fed-cdp", "--max-asr", "0.05"], 3),  # 0 of 16
        ([*LATE, "--min-rmse", "0.01"], 1),
        ([*LATE, "--max-epsilon", "1"], 1),
        ([*LATE, "--require-certificate"], 1),
        (["--defense", "fed-cpd"], 2),
        (["--max-asr", "7"], 2),
        (["nowhere.toml"], 2),
        (["init.toml", "two.toml"], 2),
        (["--trust"], 2),
    ],
)
def test_exit_codes(words, code, folder):
    done = invoke(*WORDS, *words, "--out", folder, "--extend")
    assert done.exit_code == code, done.output
    if code == 2:
        assert "error:" in done.stderr and done.stdout == ""
    if code == 3:
        assert "inconclusive" in done.stderr
        assert "victims with a network each" in " ".join(done.stdout.split())


def test_interrupted_is_130(folder, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setitem(audit_cells._COMMANDS, "attack", stop)
    words = [*WORDS, *OPEN, "--seed", "5", "--out", folder, "--extend"]
    done = invoke(*words)
    assert done.exit_code == 130 and "the same command goes on" in done.stderr
    document = json.loads((folder / "audit.json").read_text())
    assert document["status"] == "interrupted"
    validate(document, AUDIT)


def test_json_is_the_document_and_nothing_else(folder):
    done = invoke(*WORDS, *OPEN, "--out", folder, "--extend", "--json")
    document = json.loads(done.stdout)
    validate(document, AUDIT)
    assert document["headline"]["verdict"] == "leaks"


def test_a_file_and_what_the_command_line_changes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = invoke("audit", "init", "mine.toml")
    assert done.exit_code == 0 and "gradaudit audit mine.toml" in done.stdout
    again = invoke("audit", "init", "mine.toml")
    assert again.exit_code == 2 and "is there already" in again.stderr
    refused = invoke("audit", "init", "other.toml", "--seed", "3")
    assert refused.exit_code == 2 and "--seed has no effect" in refused.stderr
    done = invoke("audit", "mine.toml", *WORDS[1:], *OPEN, "--json", "--victims", "2")
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert [c["victims"]["asked"] for c in document["cells"]] == [2]
    assert (tmp_path / "gradaudit-audit" / "audit.json").exists()


def test_code_that_a_file_names_is_not_run_unasked(tmp_path):
    (tmp_path / "mine.py").write_text("raise SystemExit('it ran')")
    mine = tmp_path / "mine.py"
    (tmp_path / "a.toml").write_text(f"[scope]\ndefenses = ['{mine}:x']")
    done = invoke("audit", tmp_path / "a.toml", "--out", tmp_path / "out")
    assert done.exit_code == 2 and "--trust" in done.stderr
    done = invoke("audit", tmp_path / "a.toml", "--out", tmp_path / "out", "--trust")
    assert done.exit_code == 2 and "it ran" in done.stderr


def test_the_saved_audit_runs_again(folder, tmp_path):
    first = invoke(*WORDS, *OPEN, "--out", folder, "--extend", "--json")
    done = invoke("run", folder, "--out", tmp_path / "again", "--json")
    assert done.exit_code == 0, done.output
    rates = [
        [cell["verdict"] for cell in json.loads(text)["cells"]]
        for text in (first.stdout, done.stdout)
    ]
    assert rates[0] == rates[1]


def test_the_words_fit_a_narrow_terminal(folder, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    done = invoke(*WORDS, *OPEN, *LATE, "--out", folder, "--extend")
    assert done.exit_code == 0
    assert max(map(len, done.stdout.splitlines())) <= 60
    assert "safe" not in done.output.lower()
