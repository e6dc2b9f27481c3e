"""The verdict on a claim, with its reasons, and what each adversary is given."""

import dataclasses
import functools
import math

from gradaudit.federation.setting import Selection
from gradaudit.mechanism import Mechanism, Point
from gradaudit.privacy.events import Events, FloatArray, Unit
from gradaudit.privacy.methods import spend
from gradaudit.privacy.plan import (
    PrivacyPlan,
    effective_noise,
    is_noise,
    is_pure,
    stated_noise,
)

TRUTH_METHOD = "pld"


NO_MECHANISM = "The defense adds no calibrated noise, so it has no epsilon at all."


NO_NOISE = "The noise multiplier is 0 in some round: what is released there is exact."


NO_BOUND = (
    "Nothing bounds what one unit can change, so the noise has no sensitivity and "
    "there is no differential privacy guarantee."
)


DATA_DEPENDENT = (
    "The noise scale is computed from the private batch (data-dependent sensitivity): "
    "it leaks by itself, and it can be zero."
)


FIXED_SIZE = (
    "{draws} have a fixed size; the claim counts independent coins (Poisson sampling), "
    "which this run does not throw."
)


SHARED = (
    "One example is held by up to {copies:,} clients, of which up to {holders:,} take "
    "part in a round; the claim counts one."
)


ACTIVE = (
    "Active selection looks at the clients' losses, which get no noise: who takes part "
    "depends on the private data, and no draw of clients hides anything."
)


PARTIAL = "Only {coordinates} get noise; the rest is released as it is."


@dataclasses.dataclass(frozen=True)
class Guarantee:
    """Whether the claim holds for this run, with reasons as sentences.

    `holds` is one sentence: what holds for the run, however the claim fares.
    `claimed_multiplier` and `effective_multiplier` are the weakest over the rounds:
    sigma for Gaussian noise, 1 / epsilon of one release for pure mechanisms.
    """

    valid: bool
    reasons: tuple[str, ...]
    notes: tuple[str, ...]
    claimed_multiplier: float
    effective_multiplier: float
    holds: str = ""

    @property
    def verdict(self) -> str:
        """Returns `valid` or `not valid`."""
        return "valid" if self.valid else "not valid"


def judge(plan: PrivacyPlan) -> Guarantee:
    """Returns the verdict on the plan's claim; the sentence `holds` is left empty."""
    mechanisms, rounds, tensors = plan.mechanisms, plan.setting.rounds, plan.tensors
    if not mechanisms:
        return Guarantee(False, (NO_MECHANISM,), (), 0.0, 0.0)
    claimed = min(_weakest(m, stated_noise(m, rounds)) for m in mechanisms)
    effective = min(
        0.0 if m.data_dependent else _weakest(m, effective_noise(m, rounds, tensors))
        for m in mechanisms
    )
    broken = [why for m in mechanisms for why in _broken(m, rounds, tensors)]
    if not any(m.coordinates.startswith("all") for m in mechanisms):
        broken.append(PARTIAL.format(coordinates=mechanisms[0].coordinates))
    said = [] if broken else [caveat for m in mechanisms for caveat in m.caveats]
    broken += _drawn_otherwise(plan)
    return Guarantee(
        valid=not broken,
        reasons=_distinct(broken),
        notes=_distinct(said),
        claimed_multiplier=claimed,
        effective_multiplier=effective,
    )


def _drawn_otherwise(plan: PrivacyPlan) -> list[str]:
    """Returns where this run does not sample as the claim counts."""
    found = []
    if plan.draw.fixed:
        draws = "Batches" if plan.unit is Unit.EXAMPLE else "Rounds"
        found.append(FIXED_SIZE.format(draws=draws))
    if plan.holders > 1:
        found.append(SHARED.format(copies=plan.copies, holders=plan.holders))
    if plan.setting.selection is Selection.ACTIVE:
        found.append(ACTIVE)
    return found


def _broken(mechanism: Mechanism, rounds: int, tensors: int) -> list[str]:
    """Returns why one mechanism's claim does not hold, in numbers where there are."""
    claimed = stated_noise(mechanism, rounds)
    if not is_noise(claimed):
        return [NO_NOISE]
    if any(mechanism.clip(t) is None for t in range(rounds)):
        return [NO_BOUND]
    found = [DATA_DEPENDENT] if mechanism.data_dependent else []
    effective = effective_noise(mechanism, rounds, tensors)
    before, after = _weakest(mechanism, claimed), _weakest(mechanism, effective)
    if after >= before * (1 - 1e-9):
        return found
    if mechanism.per_tensor and tensors > 1:
        root = "sqrt(M)" if mechanism.norm == 2 else "M"
        found.append(
            f"Each of the M = {tensors} tensors is clipped to C on its own, so one "
            f"unit can change the release by C * {root}; the claim counts C. The "
            f"noise multiplier that holds is {after:.4g}, not {before:.4g}."
        )
    else:
        found.append(
            f"The noise is scaled to {mechanism.sensitivity(0):.4g} while one unit "
            f"can change the release by {mechanism.clip(0):.4g}: the noise multiplier "
            f"that holds is {after:.4g}, not {before:.4g}."
        )
    return found


def _weakest(mechanism: Mechanism, noise: FloatArray) -> float:
    if not is_pure(mechanism):
        return float(noise.min())
    largest = float(noise.max())
    return 1 / largest if largest > 0 and not math.isinf(largest) else 0.0


def _distinct(sentences: list[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(sentences))


@dataclasses.dataclass(frozen=True)
class Seen:
    """What a reader of a client that takes part in so many rounds can learn."""

    participations: int
    releases: int
    epsilon: float


@dataclasses.dataclass(frozen=True)
class View:
    """What an adversary of one type can learn about one unit, by PLD.

    `usual` is a client that takes part as often as expected, `high` one that 95 % of
    the clients don't exceed; both are the run's most frequent client where the plan
    knows it. `reason` says why epsilon is infinite, if it is.
    """

    leakage: int
    q: float
    usual: Seen
    high: Seen
    reason: str = ""

    @property
    def epsilon(self) -> float:
        """Returns what is learned of a client that takes part as often as expected."""
        return self.usual.epsilon

    @property
    def releases(self) -> int:
        """Returns how many releases of such a client are read."""
        return self.usual.releases


def views_of(plan: PrivacyPlan, delta: float) -> tuple[View, ...]:
    """Returns what the adversaries of types 0, 1 and 2 are given."""

    @functools.cache
    def seen(uses: bool, rounds: int, high: bool) -> Seen:
        events = plan.seen(rounds, uses=uses, high=high)
        if events is None:
            return Seen(rounds, 0, 0.0)
        return Seen(rounds, events.steps, tight_epsilon(events, delta))

    def view(leakage: int) -> View:
        reason = _exposed(plan.mechanisms, leakage)
        if not reason and not plan.has_noise():
            reason = "No noise scale holds for every batch."
        if reason:
            nothing = Seen(0, 0, math.inf)
            return View(leakage, 1.0, nothing, nothing, reason)
        # Only how often an example is used differs by more than the rounds.
        uses = leakage == 2 and plan.unit is Unit.EXAMPLE
        usual = seen(uses, plan.usual_participations(), False)
        high = seen(uses, plan.high_participations(), uses)
        rate = plan.draw.rate if plan.unit is Unit.EXAMPLE and not uses else 1.0
        if math.isinf(usual.epsilon):
            reason = "The noise is so small that this bound overflows."
        return View(leakage, rate, usual, high, reason)

    return view(0), view(1), view(2)


def _exposed(mechanisms: tuple[Mechanism, ...], leakage: int) -> str:
    """Returns why this adversary reads what has no noise yet, or nothing."""
    if not mechanisms:
        return "There is no noise."
    reads = {
        0: (Point.PER_EXAMPLE, Point.UPDATE, Point.SERVER),
        1: (Point.PER_EXAMPLE, Point.UPDATE),
        2: (Point.PER_EXAMPLE,),
    }[leakage]
    before = [m for m in mechanisms if m.point in reads]
    if not before:
        return "The noise is added after this adversary has read."
    if leakage == 2 and all(m.on_batch_sum for m in before):
        return "One draw hides the batch sum; the examples in it share that draw."
    return ""


def tight_epsilon(events: Events | None, delta: float) -> float:
    """Returns epsilon by loss distribution; infinite where something is exact."""
    return spend(TRUTH_METHOD, events, delta).epsilon if events else math.inf
