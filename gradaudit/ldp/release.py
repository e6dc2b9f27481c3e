"""The test of any mechanism's claim: is the noise really on?

A pilot chooses the pair, the statistic and the threshold; fresh trials then give the
bound, so that nothing was chosen on the data that proves it.
"""

import dataclasses
from typing import Any

import jax
import numpy as np

from gradaudit.ldp.bounds import (
    SIGNIFICANCE,
    Verdict,
    ceiling,
    judge,
    library_estimates,
    lower_bound,
    trials_needed,
)
from gradaudit.ldp.cells import plain
from gradaudit.ldp.claims import Claim
from gradaudit.ldp.pairs import Pair
from gradaudit.ldp.release_game import (
    Advance,
    Release,
    ReleaseGame,
    check_release,
    chunk_size,
)
from gradaudit.ldp.statistics import STATISTICS, Statistic
from gradaudit.ldp.trials import Trials, check_trials
from gradaudit.types import Key

TRIALS = 100_000
PILOT = 0.1  # share of the trials that each pair gets in the pilot, on top
# Tails, where small noise shows, and the middle, where a randomizer's answer shows.
_QUANTILES = np.concatenate([np.geomspace(1e-3, 0.1, 12), np.linspace(0.15, 0.5, 8)])


@dataclasses.dataclass(frozen=True)
class ReleaseResult:
    """What the trials say about a mechanism's claim."""

    claim: Claim
    closed_form: float | None  # exact epsilon of what the parts declare, if known
    pair: str
    statistic: str
    threshold: float
    fp: float
    fn: float
    trials: int
    lower_bound: float
    ceiling: float
    verdict: Verdict
    refuted_by: str | None  # trials, closed form, or both
    trials_needed: int
    estimates: dict[str, float]

    def as_json(self) -> dict[str, Any]:
        """Returns plain values; a number that is not finite becomes None."""
        values = dataclasses.asdict(self) | {"verdict": self.verdict.value}
        finite: dict[str, Any] = plain(values)
        return finite


def total_trials(choices: int, trials: int) -> int:
    """Returns how many trials `audit_release` plays for so many pairs."""
    return trials + choices * _pilot_trials(trials)


def audit_release(
    key: Key,
    release: Release,
    choices: tuple[Pair, ...],
    claim: Claim,
    *,
    closed_form: float | None = None,
    trials: int = TRIALS,
    significance: float = SIGNIFICANCE,
    advance: Advance = lambda trials: None,
) -> ReleaseResult:
    """Tests a mechanism's claim.

    Args:
      key: randomness.
      release: the mechanism, in jax.numpy; its output must have the input's shape.
      choices: pairs that the claim covers, see `pairs`.
      claim: what the mechanism promises.
      closed_form: reported beside the measurement.
      trials: of the test; the pilot comes on top.
      significance: 1 - confidence of the bound.
      advance: told about the trials just played.
    """
    check_trials(trials)
    check_release(key, release, choices[0].vectors[0])
    pilot_key, test_key = jax.random.split(key)
    size = chunk_size(trials, choices[0].vectors.shape[1])
    game = ReleaseGame(release, STATISTICS, size, advance)
    chosen = _choose(pilot_key, game, choices, claim, _pilot_trials(trials))
    pair, statistic, threshold = chosen
    played = game.play(test_key, pair, trials)[STATISTICS.index(statistic)]
    errors = played.errors(threshold)
    bound = lower_bound(errors, significance, claim.delta)
    measured = judge(claim.epsilon, bound, trials, significance, claim.delta)
    # The tolerance is the rounding of the exact conversions, not of any measurement.
    untrue = closed_form is not None and closed_form > claim.epsilon * (1 + 1e-6)
    reasons = ["trials"] * (measured is Verdict.REFUTED) + ["closed form"] * untrue
    return ReleaseResult(
        claim=claim,
        closed_form=closed_form,
        pair=pair.name,
        statistic=statistic.name,
        threshold=threshold,
        fp=errors.fp,
        fn=errors.fn,
        trials=trials,
        lower_bound=bound,
        ceiling=ceiling(trials, significance, claim.delta),
        verdict=Verdict.REFUTED if reasons else measured,
        refuted_by=" and ".join(reasons) or None,
        trials_needed=trials_needed(claim.epsilon, significance, claim.delta),
        estimates=library_estimates(played, significance, claim.delta, threshold),
    )


def _pilot_trials(trials: int) -> int:
    return max(100, int(PILOT * trials))


def _choose(
    key: Key,
    game: ReleaseGame,
    choices: tuple[Pair, ...],
    claim: Claim,
    trials: int,
) -> tuple[Pair, Statistic, float]:
    """Returns the pair, statistic and threshold with the largest bound in a pilot."""
    found = []
    for index, pair in enumerate(choices):
        played = game.play(jax.random.fold_in(key, index), pair, trials)
        for statistic, part in zip(game.statistics, played, strict=True):
            for threshold in _thresholds(part):
                bound = lower_bound(part.errors(threshold), delta=claim.delta)
                found.append((bound, pair, statistic, threshold))
    _, pair, statistic, threshold = max(found, key=lambda entry: entry[0])
    return pair, statistic, threshold


def _thresholds(trials: Trials) -> list[float]:
    """Returns quantiles of the scores, dense in both tails."""
    levels = np.concatenate([_QUANTILES, 1 - _QUANTILES])
    # A level of the scores themselves, not between two, so that ties stay together.
    return sorted(set(np.quantile(trials.scores, levels, method="higher").tolist()))
