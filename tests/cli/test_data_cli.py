"""`gradaudit data`: list, fetch and check, as a person runs them."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from gradaudit.cli.app import app
from gradaudit.data import CATALOGUE, store
from gradaudit.data.dataset import Contents, array_digest
from gradaudit.data.fetch import SOURCES, Source
from gradaudit.data.formats import READERS

ARRAYS = (np.arange(120, dtype=np.uint8).reshape(6, 5, 4), np.arange(6) % 3)
DIGESTS = store.named_arrays(Contents({"all": ARRAYS}, 3))


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("GRADAUDIT_DATA", str(tmp_path / "data"))
    source = Source(
        client=None,
        sha256="",
        megabytes=1,
        inside="",
        standard_files="",
        classes=3,
        licence="none",
        arrays={name: array_digest(array) for name, array in DIGESTS.items()},
    )
    monkeypatch.setitem(SOURCES, "tiny", source)
    np.savez(tmp_path / "tiny.npz", x=ARRAYS[0], y=ARRAYS[1])
    return tmp_path


def run(*arguments: str):
    return CliRunner().invoke(app, ["data", *arguments], env={"COLUMNS": "80"})


def test_list_names_every_dataset_and_reader_within_80_columns():
    shown = run("list").stdout
    for name in [*CATALOGUE, *(reader.name for reader in READERS)]:
        assert name in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_list_as_json_says_what_is_here():
    result = json.loads(run("list", "--json").stdout)
    here = {row["name"]: row["here"] for row in result["datasets"]}
    assert here["digits"] and not here["mnist"]
    assert set(here) == set(CATALOGUE)
    assert [row["name"] for row in result["readers"]] == [r.name for r in READERS]


def test_fetch_from_files_then_check(folder):
    done = run("fetch", "tiny", "--from", str(folder / "tiny.npz"))
    assert done.exit_code == 0, done.stderr
    assert done.stdout == ""
    assert run("check").exit_code == 0
    assert json.loads(run("check", "--json").stdout)["tiny"]["intact"]
    again = run("fetch", "tiny")
    assert again.exit_code == 0
    assert "already here" in again.stderr


def test_a_log_has_a_line_for_each_step(folder):
    lines = run("fetch", "tiny", "--from", str(folder / "tiny.npz")).stderr.splitlines()
    assert lines[0] == f"tiny: decoding {folder / 'tiny.npz'}"
    assert lines[-1].startswith("tiny: stored from")


def test_list_as_json_has_the_number_of_examples_of_each_split():
    rows = json.loads(run("list", "--json").stdout)["datasets"]
    sizes = {row["name"]: row["sizes"] for row in rows}
    assert sizes["mnist"] == {"train": 60_000, "test": 10_000, "all": 70_000}


@pytest.mark.parametrize("command", [["list"], ["check"], ["fetch", "tiny"]])
@pytest.mark.parametrize("folder_name", ["~nouser-at-all/x", "x" * 5000, "a-file/data"])
def test_a_data_folder_that_can_not_be_is_said_so(command, folder_name, folder):
    (folder / "a-file").touch()
    name = str(folder / folder_name) if "a-file" in folder_name else folder_name
    from_file = ["--from", str(folder / "tiny.npz")] if "fetch" in command else []
    found = CliRunner().invoke(
        app, ["data", *command, *from_file], env={"GRADAUDIT_DATA": name}
    )
    harmless = "a-file" in folder_name and "fetch" not in command  # nothing is there
    assert found.exit_code == (0 if harmless else 2), found.output
    if not harmless:
        assert "GRADAUDIT_DATA" in found.stderr and len(found.stderr) < 1000


def test_the_limit_is_in_the_help():
    shown = " ".join(run("--help").stdout.split())
    assert "GRADAUDIT_MAX_DATA_GIB" in shown and "GRADAUDIT_DATA" in shown


def test_check_finds_a_flipped_byte(folder):
    run("fetch", "tiny", "--from", str(folder / "tiny.npz"))
    path = folder / "data" / "tiny" / "all-inputs.npy"
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    found = run("check")
    assert found.exit_code == 2
    assert "all-inputs.npy: field 'data' has changed" in found.stdout
    assert "not intact: tiny" in found.stderr
    as_json = run("check", "--json")
    assert as_json.exit_code == 2
    assert not json.loads(as_json.stdout)["tiny"]["intact"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["fetch", "mnits"], "did you mean 'mnist'"),
        (["fetch", "photos"], "unknown dataset to fetch 'photos'"),
        (["fetch", "mnist", "adult", "--from", "."], "--from takes one set, got 2"),
        (["fetch", "tiny", "--from", "nowhere"], "no such file or folder: nowhere"),
        (["check", "mnits"], "did you mean 'mnist'"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(arguments, says):
    result = run(*arguments)
    assert result.exit_code == 2
    *steps, last = result.stderr.splitlines()
    assert last.startswith("error: ") and says in last
    assert not any(step.startswith("error") for step in steps)


def test_check_of_an_empty_folder_says_what_to_do():
    result = run("check")
    assert result.exit_code == 0
    assert "data fetch mnist" in result.stdout
