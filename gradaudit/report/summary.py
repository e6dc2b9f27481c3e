"""An audit in short: for terminals, for tables, and for continuous integration."""

import re
from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

from gradaudit.report.verdict import epsilon_in_words, in_words

Plain = dict[str, Any]

_COLOURS = {
    "leaks": "red",
    "failed": "red",
    "missing": "yellow",
    "not shown to leak": "yellow",
    "certified below": "green",
    "broken": "red",
    "unclear": "yellow",
    "held": "green",
}


def audit_table(document: Plain) -> Group:
    """Returns the verdict, the grid types x defenses, and what does not hold."""
    head = document["headline"]
    verdict = f"{_coloured(head['verdict'])}: {escape(head['sentence'])}"
    parts: list[RenderableType] = [verdict]
    parts += [f"[red]no guarantee[/]: {escape(claim_line(c))}" for c in head["claims"]]
    if head["control"]:
        parts.append(escape(head["control"]))
    for dataset in dict.fromkeys(c["dataset"]["text"] for c in document["cells"]):
        parts.append(_grid(document, dataset))
    if document["accounting"]:
        parts.append(_epsilons(document))
    for row in document["mechanism"]:
        words = f"is the noise of {row['defense']} on? {row['sentence']}"
        parts.append(escape(words))
    for check in document["gates"]["checks"]:
        if check["verdict"] != "held":
            words = f"--{check['gate']}: {check['sentence']}"
            parts.append(f"gate {_coloured(check['verdict'])}: {escape(words)}")
    return Group(*parts)


def claim_line(claim: Plain) -> str:
    """Returns which defense claims what."""
    return f"{claim['defense']}: {claim['sentence']}"


def _coloured(word: str) -> str:
    return f"[bold {_COLOURS.get(word, 'white')}]{word}[/]"


def _grid(document: Plain, dataset: str) -> Table:
    cells = [c for c in document["cells"] if c["dataset"]["text"] == dataset]
    table = Table(box=SIMPLE_HEAD, title=escape(dataset), title_justify="left")
    defenses = list(dict.fromkeys(cell["defense"]["text"] for cell in cells))
    table.add_column("type", no_wrap=True)
    table.add_column("who", no_wrap=True)
    for name in defenses:
        table.add_column(escape(name), overflow="fold")
    rows: dict[tuple[int, str], dict[str, list[Plain]]] = {}
    for cell in cells:
        key = cell["type"], cell["threat"]["name"]
        defense = cell["defense"]["text"]
        rows.setdefault(key, {}).setdefault(defense, []).append(cell)
    for (leakage, threat), row in rows.items():
        shown = ["\n".join(map(_short, row.get(name, []))) for name in defenses]
        table.add_row(str(leakage), escape(threat), *shown)
    return table


def _short(cell: Plain) -> str:
    """Returns the figure of one cell, coloured by its verdict."""
    verdict = cell["verdict"]
    colour, rate = _COLOURS[verdict["kind"]], verdict["rate"]
    if rate is None:
        return f"[{colour}]{verdict['kind']}[/]"
    value = "–" if rate["value"] is None else f"{rate['value']:.2f}"
    bound = verdict["certified"]
    below = f" < {bound:.2f}" if verdict["kind"] == "certified below" else ""
    return f"[{colour}]{value} \\[{rate['low']:.2f}, {rate['high']:.2f}]{below}[/]"


def _epsilons(document: Plain) -> Table:
    table = Table(box=SIMPLE_HEAD, title="epsilon", title_justify="left")
    for head in ("defense", "claimed", "accounted", "effective", "guarantee"):
        table.add_column(head, overflow="fold")
    for row in document["accounting"]:
        found = row["accounting"]
        if found is None:
            table.add_row(escape(row["defense"]), "–", "–", "–", row["status"])
            continue
        numbers = (found["epsilon"][k] for k in ("claimed", "accounted", "effective"))
        verdict = found["guarantee"]["verdict"]
        table.add_row(escape(row["defense"]), *map(epsilon_in_words, numbers), verdict)
    return table


def rows(document: Plain) -> list[Plain]:
    """Returns cells.csv."""
    found = []
    for cell in document["cells"]:
        verdict, metrics = cell["verdict"], cell["metrics"]
        rate = verdict["rate"] or {}
        rmse = metrics["rmse"] if metrics else {}
        found.append(
            {
                "id": cell["id"],
                "kind": cell["kind"],
                "dataset": cell["dataset"]["text"],
                "defense": cell["defense"]["text"],
                "type": cell["type"],
                "threat": cell["threat"]["name"],
                "method": cell["attack"]["method"],
                "status": cell["status"],
                "verdict": verdict["kind"],
                "rate": rate.get("value"),
                "low": rate.get("low"),
                "high": rate.get("high"),
                "guess": verdict["guess"],
                "certified": verdict["certified"],
                "rmse_median": rmse.get("median"),
                "rmse_best": rmse.get("best"),
            }
        )
    return found


def markdown(document: Plain) -> str:
    """Returns a summary for a pull request: verdict, gates, grid."""
    head, gates = document["headline"], document["gates"]
    lines = [
        f"# {_plain_words(document['title'])}",
        "",
        f"**{head['verdict']}** – {_plain_words(head['sentence'])}",
        "",
    ]
    for claim in head["claims"]:
        lines += [f"- **no guarantee** – {_plain_words(claim_line(claim))}"]
    if head["control"]:
        lines += ["", _plain_words(head["control"])]
    if gates["checks"]:
        lines += ["", f"## Gates: {gates['verdict']}", ""]
        lines += ["| gate | limit | | |", "|---|---|---|---|"]
        for check in gates["checks"]:
            limit = "" if check["limit"] is None else f"{check['limit']:g}"
            said = _plain_words(check["sentence"])
            lines += [f"| {check['gate']} | {limit} | {check['verdict']} | {said} |"]
    lines += ["", "## Cells", ""]
    lines += ["| cell | verdict | measured | certified below |", "|---|---|---|---|"]
    for cell in document["cells"]:
        lines.append(f"| {' | '.join(_markdown_row(cell))} |")
    lines += ["", "A failed attack is no proof of privacy.", ""]
    return "\n".join(lines)


def _markdown_row(cell: Plain) -> Iterator[str]:
    verdict = cell["verdict"]
    rate, bound = verdict["rate"], verdict["certified"]
    yield _plain_words(cell["name"])
    yield verdict["kind"]
    yield "–" if rate is None or rate["value"] is None else in_words(rate)
    yield "–" if bound is None else f"{bound:.2f}"


def _plain_words(text: str) -> str:
    """Returns text that Markdown shows as it is: in one line, nothing rendered."""
    one_line = re.sub(r"\s+", " ", text)
    return re.sub(r"([\\`*_{}\[\]<>()#+!|~&])", r"\\\1", one_line)


def junit(document: Plain) -> str:
    """Returns JUnit XML: a test for each gate's check and for each cell.

    A broken gate is a failure; what is unclear, failed or was not run is an error.
    """
    suites = ElementTree.Element("testsuites", name=_xml(document["title"]))
    checks = document["gates"]["checks"]
    tests = [
        (f"{c['gate']}: {c['subject']}", c["verdict"], c["sentence"]) for c in checks
    ]
    _suite(suites, "gates", tests)
    tests = [
        (
            cell["name"],
            "held" if cell["status"] == "done" else "unclear",
            cell["verdict"]["sentence"],
        )
        for cell in document["cells"]
    ]
    _suite(suites, "cells", tests)
    ElementTree.indent(suites)
    text = ElementTree.tostring(suites, encoding="unicode", xml_declaration=False)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'


def _suite(
    parent: ElementTree.Element, name: str, tests: list[tuple[str, str, str]]
) -> None:
    verdicts = [verdict for _, verdict, _ in tests]
    suite = ElementTree.SubElement(
        parent,
        "testsuite",
        name=name,
        tests=str(len(tests)),
        failures=str(verdicts.count("broken")),
        errors=str(verdicts.count("unclear")),
    )
    for test, verdict, sentence in tests:
        case = ElementTree.SubElement(
            suite, "testcase", classname=f"gradaudit.{name}", name=_xml(test)
        )
        if verdict == "held":
            ElementTree.SubElement(case, "system-out").text = _xml(sentence)
        else:
            tag = "failure" if verdict == "broken" else "error"
            said = {"message": _xml(sentence), "type": verdict}
            ElementTree.SubElement(case, tag, said)


def _xml(text: str) -> str:
    """Returns text without what XML can't hold: control characters, half pairs."""
    whole = text.encode("utf-8", "replace").decode()
    known = re.sub("[\ufffe\uffff]", "", whole)
    return re.sub("[^\t\n\r\x20-\U0010ffff]", "?", known)
