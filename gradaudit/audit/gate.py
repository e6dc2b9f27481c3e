"""Gates: is the success rate above a limit, and how many victims does it take to say?

The sequential test is a mixture likelihood ratio (Robbins 1970; "e-process"). Let l be
the limit and s of n victims be rebuilt. For any rate t < l the product

    (t / l)^s ((1 - t) / (1 - l))^(n - s)

is a nonnegative supermartingale whatever the true rate p >= l: one victim multiplies it
by p t / l + (1 - p) (1 - t) / (1 - l) on average, which falls in p and is 1 at p = l.
So is every mixture over t, here half at t = 0 and half uniform on [0, l]. By Ville's
inequality it ever reaches 1 / alpha with probability at most alpha: whoever says "held"
then is wrong in at most 5 % of runs, however often they looked. "Broken" is the mirror
image, uniform on [l, 1].

Victims must be independent: each has a network of its own. Those of one batch are drawn
without replacement, which only makes the products smaller on average, as they are
convex functions of a sum (Hoeffding 1963, theorem 4).
"""

import dataclasses
import enum
import functools
import math
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import special

from gradaudit.audit.attack import DEFAULT_DATASET, attack
from gradaudit.audit.attack_result import AttackResult
from gradaudit.audit.informed import LINE_UPS
from gradaudit.data import load_dataset
from gradaudit.errors import InputError
from gradaudit.report import metrics
from gradaudit.report.result import claim
from gradaudit.spec import Spec
from gradaudit.types import Leakage

ALPHA = 0.05
_FIRST, _LARGEST = 4, 64  # victims of the first batch, and of any
_PATIENCE = 50  # over the limit: victims after which it stays unclear
_MANY = 10**5  # victims that nobody attacks
Tell = Callable[[int, int], None]


class Verdict(enum.Enum):
    """What a gate says."""

    HELD = "held"
    BROKEN = "broken"
    UNCLEAR = "unclear"


def evidence(successes: int, victims: int, limit: float) -> tuple[float, float]:
    """Returns the logs of the evidence that the rate is below, and above, the limit.

    Either reaches log(1 / alpha) with probability at most alpha if it is wrong, at any
    number of looks.
    """
    hits, misses = successes, victims - successes
    null = special.xlogy(hits, limit) + special.xlog1py(misses, -limit)
    whole = special.betaln(hits + 1, misses + 1)
    with np.errstate(divide="ignore"):
        low = whole + np.log(special.betainc(hits + 1, misses + 1, limit) / limit)
        high = whole + np.log(
            special.betaincc(hits + 1, misses + 1, limit) / (1 - limit)
        )
    never = 0.0 if hits == 0 else -math.inf  # the log-likelihood of the rate 0
    below = np.logaddexp(low, never) - math.log(2) - null
    return float(below), float(high - null)


def decide(successes: int, victims: int, limit: float) -> Verdict:
    """Returns the sequential test's answer so far."""
    below, above = evidence(successes, victims, limit)
    if below >= -math.log(ALPHA):
        return Verdict.HELD
    return Verdict.BROKEN if above >= -math.log(ALPHA) else Verdict.UNCLEAR


def judge(rate: metrics.Rate, limit: float) -> Verdict:
    """Returns what a fixed number of victims says, by the rate's 95 % interval."""
    if rate.low > limit:
        return Verdict.BROKEN
    return Verdict.HELD if rate.high <= limit else Verdict.UNCLEAR


@functools.cache
def victims_needed(limit: float, draws: int | None = None) -> int | None:
    """Returns how many victims without a success hold the limit; None if none do.

    Without `draws` every victim has a draw of the network of its own; one draw alone
    speaks of itself only, and a few can't hold a small limit however many victims.
    """

    def holds(victims: int) -> bool:
        dealt = np.array_split(np.arange(victims), draws or victims)
        sizes = [len(each) for each in dealt]
        return metrics.rate_over_draws([0] * len(sizes), sizes).high <= limit

    low, high = (draws or 1) - 1, _MANY
    if not holds(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def attack_until_clear(
    max_asr: float,
    seed: int = 0,
    line_ups: int = LINE_UPS,
    progress: Tell | None = None,
    keep: pathlib.Path | str | None = None,
    overwrite: bool = False,
    **asked: Any,
) -> AttackResult:
    """Attacks victims in growing batches until it is clear whether a limit holds.

    Guarantee: "held" is wrong in at most 5 % of runs, and so is "broken"; see the top
    of this file. Every victim has a draw of the network of its own. After 50 / limit
    victims it remains unclear. `beside["gate"]` of the result says what came out.

    Args:
      max_asr: the limit, in (0, 1).
      seed: everything random follows from it.
      line_ups: that are played beside the first batch, see `attack`.
      progress: is told (victims attacked, victims at most).
      keep: a folder in which victims are kept, see `attack`; batches have their own.
      overwrite: begin anew, whatever is in `keep`.
      **asked: what `attack` takes, without victims and draws.
    """
    if not 0 < max_asr < 1:
        raise InputError(f"the limit must lie in (0, 1) to be tested, got {max_asr}")
    trained = (asked.get("run"), asked.get("params"), asked.get("round") or None)
    if any(given is not None for given in trained):
        raise InputError(
            "victims=auto draws the network anew for every victim: it attacks no "
            "training that took place; give a number of victims"
        )
    described = {name: value for name, value in asked.items() if name != "slots"}
    spec = Spec.of(
        "attack-gate", max_asr=max_asr, seed=seed, line_ups=line_ups, **described
    )
    if keep is not None:
        claim(pathlib.Path(keep), spec, overwrite)
    most = math.ceil(_PATIENCE / max_asr)
    parts: list[AttackResult] = []
    verdict, interrupted, victims = Verdict.UNCLEAR, False, 0
    largest = min(_LARGEST, _examples(asked))
    while victims < most and verdict is Verdict.UNCLEAR and not interrupted:
        number = len(parts)
        size = min(_next_batch(_successes(parts), victims, max_asr), largest)

        def tell(done: int, total: int, before: int = victims) -> None:
            if progress is not None:
                progress(before + done, most)

        folder = None
        if keep is not None:
            folder = pathlib.Path(keep) / "batches" / f"{number:03d}"
            folder.mkdir(parents=True, exist_ok=True)
        try:
            part = attack(
                **asked,
                victims=size,
                draws=size,
                seed=_seed(seed, number),
                progress=tell,
                keep=folder,
                overwrite=overwrite,
                line_ups=0 if parts else line_ups,
            )
        except KeyboardInterrupt:
            if not parts:
                raise
            interrupted = True
            break
        parts.append(part)
        interrupted, victims = part.interrupted, victims + part.asked
        if not interrupted:
            verdict = decide(_successes(parts), victims, max_asr)
    return _joined(parts, spec, max_asr, verdict, interrupted)


def _examples(asked: dict[str, Any]) -> int:
    """Returns how many victims the data set has at most."""
    data = load_dataset(asked.get("dataset", DEFAULT_DATASET))
    several = 1 if asked.get("type", 2) == Leakage.EXAMPLE else 3
    each = (asked.get("batch_size") or several) * asked.get("local_steps", 1)
    return max(1, len(data) // max(1, int(each)))


def _next_batch(successes: int, victims: int, limit: float) -> int:
    """Returns how many to attack next: half as many again, but none for nothing.

    If none of them is rebuilt, the last one is the one that the answer needs.
    """
    size = max(_FIRST, victims // 2)
    if decide(successes, victims + size, limit) is not Verdict.HELD:
        return size
    for more in range(1, size):
        if decide(successes, victims + more, limit) is Verdict.HELD:
            return more
    return size


def _seed(seed: int, batch: int) -> int:
    """Returns a batch's own seed."""
    words = np.random.SeedSequence([seed % 2**64, batch]).generate_state(1, np.uint32)
    return int(words[0])


def _successes(parts: list[AttackResult]) -> int:
    return sum(1 for part in parts for score in part.scores if score.success)


def _joined(
    parts: list[AttackResult],
    spec: Spec,
    limit: float,
    verdict: Verdict,
    interrupted: bool,
) -> AttackResult:
    """Returns all batches as one result; victims are counted through."""
    offsets = np.cumsum([0, *(part.asked for part in parts)]).tolist()
    numbered = list(zip(parts, offsets, strict=False))
    first, victims = parts[0], offsets[-1]
    guessed = round(sum(part.guess.value * len(part.scores) for part in parts))
    seconds = {
        name: sum(part.timing[name] for part in parts)
        for name in ("compile_s", "run_s", "total_s")
    }
    rate = victims / max(seconds["run_s"], 1e-9)
    scores = [
        dataclasses.replace(score, victim=score.victim + base, draw=score.victim + base)
        for part, base in numbered
        for score in part.scores
    ]
    limitations = [text for part in parts for text in part.limitations]
    below, above = evidence(_successes(parts), victims, limit)
    gate = {
        "limit": limit,
        "verdict": verdict.value,
        "victims": victims,
        "successes": _successes(parts),
        "test": "sequential: mixture likelihood ratio, Ville's inequality",
        "error_rate": ALPHA,
        "log_evidence": {"below": below, "above": above},
    }
    return dataclasses.replace(
        first,
        spec=spec,
        about=first.about | {"victims": victims, "seed": spec.arguments["seed"]},
        scores=scores,
        traces=[trace for part in parts for trace in part.traces],
        draws=victims,
        missing=[i + base for part, base in numbered for i in part.missing],
        guess=metrics.rate(guessed, len(scores)),
        timing=seconds | {"victims_per_s": rate},
        limitations=list(dict.fromkeys([*limitations, _SAID])),
        inputs=np.concatenate([part.inputs for part in parts]),
        truth=np.concatenate([part.truth for part in parts]),
        members=[each for part in parts for each in part.members],
        interrupted=interrupted,
        beside=first.beside | {"gate": gate},
    )


_SAID = (
    "The victims were attacked until a sequential test was clear: the gate's verdict "
    "keeps its error rate, the 95 % interval is that of a fixed number of victims."
)
