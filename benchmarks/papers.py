"""The papers' printed figures: JSON files in `published/`, a table at a time."""

import csv
import functools
import json
import pathlib
from typing import Any

from gradaudit.errors import unknown_name

FOLDER = pathlib.Path(__file__).parent / "published"


@functools.cache
def _paper(name: str) -> dict[str, Any]:
    path = FOLDER / f"{name}.json"
    if not path.exists():
        raise unknown_name("paper", name, (p.stem for p in FOLDER.glob("*.json")))
    paper: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return paper


def published(paper: str, table: str) -> dict[str, Any]:
    """Returns one table or figure: `published("fed-cdp", "Table II")`."""
    tables = _paper(paper)
    if table not in tables:
        raise unknown_name(f"table of {paper}", table, tables)
    found: dict[str, Any] = tables[table]
    return found


def accounting_rows() -> list[dict[str, str]]:
    """Returns every printed epsilon with its noise, rate and steps."""
    rows = []
    for name in ("accounting.csv", "accounting_more.csv"):
        with (FOLDER / name).open(newline="") as file:
            rows += list(csv.DictReader(file))
    return rows
