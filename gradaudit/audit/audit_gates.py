"""The gates of an audit: each limit against each cell; held, broken or unclear."""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

from gradaudit.audit.gate import Verdict, judge, victims_needed
from gradaudit.errors import InputError
from gradaudit.report.metrics import Rate
from gradaudit.report.verdict import WORTH

Plain = dict[str, Any]
HELD, BROKEN, UNCLEAR = (each.value for each in Verdict)


@dataclasses.dataclass(frozen=True)
class Gates:
    """What must hold for the program to end with 0; None or False: no such gate."""

    # No attack may rebuild more of its victims, and nobody pick the victim more often
    # with the first number of looks: by the 95 % interval, or by a certificate.
    max_asr: float | None = None
    max_line_up: float | None = None
    min_rmse: float | None = None  # no victim that was attacked may be rebuilt better
    max_epsilon: float | None = None  # of what is really released, for every defense
    # Every cell needs a bound for anybody: below `max_asr` or `max_line_up` where they
    # are given, else below a half.
    require_certificate: bool = False

    def __post_init__(self) -> None:
        for name in ("max_asr", "max_line_up"):
            value = getattr(self, name)
            if not (value is None or 0 <= value <= 1):
                raise InputError(f"{name} must lie in [0, 1]: {value}")
        for name in ("min_rmse", "max_epsilon"):
            value = getattr(self, name)
            if not (value is None or (value >= 0 and math.isfinite(value))):
                raise InputError(f"{name} must be a finite number from 0, got {value}")

    def judge(self, document: Plain) -> Plain:
        """Returns the gates' part of audit.json, with the exit code."""
        checks = [*self._cells(document["cells"]), *self._defenses(document)]
        verdicts = {check["verdict"] for check in checks}
        verdict = next((v for v in (BROKEN, UNCLEAR, HELD) if v in verdicts), "none")
        code = {BROKEN: 1, UNCLEAR: 3}.get(verdict, 0)
        if document["status"] == "unfinished" and code == 0:
            code = 3  # a cell failed: not all of the question has an answer
        if document["status"] == "interrupted":
            code = 130
        return {"verdict": verdict, "exit_code": code, "checks": checks}

    def _cells(self, cells: Sequence[Plain]) -> Iterator[Plain]:
        for cell in cells:
            if cell["defense"]["control"]:
                continue
            attack = cell["kind"] == "attack"
            limit = self.max_asr if attack else self.max_line_up
            if limit is not None:
                gate = "max-asr" if attack else "max-line-up"
                yield _check(gate, limit, cell["id"], *_rate(cell, limit))
            if attack and self.min_rmse is not None:
                said = _rmse(cell, self.min_rmse)
                yield _check("min-rmse", self.min_rmse, cell["id"], *said)
            if self.require_certificate:
                least = WORTH if limit is None else limit
                yield _check(
                    "require-certificate", limit, cell["id"], *_certified(cell, least)
                )

    def _defenses(self, document: Plain) -> Iterator[Plain]:
        if self.max_epsilon is None:
            return
        names = {
            cell["defense"]["text"]: None
            for cell in document["cells"]
            if not cell["defense"]["control"]
        }
        for name in names:
            rows = [row for row in document["accounting"] if row["defense"] == name]
            said = _epsilon(rows, self.max_epsilon)
            yield _check("max-epsilon", self.max_epsilon, name, *said)


def _check(
    gate: str, limit: float | None, subject: str, verdict: str, sentence: str
) -> Plain:
    return {
        "gate": gate,
        "limit": limit,
        "subject": subject,
        "verdict": verdict,
        "sentence": sentence,
    }


def _rate(cell: Plain, limit: float) -> tuple[str, str]:
    verdict, name = cell["verdict"], cell["name"]
    if verdict["rate"] is None:
        return UNCLEAR, f"{name}: {verdict['sentence']}"
    rate = Rate(**verdict["rate"])
    words = f"{name}: {rate.value:.3f}, at 95 % in [{rate.low:.3f}, {rate.high:.3f}]"
    decided = judge(rate, limit)
    bound = verdict["certified"]
    if decided is not Verdict.BROKEN and bound is not None and bound <= limit:
        return HELD, f"{name}: certified below {bound:.3g}, the limit is {limit:g}"
    if decided is not Verdict.UNCLEAR:
        return decided.value, f"{words}; the limit is {limit:g}"
    return UNCLEAR, f"{words} has the limit {limit:g} inside{_enough(cell, limit)}"


def _enough(cell: Plain, limit: float) -> str:
    """Says how many victims would do, where none was rebuilt."""
    if cell["kind"] != "attack" or limit == 0 or cell["verdict"]["rate"]["value"]:
        return ""
    needed = victims_needed(limit)
    return f"; even without a success it takes {needed} victims with a network each"


def _rmse(cell: Plain, limit: float) -> tuple[str, str]:
    name, metrics = cell["name"], cell["metrics"]
    best = None if metrics is None else metrics["rmse"].get("best")
    if best is not None and best < limit:
        return BROKEN, f"{name}: a victim was rebuilt with RMSE {best:.3g} < {limit:g}"
    if best is None or cell["status"] != "done":
        return UNCLEAR, f"{name}: not every victim was attacked"
    asked = cell["victims"]["asked"]
    return HELD, f"{name}: of {asked} victims the best RMSE is {best:.3g}"


def _certified(cell: Plain, least: float) -> tuple[str, str]:
    name, certificate = cell["name"], cell["certificate"]
    if cell["status"] in ("failed", "missing"):
        return UNCLEAR, f"{name}: {cell['verdict']['sentence']}"
    if certificate is None:
        return BROKEN, f"{name}: no noise stands before this adversary"
    bound = certificate["value"]
    if bound is None:
        return BROKEN, f"{name}: no certificate: {certificate['reason']}"
    if cell["verdict"]["certified"] is None:
        return BROKEN, f"{name}: the measurement contradicts the certificate"
    if bound > least:
        return BROKEN, f"{name}: certified below {bound:.3g} only, not {least:g}"
    return HELD, f"{name}: certified below {bound:.3g}"


def _epsilon(rows: Sequence[Plain], limit: float) -> tuple[str, str]:
    if not rows:
        return BROKEN, "adds no calibrated noise, so it has no epsilon at all"
    for row in rows:
        if row["accounting"] is None:
            return UNCLEAR, f"could not be accounted for: {row['error'] or 'not run'}"
    # Where none is finite it stands there as "inf".
    most = max(float(row["accounting"]["epsilon"]["effective"]) for row in rows)
    said = "no finite epsilon holds" if math.isinf(most) else f"epsilon = {most:.4g}"
    return (HELD if most <= limit else BROKEN), f"{said}, the limit is {limit:g}"
