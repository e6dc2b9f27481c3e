"""The papers' figures as data: every row is as long as its columns."""

import json

import pytest

from gradaudit.benchmarks.papers import FOLDER, accounting_rows, published
from gradaudit.errors import InputError

TABLES = [
    pytest.param(table, id=f"{path.stem}, {name}")
    for path in sorted(FOLDER.glob("*.json"))
    for name, table in json.loads(path.read_text()).items()
    if isinstance(table, dict) and "columns" in table
]


def rows_of(value):
    """Yields every list of figures inside a table."""
    if isinstance(value, dict):
        for entry in value.values():
            yield from rows_of(entry)
    elif isinstance(value, list):
        yield value


@pytest.mark.parametrize("table", TABLES)
def test_every_row_has_a_figure_for_each_column(table):
    rows = list(rows_of(table.get("rows", {})))
    assert rows or "accuracy" in table
    assert {len(row) for row in rows} <= {len(table["columns"])}


def test_accuracies_and_rates_lie_between_zero_and_one():
    for paper, name in (("fed-alpha-cdp", "Table 5"), ("dynamic-dp", "Table IV")):
        for row in rows_of(published(paper, name)["rows"]):
            assert all(0 <= value <= 1 for value in row)


def test_two_papers_print_the_same_default_column():
    """Wei et al. 2023 repeats the figures of Wei et al. 2021."""
    newer = published("fed-alpha-cdp", "Table 4")["rows"]
    older = published("fed-cdp", "Table II")["rows"]
    for method in ("none", "fed-sdp", "fed-cdp"):
        assert newer[method] == older[method]


def test_unknown_tables_are_refused_in_words():
    with pytest.raises(InputError, match="did you mean 'Table 5'"):
        published("fed-alpha-cdp", "Table 50")
    with pytest.raises(InputError, match="unknown paper"):
        published("nobody", "Table 1")


def test_printed_epsilons_have_their_setting():
    rows = accounting_rows()
    assert len(rows) == 130
    assert all(float(row["published_eps"]) > 0 for row in rows)
