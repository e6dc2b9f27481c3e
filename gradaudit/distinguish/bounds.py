"""From error rates to epsilon: the point estimate, what is proven, and the verdict."""

import dataclasses
import enum
import math
from collections.abc import Sequence

import numpy as np

from gradaudit.distinguish.game import Box, Errors, Trials
from gradaudit.errors import InputError, positive

SIGNIFICANCE = 0.05
MOST_EPSILON = 30.0  # e^30 trials would be needed to see an error

CAVEATS = (
    "An empirical epsilon is a point estimate; only lower_bound is proven, with the "
    "stated confidence.",
    "'consistent' says that these adversaries did not refute the claim, not that no "
    "adversary can.",
)

_NEARLY_ZERO = 1e-12  # jax-privacy's one-run bound refuses a delta of 0


class Verdict(enum.Enum):
    """What the trials say about a claimed epsilon."""

    REFUTED = "refuted"  # the lower bound exceeds the claim
    CONSISTENT = "consistent"  # it does not, and it could have: no proof of the claim
    CANNOT_TELL = "can't tell"  # no outcome of so few trials could refute the claim


def empirical_epsilon(fp: float, fn: float) -> float:
    """Returns max(ln((1-FP)/FN), ln((1-FN)/FP)): a point estimate, not a bound.

    Matsumoto et al. 2022, equation 3. It is infinite when a rate is 0, and negative
    when the guesses are worse than chance.
    """
    return max(_log_ratio(1 - fp, fn), _log_ratio(1 - fn, fp))


def lower_bound(
    errors: Errors, significance: float = SIGNIFICANCE, delta: float = 0.0
) -> float:
    """Returns the epsilon that the errors prove with confidence 1 - significance.

    Clopper-Pearson upper bounds of both rates, each at half the significance; the
    threshold of the guesses must not have been chosen on these trials.
    """
    from jax_privacy import auditing

    decisions = auditing.CanaryScoreAuditor(
        _decisions(errors.first, errors.first - errors.false_positives),
        _decisions(errors.second, errors.false_negatives),
    )
    return float(
        decisions.epsilon_clopper_pearson(
            significance,
            delta,
            one_sided=False,
            threshold_strategy=auditing.Explicit(0.5),
        )
    )


def ceiling(
    trials: int, significance: float = SIGNIFICANCE, delta: float = 0.0
) -> float:
    """Returns the largest lower bound that so many trials can give: no error at all."""
    each = trials // 2
    upper = -math.expm1(math.log(significance / 2) / each)
    return _log_ratio(1 - upper - delta, upper) if upper + delta < 1 else 0.0


def trials_needed(
    epsilon: float, significance: float = SIGNIFICANCE, delta: float = 0.0
) -> int:
    """Returns the smallest even number of trials whose ceiling exceeds epsilon."""
    # No error in n trials bounds the rate by u = 1 - (significance/2)^(1/n), and
    # ln((1 - u - delta) / u) = epsilon at u = (1 - delta) / (1 + e^epsilon).
    rate = (1 - delta) / (1 + math.exp(epsilon))
    return 2 * (math.floor(math.log(significance / 2) / math.log1p(-rate)) + 1)


def judge(
    claimed: float,
    bound: float,
    trials: int,
    significance: float = SIGNIFICANCE,
    delta: float = 0.0,
) -> Verdict:
    """Returns the verdict on a claimed epsilon from a lower bound of so many trials."""
    if bound > claimed:
        return Verdict.REFUTED
    if ceiling(trials, significance, delta) <= claimed:
        return Verdict.CANNOT_TELL
    return Verdict.CONSISTENT


@dataclasses.dataclass(frozen=True)
class Family:
    """Bounds that are read together: all of them hold at once with 1 - significance.

    Bonferroni's correction: it asks nothing of how the cells depend on each other, and
    they do (one black-box game is played at several epsilons).
    """

    cells: int
    significance: float = SIGNIFICANCE

    @property
    def per_cell(self) -> float:
        """The significance of one cell's bound."""
        return self.significance / self.cells


@dataclasses.dataclass(frozen=True)
class Measured:
    """What one measurement contributes, beside its trials, to a cell."""

    trials: Trials
    gradient_norm: float  # of g1
    exact: float | None  # equation 3 of the exact rates; None where no law is known
    attainable: float  # the exact privacy loss of the pair, for any distinguisher


@dataclasses.dataclass(frozen=True)
class Cell:
    """Empirical epsilon with mean and spread, the proven bounds, and the verdict.

    `mean` and `spread` (sample standard deviation) are over the measurements'
    equation 3; rates, bounds and estimates are over the pooled trials. `lower_bound`,
    `ceiling`, `verdict` and `trials_needed` are corrected for the number of cells;
    `lower_bound_alone` is what would be proven if this were the only one. `exact` and
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
    lower_bound: float  # holds together with those of all other cells
    lower_bound_alone: float  # uncorrected; decides nothing
    ceiling: float
    verdict: Verdict
    trials_needed: int  # for a ceiling above the claim
    exact: float | None
    attainable: float
    gradient_norm: float
    estimates: dict[str, float]

    def plain(self) -> dict[str, object]:
        """Returns the fields as JSON holds them."""
        values = dataclasses.asdict(self)
        return values | {"box": self.box.value, "verdict": self.verdict.value}


def make_cell(
    adversary: str,
    box: Box,
    epsilon: float,
    measured: Sequence[Measured],
    family: Family,
) -> Cell:
    """Returns the cell of several measurements of one game."""
    counted = [part.trials.errors() for part in measured]
    points = [empirical_epsilon(each.fp, each.fn) for each in counted]
    pooled = Trials(
        np.concatenate([part.trials.first for part in measured]),
        np.concatenate([part.trials.scores for part in measured]),
    )
    errors, count = pooled.errors(), len(pooled.first)
    bound = lower_bound(errors, family.per_cell)
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
        lower_bound_alone=lower_bound(errors, family.significance),
        ceiling=ceiling(count, family.per_cell),
        verdict=judge(epsilon, bound, count, family.per_cell),
        trials_needed=trials_needed(epsilon, family.per_cell),
        exact=mean(exact) if exact else None,
        attainable=mean([part.attainable for part in measured]),
        gradient_norm=mean([part.gradient_norm for part in measured]),
        estimates=library_estimates(pooled, family.significance),
    )


def library_estimates(
    trials: Trials,
    significance: float = SIGNIFICANCE,
    delta: float = 0.0,
    threshold: float = 0.0,
) -> dict[str, float]:
    """Returns jax-privacy's estimates on the same scores, for comparison.

    `split` chooses its threshold on half of the trials; `one_run` takes the trials for
    the canaries of one training run (Steinke et al. 2023); `raw` is a point estimate.
    With a positive delta, the claim of Gaussian noise, there are also `gdp` and
    `one_run_fdp` (Mahloujifar et al. 2024), which assume a Gaussian mechanism.
    """
    from jax_privacy import auditing

    auditor = auditing.CanaryScoreAuditor(
        trials.scores[trials.first], trials.scores[~trials.first]
    )
    fixed = auditing.Explicit(threshold)
    estimates = {
        "split": auditor.epsilon_clopper_pearson(
            significance,
            delta,
            one_sided=False,
            threshold_strategy=auditing.Split(seed=0),
        ),
        "one_run": auditor.epsilon_one_run(
            significance, delta or _NEARLY_ZERO, threshold_strategy=fixed
        ),
        "raw": auditor.epsilon_raw_counts(delta=delta, one_sided=False),
    }
    if delta > 0:
        estimates["gdp"] = auditor.epsilon_from_gdp(significance, delta)
        estimates["one_run_fdp"] = auditor.epsilon_one_run_fdp(
            significance, delta, threshold_strategy=fixed
        )
    return {name: float(value) for name, value in estimates.items()}


def mean(values: list[float]) -> float:
    """Returns the mean; infinite as soon as one value is."""
    return float(np.mean(values))


def spread(values: list[float]) -> float:
    """Returns the sample standard deviation: 0 for one value, else NaN if infinite."""
    if not np.all(np.isfinite(values)):
        return math.nan
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def check_epsilon(epsilon: float) -> None:
    """Raises unless epsilon can be claimed and tested."""
    positive(epsilon=epsilon)
    if not epsilon <= MOST_EPSILON:
        raise InputError(
            f"epsilon must be at most {MOST_EPSILON:g}, got {epsilon:g}: no number of "
            "trials that can be run would tell it from a larger one"
        )


def check_significance(significance: float) -> None:
    """Raises unless 1 - significance is a confidence that a bound can have."""
    if not 0 < significance < 0.5:
        raise InputError(f"significance must lie in (0, 0.5), got {significance}")


def _log_ratio(numerator: float, denominator: float) -> float:
    if numerator <= 0:
        return -math.inf if denominator > 0 else 0.0
    return math.log(numerator / denominator) if denominator > 0 else math.inf


def _decisions(trials: int, guesses_first: int) -> np.ndarray:
    return np.repeat(np.array([0, 1], np.int8), [trials - guesses_first, guesses_first])
