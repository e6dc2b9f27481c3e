"""report.html: one file that shows an audit, or one run, and needs nothing else.

No script, no font, no picture from elsewhere: the page's own policy forbids them.
Everything that comes from outside (names, errors, paths) is escaped by the template.
"""

import functools
import importlib.resources
import json
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from gradaudit import __version__
from gradaudit.data import CATALOGUE
from gradaudit.errors import InputError
from gradaudit.report import figures
from gradaudit.report.drawing import size, svg, visible
from gradaudit.report.pictures import films, strip, strips_of
from gradaudit.report.result import Result, Saved, kind_of
from gradaudit.report.verdict import (
    CERTIFIED,
    FAILED,
    LEAKS,
    MISSING,
    PLACES,
    UNSHOWN,
    in_words,
    places,
    verdict_of,
)

Plain = dict[str, Any]

PAGE = "report.html"
_CSS = {
    LEAKS: "leaks",
    UNSHOWN: "unshown",
    CERTIFIED: "certified",
    FAILED: "unknown",
    MISSING: "unknown",
}
_SIGNS = {LEAKS: "▲", UNSHOWN: "◐", CERTIFIED: "●", FAILED: "■", MISSING: "□"}
_GATES = {"held": "certified", "broken": "leaks", "unclear": "unshown"}
_SECTIONS = (
    ("verdict", "Verdict"),
    ("gates", "Gates"),
    ("grid", "Grid"),
    ("pictures", "Pictures"),
    ("figures", "Figures"),
    ("epsilon-table", "Epsilon"),
    ("threats", "Who attacks"),
    ("cells", "Cells"),
    ("limitations", "Limitations"),
    ("repeat", "Repeat"),
)
# By command: what kind of cell it would be; there is no verdict on the others.
_JUDGED = {
    "attack": "attack",
    "attack-gate": "attack",
    "attack-captured": "attack",
    "line-up": "line-up",
}
_FIGURES: tuple[tuple[str, str, Callable[[Result], Any]], ...] = (
    ("resilience", "Rebuilt, at every threshold", figures.resilience),
    ("line-up", "Measured against certified", figures.line_up),
    ("epsilon", "Epsilon: claimed, accounted, effective", figures.epsilon),
    ("frontier", "Accuracy against leakage", figures.frontier),
    ("norms", "Gradient norms before and after", figures.norms),
)


def page(
    document: Plain, folder: pathlib.Path, include_reconstructions: bool = False
) -> str:
    """Returns the page of an audit.json or a result.json.

    Args:
      document: valid by its schema.
      folder: where its cells and arrays are; what is not there is left out.
      include_reconstructions: show pictures of data that is no public set.
    """
    saved = Saved(document, folder)
    told = _audit if saved.is_audit else _result
    values = {
        "version": __version__,
        "css": _CSS,
        "signs": _SIGNS,
        "gate_css": _GATES,
        "spec": _spec(document),
        "seed": document["spec"]["arguments"].get("seed", 0),
        **told(saved, include_reconstructions),
    }
    name = "audit.html" if saved.is_audit else "result.html"
    text: str = _environment().get_template(name).render(values)
    return text


@functools.cache
def _environment() -> Any:
    from jinja2 import DictLoader, Environment, StrictUndefined

    folder = importlib.resources.files("gradaudit.report") / "templates"
    texts = {each.name: each.read_text(encoding="utf-8") for each in folder.iterdir()}
    return Environment(
        loader=DictLoader(texts),
        autoescape=True,
        finalize=lambda value: visible(value) if type(value) is str else value,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _audit(saved: Saved, include: bool) -> Plain:
    document = saved.to_dict()
    head = document["headline"]
    cells = document["cells"]
    shown, withheld = _public(cells, include)
    gated = bool(document["gates"]["checks"])
    return {
        "title": document["title"],
        "date": document["date"],
        "status": _status(document),
        "audit": document,
        "head": head,
        "verdict_word": _verdict_word(head),
        "sections": [s for s in _SECTIONS if s[0] != "gates" or gated],
        "grids": list(_grids(document)),
        "strips": list(strips_of(saved, shown)),
        "withheld": withheld,
        "figures": list(_drawn(saved)),
        "threats": _threats(cells),
        "places": sorted({c["type"]: c["place"] for c in cells}.items(), reverse=True),
        "several": len({c["dataset"]["text"] for c in cells}) > 1,
    }


def _status(document: Plain) -> str:
    seconds = document["timing"].get("total_s", 0.0)
    took = f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
    return f"{document['status']}, {took} of work"


def _verdict_word(head: Plain) -> str:
    word = str(head["verdict"]).capitalize()
    number = head["counts"].get(head["verdict"], 0)
    among = sum(head["counts"].values())
    return f"{word} ({number} of {among} cells)" if among else word


def _public(cells: Sequence[Plain], include: bool) -> tuple[list[Plain], list[str]]:
    """Returns the cells whose pictures may be shown, and what is said of the others."""
    images = [c for c in cells if len(c["dataset"]["shape"]) == 3 and c["metrics"]]
    shown = [c for c in images if include or c["dataset"]["public"]]
    hidden = dict.fromkeys(c["dataset"]["text"] for c in images if c not in shown)
    return shown, [_withheld(name) for name in hidden]


def _withheld(name: str) -> str:
    return (
        f"Pictures of {name} are withheld: it is no public data set. They are in the "
        "cells' folders; --include-reconstructions shows them here."
    )


def _drawn(saved: Saved) -> Iterator[Plain]:
    """Yields the figures that can be drawn, as elements of the page."""
    for name, title, draw in _FIGURES:
        try:
            figure = draw(saved)
        except InputError:  # nothing of the kind was measured
            continue
        figure.suptitle("")  # the page says it, in letters of its own
        width, height = size(figure)
        yield {
            "name": f"figure-{name}",
            "title": title,
            "finding": figure.get_label(),
            "svg": _element(svg(figure, name), f"figure-{name}", width, height),
        }


def _element(drawing: str, name: str, width: int, height: int) -> Any:
    from markupsafe import Markup

    first = (
        f'<svg role="img" aria-labelledby="{name}-says" width="{width}" '
        f'height="{height}"'
    )
    return Markup(drawing.replace("<svg", first, 1))  # noqa: S704 - our own drawing


def _grids(document: Plain) -> Iterator[Plain]:
    """Yields a table for each data set: who reads what, against each defense."""
    cells = {cell["id"]: cell for cell in document["cells"]}
    for name in dict.fromkeys(c["dataset"]["text"] for c in document["cells"]):
        mine = [c for c in document["cells"] if c["dataset"]["text"] == name]
        defenses = list({c["defense"]["text"]: c["defense"] for c in mine}.values())
        rows: dict[tuple[int, str], dict[str, Plain]] = {}
        for place in places(mine):
            cell = cells[place["cell"]]
            key = place["type"], place["threat"]
            other = cells.get(cell["same_as"] or "")
            rows.setdefault(key, {})[place["defense"]] = _entry(cell, other)
        order = [c["type"] for c in mine]
        yield {
            "dataset": name,
            "model": mine[0]["model"],
            "defenses": defenses,
            "rows": [
                {
                    "type": kind,
                    "threat": threat,
                    "place": PLACES[kind],
                    "cells": [row.get(d["text"]) for d in defenses],
                }
                for (kind, threat), row in sorted(
                    rows.items(), key=lambda each: order.index(each[0][0])
                )
            ],
        }


def _entry(cell: Plain, other: Plain | None) -> Plain:
    found = cell["verdict"]
    return {
        "id": cell["id"],
        "defense": cell["defense"]["text"],
        "verdict": found["kind"],
        "rate": found["rate"],
        "certified": found["certified"],
        "same": _same(cell, other) if other else "",
    }


def _same(cell: Plain, other: Plain) -> str:
    """Says whose figures these are: of an adversary that reads and knows the same."""
    mine, theirs = (
        (f"type {c['type']}", c["threat"]["name"], f"under {c['defense']['text']}")
        for c in (cell, other)
    )
    return ", ".join(b for a, b in zip(mine, theirs, strict=True) if a != b)


def _threats(cells: Sequence[Plain]) -> list[Plain]:
    found: dict[str, Plain] = {}
    for cell in cells:
        threat = cell["threat"]
        looks = threat.get("looks", 1)
        times = dict.fromkeys(looks if isinstance(looks, list) else [looks])
        said = ", ".join(f"{n} time{'s' * (n != 1)}" for n in times)
        found.setdefault(threat["name"], threat | {"looks": said})
    return list(found.values())


def _spec(document: Plain) -> Plain:
    file = kind_of(document)
    return {
        "commands": f"gradaudit run {file}\ngradaudit report {file}",
        "text": json.dumps(document["spec"], indent=1),
    }


def _result(saved: Saved, include: bool) -> Plain:
    document = saved.to_dict()
    about = document.get("about") or document.get("config") or {}
    command = document["spec"]["command"]
    words = [f"{about[k]}" for k in ("method", "defense", "dataset") if about.get(k)]
    verdict = _one_verdict(document)
    found = films(saved) if command.startswith("attack") else []
    public = include or about.get("dataset") in CATALOGUE
    strips = []
    if found and public and verdict:
        figure = in_words(verdict["rate"])
        strips = [strip(" · ".join(words), verdict["kind"], figure, found)]
    private = [_withheld(str(about.get("dataset")))] if found and not public else []
    return {
        "title": " · ".join([command, *words]),
        "date": "",
        "status": document["status"],
        "result": document,
        "verdict": verdict,
        "numbers": list(_numbers(document["metrics"])),
        "strips": strips,
        "withheld": private,
        "figures": list(_drawn(saved)),
    }


def _one_verdict(document: Plain) -> Plain | None:
    """Returns the verdict on one attack or line-up; the others have none."""
    kind = _JUDGED.get(document["spec"]["command"])
    if kind is None:
        return None
    cell = {
        "kind": kind,
        "method": document["about"].get("method", ""),
        "threat": document["threat"]["name"],
    }
    bounds = document.get("certificate") or {}
    result = document | {"certificate": bounds.get("reconstruction")}
    outcome = {"status": "done", "error": None, "result": result}
    return verdict_of(cell, outcome)


def _numbers(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yields every figure of a result with its name, `asr value` for example."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _numbers(inner, f"{name} {key}".strip().replace("_", " "))
    elif isinstance(value, list):
        for number, inner in enumerate(value, 1):
            yield from _numbers(inner, f"{name} {number}")
    elif isinstance(value, bool) or value is None:
        return
    elif isinstance(value, float):
        yield name, f"{value:.4g}"
    else:
        yield name, str(value)
