"""Finished victims are kept: an attack that was ended goes on to the same numbers."""

import csv
import dataclasses
import itertools
import json
import os
import shutil

import numpy as np
import pytest
from typer.testing import CliRunner

import gradaudit as ga
from gradaudit import files
from gradaudit.attacks import Attack, base, lanes
from gradaudit.audit import resume
from gradaudit.cli.app import app
from gradaudit.errors import InputError
from gradaudit.types import Reconstruction, Status

SMALL = {"dataset": "digits", "model": "dpfl-2conv", "iterations": 4, "victims": 8}
SMALL |= {"draws": 2, "slots": 2, "method": "cpl:stop=paper"}  # all run to the end


def rows(result):
    return [dataclasses.astuple(score) for score in result.scores]


@pytest.fixture(scope="module")
def undisturbed():
    return ga.attack(**SMALL)


class Killed(BaseException):
    """Stands for kill -9: nothing catches it."""


def kill(monkeypatch, call):
    original, calls = lanes.advance, itertools.count(1)

    def advance(*arguments):
        if next(calls) == call:
            raise Killed
        return original(*arguments)

    monkeypatch.setattr(lanes, "advance", advance)


def attacked(monkeypatch):
    """Counts the calls of the compiled program."""
    original, calls = lanes.advance, []

    def advance(*arguments):
        calls.append(arguments)
        return original(*arguments)

    monkeypatch.setattr(lanes, "advance", advance)
    return calls


@pytest.mark.parametrize("call", [1, 4, 6])
def test_a_killed_attack_goes_on_to_the_same_numbers(
    tmp_path, monkeypatch, call, undisturbed
):
    with monkeypatch.context() as killing:
        kill(killing, call)
        with pytest.raises(Killed):
            ga.attack(**SMALL, keep=tmp_path)
    done = len((tmp_path / resume.VICTIMS).read_text().splitlines()) - 1
    with monkeypatch.context() as counting:
        calls = attacked(counting)
        again = ga.attack(**SMALL, keep=tmp_path)
    assert rows(again) == rows(undisturbed)
    np.testing.assert_array_equal(again.inputs, undisturbed.inputs)
    for one, other in zip(again.traces, undisturbed.traces, strict=True):
        assert one.rmse == other.rmse and one.objective == other.objective
        assert one.oracle == other.oracle and list(one.frames) == list(other.frames)
    assert again.pictured == undisturbed.pictured
    assert not again.interrupted and again.missing == []
    per_pair = 2  # calls that two victims take at this budget, or they are found before
    assert 0 < len(calls) <= per_pair * (4 - done // 2)


def test_ctrl_c_keeps_the_finished_and_runs_the_cut_ones_again(
    tmp_path, monkeypatch, undisturbed
):
    original, calls = lanes.advance, itertools.count(1)

    def advance(*arguments):
        made = original(*arguments)
        if next(calls) == 4:
            raise KeyboardInterrupt
        return made

    with monkeypatch.context() as pressing:
        pressing.setattr(lanes, "advance", advance)
        cut = ga.attack(**SMALL, keep=tmp_path)
    assert cut.interrupted and cut.missing
    kept_now = len((tmp_path / resume.VICTIMS).read_text().splitlines()) - 1
    assert 0 < kept_now < 8
    again = ga.attack(**SMALL, keep=tmp_path)
    assert rows(again) == rows(undisturbed) and not again.interrupted


@pytest.fixture(scope="module")
def finished_once(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    ga.attack(**SMALL, keep=folder).save(folder)
    return folder


@pytest.fixture
def finished(finished_once, tmp_path):
    return shutil.copytree(finished_once, tmp_path / "finished")


def test_a_finished_attack_is_not_run_again(finished, monkeypatch, undisturbed):
    first = json.loads((finished / "result.json").read_text())
    calls = attacked(monkeypatch)
    again = ga.attack(**SMALL, keep=finished)
    assert calls == [] and rows(again) == rows(undisturbed)
    # What it took is what it took, not the time of reading it.
    assert again.timing["total_s"] >= 0.9 * first["timing"]["total_s"] - 0.5
    anew = ga.attack(**SMALL, keep=finished, overwrite=True)
    assert calls and rows(anew) == rows(undisturbed)


@pytest.mark.parametrize("change", [{"seed": 1}, {"victims": 9}, {"iterations": 5}])
def test_another_attack_is_refused_in_words(finished, change):
    before = {p: p.read_bytes() for p in finished.rglob("*") if p.is_file()}
    with pytest.raises(InputError, match="holds another attack.*--overwrite"):
        ga.attack(**SMALL | change, keep=finished)
    assert {p: p.read_bytes() for p in finished.rglob("*") if p.is_file()} == before


def test_the_result_of_another_command_is_refused(tmp_path):
    files.write_json(tmp_path / "result.json", {"schema_version": 2})
    with pytest.raises(InputError, match="holds another run.*--overwrite"):
        ga.attack(**SMALL, keep=tmp_path)
    ga.attack(**SMALL, keep=tmp_path, overwrite=True)
    assert not (tmp_path / "result.json").exists()  # nothing of the other is left


def test_damaged_records_run_again_and_torn_ends_are_cut(finished, undisturbed):
    path = finished / resume.VICTIMS
    lines = path.read_bytes().splitlines(keepends=True)
    damaged = lines[2].replace(b'"arrays": "', b'"arrays": "AAAA')
    path.write_bytes(lines[0] + lines[1] + damaged + b"no json\n" + lines[4][:-20])
    again = ga.attack(**SMALL, keep=finished)
    assert rows(again) == rows(undisturbed)
    assert all(line.endswith("}") for line in path.read_text().splitlines()[4:])


def test_an_edited_data_file_is_another_attack(tmp_path):
    data = tmp_path / "mine.csv"
    text = "".join(f"{i % 2},{i / 40},{(i * 7 % 40) / 40}\n" for i in range(40))
    data.write_text(text)
    wanted = {"dataset": str(data), "method": "analytic", "victims": 2, "draws": 1}
    ga.attack(**wanted, keep=tmp_path / "out")
    data.write_text(text.replace(",0.5,", ",0.25,", 1))
    with pytest.raises(InputError, match="holds another attack"):
        ga.attack(**wanted, keep=tmp_path / "out")


@dataclasses.dataclass(frozen=True)
class OneByOne(Attack):
    """Has no problem for the loop: victims come one by one."""

    def reconstruct(self, key, model, observation):
        return Reconstruction(
            inputs=np.full((1, *model.input_shape), 0.5, np.float32),
            labels=np.zeros(1, np.int32),
            objective=np.float32(1.0),
            iterations=np.int32(0),
            evaluations=np.int32(0),
            status=np.int32(Status.CONVERGED),
        )


def test_what_is_not_plain_data_is_not_kept(tmp_path):
    wanted = {"dataset": "digits", "model": "dpfl-2conv", "victims": 2}
    with pytest.raises(InputError, match="method is not plain data"):
        ga.attack(method=OneByOne(), **wanted, keep=tmp_path)
    assert len(ga.attack(method=OneByOne(), **wanted).scores) == 2


def test_victims_that_come_one_by_one_are_told_as_they_finish(monkeypatch):
    original, calls = OneByOne.reconstruct, itertools.count(1)

    def reconstruct(*arguments):
        if next(calls) == 3:
            raise KeyboardInterrupt
        return original(*arguments)

    monkeypatch.setattr(OneByOne, "reconstruct", reconstruct)
    wanted = {"dataset": "digits", "model": "dpfl-2conv", "victims": 4, "draws": 1}
    result = ga.attack(method=OneByOne(), **wanted)
    assert result.interrupted and result.missing == [2, 3]


def test_an_attack_brings_no_loop_of_its_own():
    class Thief(OneByOne):
        def reconstruct_many(self, key, model, victims, slots=None, watcher=None):
            raise AssertionError("it was handed the victims")

    with pytest.raises(InputError, match="the loop over the victims is not its own"):
        ga.attack(method=Thief(), dataset="digits", model="dpfl-2conv", victims=2)
    assert base.Attack.reconstruct_many.__final__


def command(folder, *more):
    words = ["--dataset", "digits", "--model", "dpfl-2conv", "--iterations", "4"]
    words += ["--victims", "4", "--out", str(folder)]
    return CliRunner().invoke(app, ["attack", *words, *more])


def test_the_command_goes_on_refuses_and_overwrites(tmp_path):
    first = command(tmp_path / "a")
    assert first.exit_code == 0, first.output
    table = (tmp_path / "a" / "trials.csv").read_text()
    again = command(tmp_path / "a")
    assert again.exit_code == 0, again.output
    assert (tmp_path / "a" / "trials.csv").read_text() == table
    other = command(tmp_path / "a", "--seed", "3")
    assert other.exit_code == 2 and "--overwrite" in other.stderr
    anew = command(tmp_path / "a", "--seed", "3", "--overwrite")
    assert anew.exit_code == 0, anew.output
    with (tmp_path / "a" / "trials.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 4
    assert (tmp_path / "a" / "trials.csv").read_text() != table
    report = json.loads((tmp_path / "a" / "result.json").read_text())
    assert report["spec"]["arguments"]["seed"] == 3


# A fork of jax is refused in general; this one only takes a lock.
@pytest.mark.filterwarnings("ignore:.*fork")
def test_one_run_per_folder(tmp_path):
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        with files.one_run_in(tmp_path):
            os.write(writer, b".")
            os.read(os.pipe()[0], 1)  # until it is killed
    os.read(reader, 1)
    with (
        pytest.raises(InputError, match=f"another run .process {child}."),
        files.one_run_in(tmp_path),
    ):
        pass
    os.kill(child, 9)
    os.waitpid(child, 0)
    with files.one_run_in(tmp_path), files.one_run_in(tmp_path):  # its lock is no more
        assert (tmp_path / files.LOCK).read_text() == f"{os.getpid()}\n"
    assert not (tmp_path / files.LOCK).exists()
