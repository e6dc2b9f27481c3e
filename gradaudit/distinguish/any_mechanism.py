"""Empirical epsilon of any mechanism: worst-case pairs, statistics, a sound bound."""

import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradaudit import machine
from gradaudit.data import load_dataset
from gradaudit.defenses.transforms import Defense
from gradaudit.distinguish.bounds import (
    CAVEATS,
    SIGNIFICANCE,
    Verdict,
    ceiling,
    check_epsilon,
    check_significance,
    judge,
    library_estimates,
    lower_bound,
    trials_needed,
)
from gradaudit.distinguish.game import (
    Advance,
    Tell,
    Trials,
    check_trials,
    ignore,
    keys_over_devices,
    play_in_chunks,
    reporting,
)
from gradaudit.distinguish.subjects import (
    DELTA,
    Claim,
    Neighbours,
    Pair,
    Release,
    check_release,
    load_subject,
)
from gradaudit.errors import InputError, check_seed
from gradaudit.models.model import Model
from gradaudit.models.networks import build_model
from gradaudit.report.result import SCHEMA_VERSION, Result
from gradaudit.spec import Spec
from gradaudit.text import users_code
from gradaudit.types import Key

TRIALS = 100_000
PILOT = 0.1  # share of the trials that each pair gets in the pilot, on top
# Tails, where small noise shows, and the middle, where a randomizer's answer shows.
_QUANTILES = np.concatenate([np.geomspace(1e-3, 0.1, 12), np.linspace(0.15, 0.5, 8)])
_NUMBERS = 2**22  # held at a time: trials x coordinates
_SMALLEST_CHUNK, _LARGEST_CHUNK = 2**6, 2**14  # trials
_TINY = 1e-12


def _projection(output: jax.Array, pair: jax.Array) -> jax.Array:
    """Returns <output, g1 - g2>: the likelihood ratio of Gaussian noise."""
    return jnp.vdot(output, pair[0] - pair[1])


def _magnitude(output: jax.Array, pair: jax.Array) -> jax.Array:
    """Returns the norm of the output."""
    del pair
    norm: jax.Array = jnp.linalg.norm(output)
    return norm


def _smallness(output: jax.Array, pair: jax.Array) -> jax.Array:
    """Returns the negative norm of the output."""
    return -_magnitude(output, pair)


def _consistency(output: jax.Array, pair: jax.Array) -> jax.Array:
    """Returns log(misfit of g2 / misfit of g1) of a projection of it onto a line.

    The projection w = <g, v> v satisfies |<w, g>| = |w|^2 for its own g only. LDP-SGD
    must send sgn(<g, v>) v: without the sign function the length of w gives g away.
    """
    misfits = jnp.abs(jnp.abs(pair @ output) - jnp.vdot(output, output))
    logs = jnp.log(misfits + _TINY)
    return logs[1] - logs[0]


# Scores of an output, (d,), that is of one of the pair, (2, d); larger: of the first.
STATISTICS: dict[str, Callable[[jax.Array, jax.Array], jax.Array]] = {
    "projection": _projection,
    "magnitude": _magnitude,
    "smallness": _smallness,
    "consistency": _consistency,
}


@dataclasses.dataclass(frozen=True)
class ReleaseGame:
    """A mechanism, and how many trials are played at a time, told to whom.

    Every game runs one program, `size` trials at a time, so that it compiles once.
    """

    release: Release
    size: int
    advance: Advance

    def play(self, key: Key, pair: Pair, trials: int) -> dict[str, Trials]:
        """Returns trials for every statistic, on the same outputs."""

        def chunk(part_key: Key, count: int) -> tuple[jax.Array, jax.Array]:
            del count  # the pilot runs the test's program
            keys = keys_over_devices(part_key, self.size)
            played: tuple[jax.Array, jax.Array]
            played = _play_chunk(self.release, pair.vectors, keys)
            return played

        played = play_in_chunks(key, trials, self.size, chunk, self.advance)
        return dict(zip(STATISTICS, played, strict=True))


def chunk_size(trials: int, numbers: int) -> int:
    """Returns how many trials to play at a time on vectors of so many numbers."""
    return min(trials, max(_SMALLEST_CHUNK, min(_NUMBERS // numbers, _LARGEST_CHUNK)))


@functools.partial(jax.jit, static_argnums=0)
def _play_chunk(release: Release, vectors: jax.Array, keys: jax.Array) -> Any:
    def trial(vectors: jax.Array, key: Key) -> tuple[jax.Array, jax.Array]:
        choice_key, release_key = jax.random.split(key)
        first = jax.random.bernoulli(choice_key)
        output = release(release_key, jnp.where(first, vectors[0], vectors[1]))
        scores = jnp.stack([score(output, vectors) for score in STATISTICS.values()])
        broken = ~jnp.all(jnp.isfinite(output))
        return first, jnp.where(broken, jnp.nan, scores)

    return machine.over_units(jax.vmap(trial, (None, 0)), shared=1)(vectors, keys)


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

    def plain(self) -> dict[str, Any]:
        """Returns the fields as JSON holds them."""
        return dataclasses.asdict(self) | {"verdict": self.verdict.value}


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
    advance: Advance = ignore,
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
    pilot_key, test_key, check_key = jax.random.split(key, 3)
    check_release(check_key, release, choices[0].vectors[0])
    size = chunk_size(trials, choices[0].vectors.shape[1])
    game = ReleaseGame(release, size, advance)
    chosen = _choose(pilot_key, game, choices, claim, _pilot_trials(trials))
    pair, statistic, threshold = chosen
    played = game.play(test_key, pair, trials)[statistic]
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
        statistic=statistic,
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
) -> tuple[Pair, str, float]:
    """Returns the pair, statistic and threshold with the largest bound in a pilot."""
    found = []
    for index, pair in enumerate(choices):
        played = game.play(jax.random.fold_in(key, index), pair, trials)
        for statistic, part in played.items():
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


@dataclasses.dataclass(frozen=True)
class MechanismReport(Result):
    """An audit of one mechanism's claim, and how to run it again."""

    spec: Spec
    name: str
    result: ReleaseResult
    caveats: tuple[str, ...]
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Returns the content of result.json."""
        result = self.result
        return {
            "schema_version": SCHEMA_VERSION,
            "spec": self.spec.plain(),
            "environment": machine.describe(),
            "status": "done",
            "mechanism": self.name,
            "metrics": {
                "claimed": result.claim.epsilon,
                "lower_bound": result.lower_bound,
                "verdict": result.verdict.value,
            },
            "result": result.plain(),
            "caveats": list(self.caveats),
            "timing": {"total_s": round(self.seconds, 3)},
            "limitations": list(CAVEATS),
        }


def mechanism_audit(
    mechanism: str | Defense,
    *,
    epsilon: float | None = None,
    delta: float = DELTA,
    neighbours: Neighbours | None = None,
    dataset: str = "digits",
    model: str | Model = "ldp-cnn",
    trials: int = TRIALS,
    significance: float = SIGNIFICANCE,
    seed: int = 0,
    progress: Tell | None = None,
) -> MechanismReport:
    """Tests the claim of a defense, or of a function in a file, as a black box.

    Args:
      mechanism: `fed-cdp:clip=4,sigma=6`, `file.py:defense`, `file.py:function`, where
        the function is `(key, vector) -> vector` in jax.numpy, or a defense.
      epsilon: the claim; a defense's own when absent, required for a function.
      delta: of the claim of Gaussian noise.
      neighbours: which pairs the claim covers, see `Neighbours`.
      dataset: the data whose shapes the model has.
      model: whose parameters have the shapes of what the mechanism gets, or its name.
      trials: of the test.
      significance: 1 - confidence of the bound.
      seed: everything random follows from it.
      progress: `progress(label, done, total)` is told about the trials.

    SIGINT and SIGTERM raise KeyboardInterrupt: half a test proves nothing.
    """
    arguments = {k: v for k, v in locals().items() if k != "progress"}
    check_trials(trials)
    check_significance(significance)
    check_seed(seed)
    if not 0 <= delta < 1:
        raise InputError(f"delta must lie in [0, 1), got {delta}")
    if epsilon is not None:
        check_epsilon(epsilon)
    spec = Spec.of("ldp-mechanism", **arguments)
    machine.configure()
    data = load_dataset(dataset)
    if isinstance(model, str):
        model = build_model(model, data.shape, data.classes)
    key = jax.random.key(seed)
    shapes = jax.eval_shape(model.init, key)  # a mechanism sees no parameters
    params = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    subject = load_subject(
        mechanism, params, neighbours=neighbours, epsilon=epsilon, delta=delta
    )
    total = total_trials(len(subject.pairs), trials)
    start = time.perf_counter()
    with reporting(total, progress) as report, users_code():
        result = audit_release(
            jax.random.fold_in(key, 1),
            subject.release,
            subject.pairs,
            subject.claim,
            closed_form=subject.closed_form,
            trials=trials,
            significance=significance,
            advance=lambda played: report(subject.name, played),
        )
    seconds = time.perf_counter() - start
    return MechanismReport(spec, subject.name, result, subject.caveats, seconds)
