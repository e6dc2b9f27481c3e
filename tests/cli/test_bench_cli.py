"""`gradaudit bench`: list, run, show."""

import json

import pytest
from typer.testing import CliRunner

from gradaudit.benchmarks.contents import BENCHMARKS
from gradaudit.cli.app import app


@pytest.fixture
def bench(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")

    def run(*words):
        return CliRunner().invoke(app, ["bench", *words])

    return run


def test_list_names_every_benchmark(bench):
    listed = json.loads(bench("list", "--json").stdout)
    assert [row["name"] for row in listed] == list(BENCHMARKS)
    shown = bench("list").stdout
    assert all(name in shown for name in BENCHMARKS)


def test_run_writes_a_record_and_show_prints_it(bench, tmp_path):
    done = bench("run", "accounting", "--scale", "smoke")
    assert done.exit_code == 0, done.output
    assert "123.354" in done.stdout and "0.601" in done.stdout
    path = tmp_path / "gradaudit-bench" / "accounting" / "smoke.json"
    record = json.loads(path.read_text())
    assert record["command"] == "gradaudit bench run accounting --scale smoke"
    again = bench("show", "accounting", "--page", "page.md")
    assert again.stdout == done.stdout
    assert "123.354" in (tmp_path / "page.md").read_text()
    printed = json.loads(bench("show", "accounting", "--json").stdout)
    assert printed[0]["cells"] == record["cells"]


def test_a_dry_run_lists_the_cells_and_measures_none_of_them(bench, tmp_path):
    done = bench("run", "accounting", "--scale", "smoke", "--dry-run")
    assert done.exit_code == 0
    assert "002 Table V, BaseC, 10000 steps" in done.stdout
    assert "6 cells are left" in done.stderr
    assert not list(tmp_path.iterdir())


def test_an_interrupt_says_where_the_finished_cells_are(bench, tmp_path, monkeypatch):
    measured = []

    def stop_at_the_third(cell, context):
        measured.append(cell.name)
        if len(measured) == 3:
            raise KeyboardInterrupt
        return {"clean": 1.0, "paper": 1.0, "tight": 1.0}

    monkeypatch.setattr("gradaudit.benchmarks.running.run_cell", stop_at_the_third)
    done = bench("run", "accounting", "--scale", "smoke")
    assert done.exit_code == 130
    assert "the same command goes on from there" in " ".join(done.stderr.split())
    path = tmp_path / "gradaudit-bench" / "accounting" / "smoke.json"
    assert list(json.loads(path.read_text())["cells"]) == measured[:2]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("run", "accountin"), "did you mean 'accounting'"),
        (("run", "accounting", "--scale", "huge"), "unknown scale 'huge'"),
        (("run", "accounting", "--only", "nothing like it"), "cell's name"),
        (("run", "accounting", "--seed", "-1"), "seed must lie"),
        (("show", "accounting", "--from", "nowhere"), "no folder nowhere"),
        (("show", "--from", "."), "no record"),
    ],
)
def test_mistakes_are_refused_in_words(bench, words, said):
    done = bench(*words)
    assert done.exit_code == 2 and done.stdout == ""
    assert said in " ".join(done.stderr.split())
