"""Cells: what one adversary showed about one claimed epsilon, and how it is told."""

import dataclasses
import enum
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gradaudit.distinguish.bounds import (
    Verdict,
    ceiling,
    empirical_epsilon,
    judge,
    library_estimates,
    lower_bound,
    trials_needed,
)
from gradaudit.distinguish.game import Box, Trials, pool


@dataclasses.dataclass(frozen=True)
class Measured:
    """What one measurement contributes, beside its trials, to a cell."""

    trials: Trials
    gradient_norm: float  # of g1
    exact: float | None  # equation 3 of the exact rates; None where no law is known
    attainable: float  # the exact privacy loss of the pair, for any distinguisher


@dataclasses.dataclass(frozen=True)
class Cell:
    """Empirical epsilon with mean and spread, the proven bound, and the verdict.

    `mean` and `spread` (sample standard deviation) are over the measurements'
    equation 3; rates, bound and estimates are over the pooled trials. `exact` and
    `attainable` are means over the measurements.
    """

    adversary: str
    box: Box
    epsilon: float  # the theoretical one, which is also the claim
    mean: float
    spread: float
    measurements: tuple[float, ...]
    fp: float
    fn: float
    trials: int  # pooled
    lower_bound: float
    ceiling: float
    verdict: Verdict
    trials_needed: int  # for a ceiling above the claim
    exact: float | None
    attainable: float
    gradient_norm: float
    estimates: dict[str, float]

    def as_json(self) -> dict[str, Any]:
        """Returns plain values; a number that is not finite becomes None."""
        values = dataclasses.asdict(self)
        values |= {"box": self.box.value, "verdict": self.verdict.value}
        finite: dict[str, Any] = plain(values)
        return finite


def make_cell(
    adversary: str,
    box: Box,
    epsilon: float,
    measured: list[Measured],
    significance: float,
) -> Cell:
    """Returns the cell of several measurements of one game."""
    points = []
    for part in measured:
        errors = part.trials.errors()
        points.append(empirical_epsilon(errors.fp, errors.fn))
    pooled = pool([part.trials for part in measured])
    errors, count = pooled.errors(), len(pooled.first)
    bound = lower_bound(errors, significance)
    exact = [part.exact for part in measured if part.exact is not None]
    return Cell(
        adversary=adversary,
        box=box,
        epsilon=epsilon,
        mean=mean(points),
        spread=spread(points),
        measurements=tuple(points),
        fp=errors.fp,
        fn=errors.fn,
        trials=count,
        lower_bound=bound,
        ceiling=ceiling(count, significance),
        verdict=judge(epsilon, bound, count, significance),
        trials_needed=trials_needed(epsilon, significance),
        exact=mean(exact) if exact else None,
        attainable=mean([part.attainable for part in measured]),
        gradient_norm=mean([part.gradient_norm for part in measured]),
        estimates=library_estimates(pooled, significance),
    )


def mean(values: list[float]) -> float:
    """Returns the mean; infinite as soon as one value is."""
    return float(np.mean(values))


def spread(values: list[float]) -> float:
    """Returns the sample standard deviation: 0 for one value, else NaN if infinite."""
    if not np.all(np.isfinite(values)):
        return math.nan
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def plain(value: Any) -> Any:
    """Returns nested values with tuples as lists and None for what is not finite."""
    if isinstance(value, dict):
        return {key: plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


SCHEMA = 1


Progress = Callable[[str, int, int], None]  # what is running, trials done, of how many


CAVEATS = (
    "An empirical epsilon is a point estimate; only lower_bound is proven, with the "
    "stated confidence.",
    "'consistent' says that these adversaries did not refute the claim, not that no "
    "adversary can.",
)


def silent(label: str, done: int, total: int) -> None:
    """Ignores progress."""


class Counter:
    """Adds up trials for a progress display."""

    def __init__(self, total: int, progress: Progress) -> None:
        self._total, self._progress, self._done = total, progress, 0

    def __call__(self, label: str, trials: int) -> None:
        """Counts trials that were just played."""
        self._done += trials
        self._progress(label, self._done, self._total)


def write_result(folder: Path, result: dict[str, Any]) -> None:
    """Writes result.json into a folder that may not exist yet."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(result, indent=2, allow_nan=False)
    (folder / "result.json").write_text(text + "\n")


def plain_setting(value: Any) -> Any:
    """Returns a setting as JSON can hold it."""
    if isinstance(value, enum.Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain_setting(entry) for entry in value]
    return value
