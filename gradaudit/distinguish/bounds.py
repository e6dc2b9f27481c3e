"""From error rates to epsilon: the point estimate, what is proven, what can't be."""

import enum
import math

import numpy as np
from jax_privacy import auditing

from gradaudit.distinguish.game import Errors, Trials
from gradaudit.errors import require

SIGNIFICANCE = 0.05


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


def check_epsilon(epsilon: float) -> None:
    """Raises unless epsilon can be claimed."""
    require(
        math.isfinite(epsilon) and epsilon > 0,
        f"epsilon must be positive and finite, got {epsilon}",
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


def _log_ratio(numerator: float, denominator: float) -> float:
    if numerator <= 0:
        return -math.inf if denominator > 0 else 0.0
    return math.log(numerator / denominator) if denominator > 0 else math.inf


def _decisions(trials: int, guesses_first: int) -> np.ndarray:
    return np.repeat(np.array([0, 1], np.int8), [trials - guesses_first, guesses_first])
