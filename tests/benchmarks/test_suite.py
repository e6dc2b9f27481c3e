"""The suite: every benchmark runs, cells are kept, and nothing is measured twice."""

import dataclasses
import json
import pickle
import re

import pytest

from gradaudit import defenses
from gradaudit.attacks import presets
from gradaudit.benchmarks.adversaries import measure_trained
from gradaudit.benchmarks.contents import BENCHMARKS, chosen
from gradaudit.benchmarks.logbook import Record, records_in
from gradaudit.benchmarks.running import estimate, run_benchmark, selected
from gradaudit.benchmarks.suite import (
    Benchmark,
    Cell,
    Context,
    Entry,
    Missing,
    Scale,
    Table,
    run_cell,
)
from gradaudit.data import CATALOGUE
from gradaudit.errors import InputError

# Cells with times only, which no two runs share.
TIMED = {"cost", "dpfl-cost", "speed"}
EVERY = [
    pytest.param(each, scale, id=f"{each.name}-{scale.value}")
    for each in BENCHMARKS.values()
    for scale in Scale
]


# One more training under another clip: `clipping` runs the same kind of cell.
ALIKE = {"adaptive-clipping"}


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    """The benchmarks at the smallest scale, in one folder."""
    folder = tmp_path_factory.mktemp("smoke")
    return folder, {
        name: run_benchmark(each, Scale.SMOKE, 0, folder)
        for name, each in BENCHMARKS.items()
        if name not in ALIKE
    }


def test_every_paper_is_there():
    """The papers' tables, and what is only ours: speed, peers, adversaries."""
    assert len(BENCHMARKS) == 21
    ours = {n for n, b in BENCHMARKS.items() if b.published == "nothing published"}
    assert ours == {"speed", "peers", "adversaries"}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name in ALIKE))
        for name in BENCHMARKS
        if name != "peers"
    ],
)
def test_every_benchmark_runs_and_shows_what_it_measured(smoke, name, tmp_path):
    """`peers` installs packages, so it has nothing this small."""
    _, records = smoke
    record = (
        run_benchmark(BENCHMARKS[name], Scale.SMOKE, 0, tmp_path)
        if name in ALIKE
        else records[name]
    )
    assert record.measured and not record.missing
    tables = BENCHMARKS[name].tables(record.measured, Scale.SMOKE)
    shown = [
        entry.measured
        for table in tables
        for row in table.rows
        for entry in row
        if isinstance(entry, Entry)
    ]
    assert any(re.search(r"\d", text) for text in shown)
    for table in tables:
        assert {len(row) for row in table.rows} <= {len(table.columns)}


def test_a_cell_that_others_need_is_run_once(smoke):
    _, records = smoke
    kept = records["noise-scale"].content["cells"]["cancer, fed-cdp"]
    assert kept["shared_with"] == "clients/smoke"


def test_a_second_run_measures_nothing(smoke, monkeypatch):
    folder, records = smoke
    monkeypatch.setattr("gradaudit.benchmarks.running.run_cell", pytest.fail)
    again = run_benchmark(BENCHMARKS["clients"], Scale.SMOKE, 0, folder)
    assert again.content == records["clients"].content


def test_two_runs_with_the_same_seed_agree(smoke, tmp_path):
    _, records = smoke
    for name in ("clients", "attacks"):
        again = run_benchmark(BENCHMARKS[name], Scale.SMOKE, 0, tmp_path)
        assert untimed(again.measured) == untimed(records[name].measured)


def untimed(measured):
    return {
        name: {key: value for key, value in cell.items() if key != "timing"}
        for name, cell in measured.items()
    }


def test_records_are_read_as_they_were_written(smoke):
    folder, records = smoke
    read = {record.content["benchmark"]: record for record in records_in(folder)}
    assert {n: r.content for n, r in read.items()} == {
        name: json.loads(json.dumps(record.content))
        for name, record in records.items()
        if record.path.exists()
    }


@pytest.mark.parametrize(("benchmark", "scale"), EVERY)
def test_cells_are_plain_data_that_can_be_sent(benchmark, scale):
    cells = benchmark.cells(scale, 0)
    names = [cell.name for cell in cells]
    assert len(set(names)) == len(names)
    for cell in cells:
        assert json.loads(json.dumps(cell.arguments)) == cell.arguments
        assert pickle.loads(pickle.dumps(cell)) == cell
        assert set(cell.datasets) <= set(CATALOGUE)
        text = cell.arguments.get("defense")
        if isinstance(text, str):
            defenses.parse(text)
        if cell.measure.__name__ == "measure_attack":
            presets.parse(cell.arguments["method"])
    if cells and benchmark.name not in TIMED | {"accounting"}:
        other = {cell.fingerprint for cell in benchmark.cells(scale, 1)}
        assert {cell.fingerprint for cell in cells} != other


@pytest.mark.parametrize(("benchmark", "scale"), EVERY)
def test_tables_need_no_measurement(benchmark, scale):
    """What was not run is a dash, with the published figure beside it."""
    for table in benchmark.tables({}, scale):
        assert {len(row) for row in table.rows} <= {len(table.columns)}
    assert all(isinstance(line, str) for line in benchmark.differences(scale))


# --- the loop, on cells that cost nothing

CALLS: list[int] = []


def measure_number(context, *, value, stops=False, lacks=False):
    CALLS.append(value)
    if stops:
        raise KeyboardInterrupt
    if lacks:
        raise Missing("the number is not here")
    context.tell("counting", 1, 1)
    return {"value": value, "timing": {"seconds_per_unit": 0.5}}


def numbers(*cells):
    def table(measured, scale):
        return [Table("numbers", ["name"], [[name] for name in measured])]

    return Benchmark("numbers", "", "", lambda s, k: list(cells), table, lambda s: [])


def count(value, **more):
    return Cell(f"number {value}", measure_number, {"value": value, **more})


@pytest.fixture(autouse=True)
def calls():
    CALLS.clear()
    return CALLS


def test_an_interrupt_keeps_what_is_finished_and_a_rerun_goes_on(tmp_path, calls):
    begun = numbers(count(1), count(2), count(3, stops=True), count(4))
    with pytest.raises(KeyboardInterrupt):
        run_benchmark(begun, Scale.SMALL, 0, tmp_path)
    (record,) = records_in(tmp_path)
    assert list(record.measured) == ["number 1", "number 2"]
    calls.clear()
    whole = numbers(*(count(value) for value in (1, 2, 3, 4)))
    record = run_benchmark(whole, Scale.SMALL, 0, tmp_path)
    assert calls == [3, 4]
    assert [cell["value"] for cell in record.measured.values()] == [1, 2, 3, 4]


def test_what_changed_is_measured_anew_and_what_is_gone_is_dropped(tmp_path, calls):
    run_benchmark(numbers(count(1), count(2)), Scale.SMALL, 0, tmp_path)
    changed = dataclasses.replace(count(3), name="number 1")
    record = run_benchmark(numbers(changed), Scale.SMALL, 0, tmp_path)
    assert calls == [1, 2, 3] and list(record.measured) == ["number 1"]


def test_a_figure_of_other_arguments_does_not_stay(tmp_path):
    run_benchmark(numbers(count(1), count(2)), Scale.SMALL, 0, tmp_path)
    changed = dataclasses.replace(count(3), name="number 1")
    only = ["number 2"]
    record = run_benchmark(
        numbers(changed, count(2)), Scale.SMALL, 0, tmp_path, only=only
    )
    assert list(record.measured) == ["number 2"]


def test_something_missing_is_a_line_and_the_others_run(tmp_path):
    said: list[str] = []
    benchmark = numbers(
        dataclasses.replace(count(1), modules=("no_such_module",)),
        count(2, lacks=True),
        count(3),
    )
    record = run_benchmark(benchmark, Scale.SMALL, 0, tmp_path, say=said.append)
    assert list(record.measured) == ["number 3"]
    assert list(record.missing) == ["number 1", "number 2"]
    assert len(said) == 2 and "no_such_module is not installed" in said[0]


def test_a_data_set_that_is_not_here_is_a_line(tmp_path, monkeypatch):
    monkeypatch.setenv("GRADAUDIT_DATA", str(tmp_path / "nothing"))
    monkeypatch.setattr("gradaudit.benchmarks.running.run_cell", pytest.fail)
    benchmark = BENCHMARKS["dpfl-federated"]
    record = run_benchmark(benchmark, Scale.SMALL, 0, tmp_path)
    sets = ("mnist", "fashion-mnist", "cifar10")
    lines = {f"{each} is not here: gradaudit data fetch {each}" for each in sets}
    assert set(record.missing.values()) == lines
    assert not selected(benchmark, Scale.SMALL, 0)


def test_another_seed_does_not_mix_with_what_is_there(tmp_path):
    run_benchmark(numbers(count(1)), Scale.SMALL, 0, tmp_path)
    with pytest.raises(InputError, match="seed 0"):
        run_benchmark(numbers(count(1)), Scale.SMALL, 1, tmp_path)
    run_benchmark(numbers(count(1)), Scale.SMALL, 1, tmp_path, overwrite=True)


def test_only_some_cells(tmp_path, calls):
    benchmark = numbers(count(1), count(2))
    run_benchmark(benchmark, Scale.SMALL, 0, tmp_path, only=["2"])
    assert calls == [2]
    exact = numbers(count(1), count(11))
    run_benchmark(exact, Scale.SMOKE, 0, tmp_path, only=["number 1"])
    assert calls == [2, 1]
    record = run_benchmark(benchmark, Scale.SMALL, 0, tmp_path)
    assert list(record.measured) == ["number 1", "number 2"]
    with pytest.raises(InputError, match="number 1"):
        run_benchmark(benchmark, Scale.SMALL, 0, tmp_path, only=["seven"])


def test_an_estimate_is_measured_on_a_sample(calls):
    sampled = dataclasses.replace(count(9), kind="k", units=4, sample={"value": 1})
    other = dataclasses.replace(sampled, name="dear", units=10, sample={"value": 2})
    seconds, uncounted = estimate([sampled, other, count(5)])
    assert calls == [1] and seconds == 0.5 * 14 and uncounted == ["number 5"]


def test_a_record_that_is_none_is_refused_in_words(tmp_path):
    path = tmp_path / "clients" / "small.json"
    path.parent.mkdir()
    path.write_text("[]")
    with pytest.raises(InputError, match="no record"):
        Record.read(path)


def test_names_are_looked_up_in_order():
    assert [each.name for each in chosen(["clients", "accounting"])] == [
        "accounting",
        "clients",
    ]
    assert len(chosen(["all"])) == len(BENCHMARKS)
    with pytest.raises(InputError, match="did you mean 'clients'"):
        chosen(["client"])


def test_a_cell_measures_by_itself():
    assert run_cell(count(3), _context())["value"] == 3


def _context():
    from gradaudit.benchmarks.suite import Context

    return Context()


def test_a_trained_network_is_attacked_in_its_last_round_and_by_its_parameters():
    setting = {"clients": 4, "clients_per_round": 4, "local_steps": 2, "rounds": 2}
    cheap = {"method": "cpl", "iterations": 2, "victims": 2}
    found = measure_trained(
        Context(),
        dataset="digits",
        model="dpfl-2conv",
        setting=setting | {"batch_size": 2, "examples": 20},
        attacks={
            "in the round": {"type": 2, **cheap},
            "one step": {"type": 1, "batch_size": 1, **cheap},
        },
        seed=0,
    )
    assert 0 <= found["accuracy"] <= 1
    assert {each["victims"] for each in found["attacks"].values()} == {2}


def test_a_training_that_diverged_sets_no_target():
    target = BENCHMARKS["target-accuracy"]
    cells = [cell.name for cell in target.cells(Scale.SMALL, 0)]
    one = {"accuracy": 0.5, "stopped": ["rounds"], "curve": [[1, 0.5]]}
    measured = dict.fromkeys(cells, one)
    measured["adult, fed-sdp"] = one | {"accuracy": 0.0, "stopped": ["diverged"]}
    rows = {str(row[0]): row for row in target.tables(measured, Scale.SMALL)[0].rows}
    assert [str(place) for place in rows["cancer"][1:3]] == ["0.500 (0.979)", "1 (1)"]
    lost = [place.measured for place in rows["adult"][1:]]
    assert lost == ["diverged", "–", "–"]
