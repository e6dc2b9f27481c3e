"""The verdict on a claim, with its reasons, and what each adversary is given."""

import dataclasses
import functools
import math

from gradaudit.federation.setting import Selection
from gradaudit.mechanism import Mechanism, Point
from gradaudit.privacy.events import Events, FloatArray, Unit
from gradaudit.privacy.methods import spend
from gradaudit.privacy.plan import PrivacyPlan, is_noise, is_pure

TRUTH_METHOD = "pld"

# Where an adversary of each type reads what the noise of these points has changed.
NOISE_BEFORE = {
    0: (Point.PER_EXAMPLE, Point.UPDATE, Point.SERVER),
    1: (Point.PER_EXAMPLE, Point.UPDATE),
    2: (Point.PER_EXAMPLE,),
}

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
PARTIAL = "Only {coordinates} get noise; the rest is released as it is."
READ_BEFORE = "The noise is added after this adversary has read."
SHARED_DRAW = "One draw hides the batch sum; the examples in it share that draw."


@dataclasses.dataclass(frozen=True)
class Guarantee:
    """Whether the claim holds for this run, with the reasons why not as sentences.

    `holds` is one sentence: what holds for the run, however the claim fares.
    `claimed_multiplier` and `effective_multiplier` are the weakest over the rounds:
    sigma for Gaussian noise, 1 / epsilon of one release for pure mechanisms.
    """

    reasons: tuple[str, ...]
    notes: tuple[str, ...]
    claimed_multiplier: float
    effective_multiplier: float
    holds: str = ""

    @property
    def valid(self) -> bool:
        """Returns whether nothing speaks against the claim."""
        return not self.reasons

    @property
    def verdict(self) -> str:
        """Returns `valid` or `not valid`."""
        return "valid" if self.valid else "not valid"


def judge(plan: PrivacyPlan) -> Guarantee:
    """Returns the verdict on the plan's claim; the sentence `holds` is left empty."""
    mechanisms = plan.mechanisms
    if not mechanisms:
        return Guarantee((NO_MECHANISM,), (), 0.0, 0.0)
    claimed = min(_weakest(m, plan.stated_noise(m)) for m in mechanisms)
    effective = min(
        0.0 if m.data_dependent else _weakest(m, plan.effective_noise(m))
        for m in mechanisms
    )
    broken = [why for m in mechanisms for why in _broken(plan, m)]
    if not any(m.coordinates.startswith("all") for m in mechanisms):
        broken.append(PARTIAL.format(coordinates=mechanisms[0].coordinates))
    said = [] if broken else [caveat for m in mechanisms for caveat in m.caveats]
    broken += _drawn_otherwise(plan)
    return Guarantee(
        reasons=tuple(dict.fromkeys(broken)),
        notes=tuple(dict.fromkeys(said)),
        claimed_multiplier=claimed,
        effective_multiplier=effective,
    )


def _drawn_otherwise(plan: PrivacyPlan) -> list[str]:
    """Returns where this run does not sample as the claim counts."""
    found = []
    if plan.draw.fixed:
        draws = "Batches" if plan.unit is Unit.EXAMPLE else "Rounds"
        found.append(
            f"{draws} have a fixed size; the claim counts independent coins (Poisson "
            "sampling), which this run does not throw."
        )
    if plan.holders > 1:
        found.append(
            f"One example is held by up to {plan.copies:,} clients, of which up to "
            f"{plan.holders:,} take part in a round; the claim counts one."
        )
    if plan.setting.selection is Selection.ACTIVE:
        found.append(
            "Active selection looks at the clients' losses, which get no noise: who "
            "takes part depends on the private data, and no draw of clients hides "
            "anything."
        )
    return found


def _broken(plan: PrivacyPlan, mechanism: Mechanism) -> list[str]:
    """Returns why one mechanism's claim does not hold, in numbers where there are."""
    claimed, tensors = plan.stated_noise(mechanism), plan.tensors
    if not is_noise(claimed):
        return [NO_NOISE]
    if any(mechanism.clip(t) is None for t in range(plan.setting.rounds)):
        return [NO_BOUND]
    found = [DATA_DEPENDENT] if mechanism.data_dependent else []
    before = _weakest(mechanism, claimed)
    after = _weakest(mechanism, plan.effective_noise(mechanism))
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
        reason = _exposed(plan, leakage)
        if reason:
            nothing = Seen(0, 0, math.inf)
            return View(leakage, 1.0, nothing, nothing, reason)
        # Only how often an example is used differs by more than the rounds.
        uses = leakage == 2 and plan.unit is Unit.EXAMPLE
        usual = seen(uses, plan.rounds_taken(high=False), False)
        high = seen(uses, plan.rounds_taken(high=True), uses)
        rate = plan.draw.rate if plan.unit is Unit.EXAMPLE and not uses else 1.0
        if math.isinf(usual.epsilon):
            reason = "The noise is so small that this bound overflows."
        return View(leakage, rate, usual, high, reason)

    return view(0), view(1), view(2)


def _exposed(plan: PrivacyPlan, leakage: int) -> str:
    """Returns why what this adversary reads has no noise that holds, or nothing."""
    if not plan.mechanisms:
        return "There is no noise."
    before = [m for m in plan.mechanisms if m.point in NOISE_BEFORE[leakage]]
    if not before:
        return READ_BEFORE
    if leakage == 2 and all(m.on_batch_sum for m in before):
        return SHARED_DRAW
    return "" if plan.has_noise() else "No noise scale holds for every batch."


def tight_epsilon(events: Events | None, delta: float) -> float:
    """Returns epsilon by loss distribution; infinite where something is exact."""
    return spend(TRUTH_METHOD, events, delta).epsilon if events else math.inf
