"""The game on any mechanism, as a black box: is the noise really on?

A pilot chooses the pair, the statistic and the threshold; fresh trials then give the
bound, so that nothing was chosen on the data that proves it.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradaudit.errors import InputError
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
from gradaudit.ldp.statistics import STATISTICS, Statistic
from gradaudit.ldp.trials import Trials, check_trials
from gradaudit.types import Key

Release = Callable[[Key, jax.Array], jax.Array]  # (key, (d,)) -> (d,)

_NUMBERS = 2**22  # held at a time: trials x coordinates
_SMALLEST_CHUNK, _LARGEST_CHUNK = 2**6, 2**14  # trials
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
    advance: Callable[[int], None] = lambda trials: None,
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
    pair, statistic, threshold = _choose(
        pilot_key, release, choices, claim, _pilot_trials(trials), advance
    )
    (played,) = _play(test_key, release, pair, (statistic,), trials, advance)
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


def check_release(key: Key, release: Release, vector: jax.Array) -> None:
    """Raises `InputError` unless the mechanism returns finite values of one shape."""
    try:
        output = jax.jit(release)(key, vector)
    except InputError:
        raise
    except Exception as error:
        first_line = str(error).strip().split("\n")[0]
        raise InputError(
            "the mechanism failed on a vector of "
            f"{vector.size} numbers: {type(error).__name__}: {first_line}; it must be "
            "a function (key, vector) -> vector in jax.numpy"
        ) from error
    shape = getattr(output, "shape", type(output).__name__)
    if shape != vector.shape:
        raise InputError(
            f"the mechanism must return the shape of its input, {vector.shape}, "
            f"got {shape}"
        )
    bad = int(jnp.sum(~jnp.isfinite(output)))
    if bad:
        raise InputError(
            f"the mechanism returned {bad} of {vector.size} values that are NaN or "
            "infinite for a finite vector"
        )


def _pilot_trials(trials: int) -> int:
    return max(100, int(PILOT * trials))


def _choose(
    key: Key,
    release: Release,
    choices: tuple[Pair, ...],
    claim: Claim,
    trials: int,
    advance: Callable[[int], None],
) -> tuple[Pair, Statistic, float]:
    """Returns the pair, statistic and threshold with the largest bound in a pilot."""
    found = []
    for index, pair in enumerate(choices):
        pair_key = jax.random.fold_in(key, index)
        played = _play(pair_key, release, pair, STATISTICS, trials, advance)
        for statistic, part in zip(STATISTICS, played, strict=True):
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


def _play(
    key: Key,
    release: Release,
    pair: Pair,
    statistics: tuple[Statistic, ...],
    trials: int,
    advance: Callable[[int], None],
) -> tuple[Trials, ...]:
    """Returns trials for every statistic, on the same outputs."""
    numbers = pair.vectors.shape[1]
    size = min(trials, max(_SMALLEST_CHUNK, min(_NUMBERS // numbers, _LARGEST_CHUNK)))
    firsts, scores = [], []
    for index, start in enumerate(range(0, trials, size)):
        keys = jax.random.split(jax.random.fold_in(key, index), size)
        first, score = _play_chunk(release, statistics, keys, pair.vectors)
        count = min(size, trials - start)
        firsts.append(np.asarray(first)[:count])
        scores.append(np.asarray(score)[:count])
        advance(count)
    chosen, table = np.concatenate(firsts), np.concatenate(scores)
    return tuple(Trials(chosen, column) for column in table.T)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _play_chunk(
    release: Release,
    statistics: tuple[Statistic, ...],
    keys: jax.Array,
    vectors: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    def trial(key: Key) -> tuple[jax.Array, jax.Array]:
        choice_key, release_key = jax.random.split(key)
        first = jax.random.bernoulli(choice_key)
        output = release(release_key, jnp.where(first, vectors[0], vectors[1]))
        scores = jnp.stack([entry.score(output, vectors) for entry in statistics])
        broken = ~jnp.all(jnp.isfinite(output))
        return first, jnp.where(broken, jnp.nan, scores)

    return jax.vmap(trial)(keys)
