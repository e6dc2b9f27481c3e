"""RESULTS.md: every record as tables, with the remarks on them.

A remark is a paragraph in `remarks/`. Its figures are places that the records fill:
`{clients/small: mnist, fed-cdp | accuracy}`; nothing is typed twice.
"""

import dataclasses
import pathlib
import re
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

from gradaudit.benchmarks.contents import BENCHMARKS
from gradaudit.benchmarks.logbook import Record, environment_in_words
from gradaudit.benchmarks.suite import Entry, Row, Scale, Table, number
from gradaudit.errors import InputError

REMARKS = pathlib.Path(__file__).parent / "remarks"
PLACE = re.compile(
    r"\{([\w-]+)/(\w+):\s*([^|{}]+?)\s*\|\s*([^{}|]+?)(?:\s*\|\s*(\d))?\}"
)
_SHOWN = 6  # names of cells that were not run
_HEAD = """# Results
Published beside measured: `measured (published)`. Written by
`gradaudit bench show --from benchmarks/results --page benchmarks/RESULTS.md` from the
records in `results/`; no figure here is typed by hand.
"""


def as_page(records: Iterable[Record], remarks: bool = True) -> str:
    """Returns the page of these records, benchmark after benchmark.

    `remarks` are on the project's own measurements: elsewhere they would be wrong.
    """
    by_name: dict[str, dict[Scale, Record]] = {}
    for record in records:
        own = by_name.setdefault(record.content["benchmark"], {})
        own[Scale(record.content["scale"])] = record
    known = {
        (name, scale.value): record
        for name, scales in by_name.items()
        for scale, record in scales.items()
    }
    parts = [_HEAD]
    for name in BENCHMARKS:
        if name in by_name:
            parts.append(_section(name, by_name[name], known, remarks))
    return "\n".join(parts)


def _section(
    name: str,
    records: Mapping[Scale, Record],
    known: Mapping[tuple[str, str], Record],
    remarks: bool,
) -> str:
    benchmark = BENCHMARKS[name]
    lines = [f"## {name}: {benchmark.title}", f"{benchmark.published}.", ""]
    remark = REMARKS / f"{name}.md"
    if remarks and remark.exists():
        text = filled(remark.read_text(encoding="utf-8"), known)
        for paragraph in text.strip().split("\n\n"):
            lines += [*textwrap.wrap(paragraph, 90, break_on_hyphens=False), ""]
    for scale in Scale:
        if scale in records:
            lines += _record(records[scale], scale)
    return "\n".join(lines)


def _record(record: Record, scale: Scale) -> list[str]:
    benchmark = BENCHMARKS[record.content["benchmark"]]
    cells = record.content["cells"].values()
    seconds = sum(cell["seconds"] for cell in cells if "shared_with" not in cell)
    where = [environment_in_words(each) for each in record.content["environments"]]
    about = list(dict.fromkeys(where))
    lines = [
        f"### {benchmark.name}, {scale.value}",
        f"`{record.content['command']}`, {record.dates()}, {len(cells)} cells, "
        f"{seconds / 60:.1f} minutes; {'; '.join(about)}.",
        "",
    ]
    for table in benchmark.tables(record.measured, scale):
        rows = [row for row in table.rows if _has_figure(row)]
        if rows:
            table = dataclasses.replace(table, rows=rows)
            lines += [f"**{table.title}**", "", *_markdown(table), ""]
    said = benchmark.differences(scale)
    if said:
        lines += ["Setting differences:", *(f"- {line}" for line in said), ""]
    for name, why in record.missing.items():
        lines += [f"Left out: {name} ({why}).", ""]
    asked = benchmark.cells(scale, record.content["seed"])
    names = [cell.name for cell in asked if cell.name not in record.content["cells"]]
    rest = [name for name in names if name not in record.missing]
    if rest:
        shown = "; ".join(rest[:_SHOWN]) + ("; …" if len(rest) > _SHOWN else "")
        lines += [f"Not run: {len(rest)} of {len(asked)} cells ({shown}).", ""]
    return lines


def _has_figure(row: Row) -> bool:
    """Whether anything of a row was measured, or it has only words."""
    entries = [entry for entry in row if isinstance(entry, Entry)]
    return not entries or any(not str(each).startswith("–") for each in entries)


def _markdown(table: Table) -> list[str]:
    """Returns a table's lines, without columns that have no figure."""
    rows = [[str(entry) for entry in row] for row in table.rows]
    kept = [
        index
        for index in range(len(table.columns))
        if any(not row[index].startswith("–") for row in rows)
    ]

    def line(entries: Iterable[str]) -> str:
        return "| " + " | ".join(text.replace("|", "/") for text in entries) + " |"

    return [
        line(table.columns[index] for index in kept),
        line("---" for _ in kept),
        *(line(row[index] for index in kept) for row in rows),
    ]


def filled(text: str, known: Mapping[tuple[str, str], Record]) -> str:
    """Returns a remark with its places filled from the records."""

    def value(match: re.Match[str]) -> str:
        name, scale, cell, path, digits = match.groups()
        record = known.get((name, scale))
        if record is None or cell not in record.measured:
            raise InputError(f"a remark names {match[0]}, which was not measured")
        found: Any = record.measured[cell]
        for key in path.split("."):
            found = found[int(key)] if isinstance(found, list) else found[key]
        return number(found, int(digits or 3))

    return PLACE.sub(value, text)
