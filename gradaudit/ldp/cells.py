"""One cell of the table: one adversary, one box, one epsilon, what was measured."""

import dataclasses
import math
from typing import Any

import numpy as np

from gradaudit.ldp.bounds import (
    Verdict,
    ceiling,
    empirical_epsilon,
    judge,
    library_estimates,
    lower_bound,
    trials_needed,
)
from gradaudit.ldp.config import Box
from gradaudit.ldp.trials import Trials, pool


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
