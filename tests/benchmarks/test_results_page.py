"""RESULTS.md: made from the records, and from nothing else."""

import re

import pytest

from gradaudit.benchmarks.contents import BENCHMARKS
from gradaudit.benchmarks.logbook import SHIPPED, Record, records_in
from gradaudit.benchmarks.results_page import PLACE, REMARKS, as_page, filled
from gradaudit.benchmarks.suite import Scale
from gradaudit.errors import InputError

# Names of papers and of tables may have figures in a remark; backticks quote settings.
NAMES = re.compile(r"`[^`]*`|(?:Tables?|Figures?|sections?) [\dIVX]+[ab]?|type \d")
RECORDS = list(records_in(SHIPPED))


def test_the_page_is_what_the_records_say(root):
    """No figure of it lacks its record: all of it is written from them."""
    page = root / "benchmarks" / "RESULTS.md"
    assert page.read_text(encoding="utf-8") == as_page(RECORDS)


@pytest.mark.parametrize("path", sorted(REMARKS.glob("*.md")), ids=lambda p: p.stem)
def test_a_remark_types_no_figure(path):
    assert path.stem in BENCHMARKS
    text = PLACE.sub("", path.read_text(encoding="utf-8"))
    assert not re.findall(r"\d", NAMES.sub("", text))


@pytest.mark.parametrize(
    "record", RECORDS, ids=lambda r: "-".join(r.path.with_suffix("").parts[-2:])
)
def test_records_say_how_they_came_about(record):
    content = record.content
    assert content["command"].startswith("gradaudit bench run ")
    for cell in content["cells"].values():
        assert cell["finished"] and cell["fingerprint"] and "measured" in cell
        assert content["environments"][cell["environment"]]["packages"]["jax"]
    scale = content["scale"]
    assert (REMARKS / f"{content['benchmark']}.md").exists(), f"{scale}: no remark"


@pytest.mark.parametrize(
    "record", RECORDS, ids=lambda r: "-".join(r.path.with_suffix("").parts[-2:])
)
def test_a_record_is_of_the_cells_that_are_defined_today(record):
    """The differences that are printed with it would be wrong otherwise."""
    benchmark = BENCHMARKS[record.content["benchmark"]]
    cells = benchmark.cells(Scale(record.content["scale"]), record.content["seed"])
    today = {cell.name: cell.fingerprint for cell in cells}
    kept = {n: c["fingerprint"] for n, c in record.content["cells"].items()}
    assert kept.items() <= today.items()


def test_a_page_says_which_cells_were_not_run(tmp_path):
    (whole,) = (r for r in RECORDS if r.content["benchmark"] == "dpfl-cost")
    first, second = whole.content["cells"]
    part = whole.content | {"cells": {first: whole.content["cells"][first]}}
    page = as_page([Record(tmp_path / "x.json", part)])
    assert f"Not run: 1 of 2 cells ({second})." in page


def test_a_place_that_nobody_measured_is_an_error():
    with pytest.raises(InputError, match="not measured"):
        filled("{clients/small: no such cell | accuracy}", {})


def test_places_are_filled_from_the_record(tmp_path):
    content = {"cells": {"a": {"measured": {"b": [0.25]}}}}
    record = Record(tmp_path / "x.json", content)
    text = filled("{ldp/small: a | b.0 | 2} of it", {("ldp", "small"): record})
    assert text == "0.25 of it"
