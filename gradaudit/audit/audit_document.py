"""audit.json out of a grid, its cells and what came of them: plain data in and out."""

from collections.abc import Mapping, Sequence
from typing import Any

from gradaudit.audit.audit_cells import DONE, FAILED, INTERRUPTED, MISSING
from gradaudit.audit.audit_gates import Gates
from gradaudit.audit.audit_grid import Grid, Guard
from gradaudit.audit.captured_grid import CapturedGrid, Run
from gradaudit.audit.threat import Threat
from gradaudit.privacy.guarantee import READ_BEFORE
from gradaudit.report.result import SCHEMA_VERSION
from gradaudit.report.verdict import PLACES, claims_of, headline, places, verdict_of
from gradaudit.types import Leakage

Plain = dict[str, Any]
Outcomes = Mapping[str, Plain]  # by the cell's id

_NOT_RUN = {"status": MISSING, "error": None, "result": None, "seconds": 0.0}
_GENERAL = (
    "A failed attack is no proof of privacy: a stronger one may exist. Only a "
    "certificate speaks of every adversary, and it rests on the noise being what the "
    "defense says it is.",
    "Every interval is at 95 % on its own; of many cells a few are wrong.",
)


def assemble(
    grid: Grid | CapturedGrid,
    cells: Sequence[Plain],
    outcomes: Outcomes,
    gates: Gates,
    *,
    environment: Plain,
    interrupted: bool,
    date: str,
) -> Plain:
    """Returns audit.json; what was not run is in it as missing."""
    ended = [(c, outcomes.get(c["same_as"] or c["id"], _NOT_RUN)) for c in cells]
    claims = {guard.text: _claims(guard, ended) for guard in grid.guards}
    attacked = [
        _cell(grid, cell, outcome, claims)
        for cell, outcome in ended
        if cell["kind"] in ("attack", "line-up")
    ]
    others = {
        kind: [short(c, outcome) for c, outcome in ended if c["kind"] == kind]
        for kind, short in _SHORT.items()
    }
    if interrupted:
        status = INTERRUPTED
    else:
        done = all(outcome["status"] == DONE for _, outcome in ended)
        status = DONE if done else "unfinished"
    said = [
        {"defense": guard.text, "sentence": sentence}
        for guard in grid.guards
        for sentence in claims[guard.text]
    ]
    document: Plain = {
        "schema_version": SCHEMA_VERSION,
        "kind": "audit",
        "title": grid.plan.title
        or f"Audit of {', '.join(data.text for data in grid.data)}",
        "spec": grid.plan.spec().plain(),
        "environment": environment,
        "status": status,
        "date": date,
        "headline": headline(attacked, said),
        "places": places(attacked),
        "cells": attacked,
        **others,
        "limitations": _limitations(grid, attacked),
        "timing": {"total_s": sum(outcome["seconds"] for outcome in outcomes.values())},
    }
    return document | {"gates": gates.judge(document)}


def _claims(guard: Guard | Run, ended: Sequence[tuple[Plain, Plain]]) -> list[str]:
    """Returns what one defense claims that does not hold, over all data sets."""
    found: list[str] = []
    for cell, outcome in ended:
        if cell["defense"] == guard.text and cell["kind"] == "accounting":
            found += claims_of(guard.text, outcome["result"], None)
        if cell["defense"] == guard.text and cell["kind"] == "mechanism":
            found += claims_of(guard.text, None, outcome["result"])
    return list(dict.fromkeys(found))


def _cell(
    grid: Grid | CapturedGrid,
    cell: Plain,
    outcome: Plain,
    claims: Mapping[str, list[str]],
) -> Plain:
    guard = next(g for g in grid.guards if g.text == cell["defense"])
    data = next(d for d in grid.data if d.text == cell["dataset"])
    result = outcome["result"] or {}
    is_attack = cell["kind"] == "attack"
    line_ups = [] if is_attack else result.get("metrics", {}).get("cells", [])
    bound = result.get("certificate") if is_attack else None
    if line_ups:
        bound = line_ups[0]["certified"]
    silent = bound is not None and bound["value"] is None
    if bound and silent and cell["same_as"] and isinstance(guard, Guard):
        bound = bound | {"reason": _reason(guard, cell["type"], bound["reason"])}
    scored = is_attack and "asr" in result.get("metrics", {})
    return {
        "id": cell["id"],
        "name": cell["name"],
        "kind": cell["kind"],
        "dataset": data.plain(),
        "model": data.model.name,
        "defense": {
            "text": guard.text,
            "name": guard.name,
            "control": guard.control,
            "claims": claims[guard.text],
        },
        "type": cell["type"],
        "place": PLACES[cell["type"]],
        "threat": {
            "name": cell["threat"],
            "type": cell["type"],
            **Threat.parse(cell["threat"], Leakage(cell["type"])).in_words(),
            "looks": result.get("threat", {}).get("looks", 1),
        },
        "attack": {
            "method": cell["method"],
            "iterations": result.get("about", {}).get("iterations"),
            "restarts": result.get("about", {}).get("restarts"),
        },
        "seed": grid.plan.seed,
        "status": outcome["status"],
        "victims": result.get("victims"),
        "draws": result.get("draws", []),
        "metrics": result["metrics"] if scored else None,
        "line_ups": line_ups,
        "certificate": bound,
        "verdict": verdict_of(cell, outcome),
        "error": outcome["error"],
        "same_as": cell["same_as"],
        "folder": f"cells/{cell['same_as'] or cell['id']}",
        "limitations": list(result.get("limitations", [])),
        "timing": {"total_s": 0.0 if cell["same_as"] else outcome["seconds"]},
    }


def _reason(guard: Guard, leakage: int, said: str) -> str:
    """Says why there is no bound, of a cell that was taken from another defense's."""
    late = guard.defense.mechanisms and not guard.acts_before(leakage)
    return READ_BEFORE if late else said


def _about(cell: Plain, outcome: Plain) -> Plain:
    status = outcome["status"]
    return {
        "defense": cell["defense"],
        "dataset": cell["dataset"],
        "status": MISSING if status == INTERRUPTED else status,
        "error": outcome["error"],
        "folder": f"cells/{cell['id']}" if status in (DONE, FAILED) else None,
    }


def _accounting(cell: Plain, outcome: Plain) -> Plain:
    return _about(cell, outcome) | {"accounting": outcome["result"]}


def _norms(cell: Plain, outcome: Plain) -> Plain:
    found = outcome["result"] or {"norms": []}
    return _about(cell, outcome) | {"norms": found["norms"]}


def _training(cell: Plain, outcome: Plain) -> Plain:
    metrics = (outcome["result"] or {"metrics": {}})["metrics"]
    return _about(cell, outcome) | {
        "accuracy": metrics.get("accuracy"),
        "rounds": metrics.get("rounds"),
        "milliseconds": metrics.get("milliseconds_per_client_and_iteration"),
    }


def _mechanism(cell: Plain, outcome: Plain) -> Plain:
    result = outcome["result"]
    about = _about(cell, outcome)
    if result is not None and "findings" in result["metrics"]:
        return about | _measured(result)
    if result is None:
        said = f"could not be tested: {outcome['error']}" if outcome["error"] else ""
        return about | {
            "verdict": None,
            "sentence": said or "not run",
            "claimed": None,
            "closed_form": None,
            "lower_bound": None,
            "ceiling": None,
            "trials": None,
            "caveats": [],
        }
    found = result["result"]
    claim, bound = found["claim"], found["lower_bound"]
    exact = found["closed_form"]
    claimed = f"epsilon = {claim['epsilon']:.3g}"
    amounts = "" if exact is None else f" It amounts to epsilon = {exact:.3g}."
    proven = f"{found['trials']:,} trials prove epsilon >= {bound:.3g}"
    if bound > (claim["epsilon"] if exact is None else exact) * 1.001:
        sentence = f"No: {proven}, and one release claims {claimed}.{amounts}"
    elif found["verdict"] == "refuted":
        sentence = (
            f"It is on, and less than what is claimed: one release claims {claimed}."
            f"{amounts} {proven}."
        )
    else:
        doubt = ", which is too few to refute it" * (found["verdict"] == "can't tell")
        sentence = (
            f"Nothing speaks against it: one release claims {claimed}.{amounts} "
            f"{proven}{doubt}."
        )
    return about | {
        "verdict": found["verdict"],
        "sentence": sentence,
        "claimed": claim["epsilon"],
        "closed_form": exact,
        "lower_bound": bound,
        "ceiling": found["ceiling"],
        "trials": found["trials"],
        "caveats": [*result["caveats"]],
    }


def _measured(result: Plain) -> Plain:
    """Returns what recorded updates say of a defense; see `mechanism_check`."""
    found = result["metrics"]
    said = "; ".join(finding["sentence"] for finding in found["findings"])
    start = {"refuted": "No", "consistent": "Nothing speaks against it"}
    words = start.get(found["verdict"], "Nothing is claimed that could be tested")
    updates = found["pairs"] or found["updates_alone"]
    how = "before and after it" if found["pairs"] else "as they arrived only"
    return {
        "verdict": found["verdict"],
        "sentence": f"{words}: {said} ({updates} updates, {how}).",
        "claimed": found["claimed"]["epsilon"],
        "closed_form": _finite(found["epsilon_of_one_update"]),
        "lower_bound": None,
        "ceiling": None,
        "trials": None,
        "caveats": list(result["limitations"]),
    }


def _finite(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None


_SHORT = {
    "accounting": _accounting,
    "mechanism": _mechanism,
    "norms": _norms,
    "training": _training,
}


def _limitations(grid: Grid | CapturedGrid, cells: Sequence[Plain]) -> list[str]:
    """Returns what holds of the audit as a whole, and then what holds of cells."""
    found = [*_GENERAL, *grid.remarks(cells)]
    failed = [cell["name"] for cell in cells if cell["status"] == FAILED]
    if failed:
        found.append(f"Cells that failed say nothing: {'; '.join(failed)}.")
    return found
