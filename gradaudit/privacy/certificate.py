"""The certificate: an upper bound on *any* adversary's success, from the noise alone.

Whoever succeeds with probability kappa before reading succeeds with at most
sup P(E) over events E of probability kappa under a reference that does not depend on
the secret (Hayes et al. 2023; Balle et al. 2022): Phi(Phi^-1(kappa) + mu) for Gaussian
releases, min over epsilon of e^epsilon * kappa + delta(epsilon) in general. The proof,
and where the bound is loose, is in docs/certificate.md.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import optimize, special

from gradaudit.errors import InputError
from gradaudit.mechanism import Mechanism, Point
from gradaudit.privacy.events import Events, Unit, gaussian, pure
from gradaudit.privacy.guarantee import (
    DATA_DEPENDENT,
    NO_BOUND,
    NO_MECHANISM,
    NO_NOISE,
    PARTIAL,
)
from gradaudit.privacy.guessing import Prior, among, near
from gradaudit.privacy.loss import LossDistribution
from gradaudit.privacy.plan import PrivacyPlan, is_noise, is_pure

__all__ = ["Certificate", "Prior", "among", "certificate", "least_sigma", "near"]

READ_BEFORE = "The noise is added after this adversary has read."
SHARED_DRAW = "One draw hides the batch sum; the examples in it share that draw."
_BEFORE = {
    0: (Point.PER_EXAMPLE, Point.UPDATE, Point.SERVER),
    1: (Point.PER_EXAMPLE, Point.UPDATE),
    2: (Point.PER_EXAMPLE,),
}
_READS = {
    0: "the client's update at the server",
    1: "the client's update at the client",
    2: "the example's own noisy gradient",
}
_RESOLUTION = 0.02  # of the loss distribution: closed form and profile within 1 %


@dataclasses.dataclass(frozen=True)
class Certificate:
    """Nobody who reads this view succeeds with more than `value`; None: no bound.

    `method` says how it was computed, `assumptions` what it rests on, `reason` why
    there is none, as sentences.
    """

    value: float | None
    prior: Prior
    method: str = ""
    assumptions: tuple[str, ...] = ()
    reason: str = ""

    @property
    def kappa(self) -> float:
        """What is reached without reading."""
        return self.prior.mass

    def to_dict(self) -> dict[str, Any]:
        """Returns the certificate as result.json has it."""
        return {
            "value": self.value,
            "kappa": self.kappa,
            "prior": self.prior.says,
            "confidence": self.prior.confidence,
            "method": self.method,
            "assumptions": list(self.assumptions),
            "reason": self.reason,
        }


def certificate(
    plan: PrivacyPlan,
    *,
    type: int = 2,  # noqa: A002 - the contract's word
    candidates: int | None = None,
    prior: Prior | None = None,
    looks: int | None = None,
    round: int | None = None,  # noqa: A002 - the contract's word
) -> Certificate:
    """Returns an upper bound on anybody's success who has the view of this type.

    With `looks`, the adversary knows that the victim is in what it reads, so often:
    its own noisy gradient (type 2), or the updates of a client whose whole batches are
    the victim (types 0 and 1; B and L are the setting's). Without, it reads everything
    of one client in the plan's whole training, and the victim is one unit of the plan;
    in types 0 and 1 it does not know which examples a batch holds.

    Args:
      plan: the defense in its setting.
      type: where the adversary reads: 0, 1 or 2.
      candidates: of a line-up, n; or give a prior.
      prior: what is reached without reading (`among`, `near`).
      looks: how many observations of the victim there are; None: the whole training.
      round: whose noise it is; None: the round with the least.
    """
    if type not in _BEFORE:
        raise InputError(f"type must be 0, 1 or 2, got {type}")
    if (candidates is None) == (prior is None):
        raise InputError(
            "a certificate needs either the number of candidates or a prior"
        )
    if not (looks is None or looks >= 1):
        raise InputError(f"looks must be at least 1, got {looks}")
    known = among(candidates) if candidates is not None else prior
    assert known is not None
    if known.reason:
        return Certificate(None, known, reason=known.reason)
    views = _views(plan, type, looks, round)
    if isinstance(views, str):
        return Certificate(None, known, reason=views)
    # Each place's noise bounds what is read on its own: what follows it only
    # processes its release, what precedes it only changes what goes in.
    value, method = min(bound(known.mass, events) for events in views)
    said = _assumptions(plan, type, looks, known)
    return Certificate(value, known, method, said)


def bound(kappa: float, events: Events) -> tuple[float, str]:
    """Returns the bound for a view of these events, and how it was computed."""
    if not events.pure.any() and bool(np.all(events.rate == 1)):
        mu = math.sqrt(float(np.sum(events.count / np.square(events.noise))))
        return gaussian_bound(kappa, mu), f"closed form, Gaussian, mu = {mu:.4g}"
    delta = LossDistribution(resolution=_RESOLUTION).profile(events)
    value, epsilon = profile_bound(kappa, delta)
    return value, f"privacy profile of {events.steps:,} releases at {epsilon:.3g}"


def gaussian_bound(kappa: float, mu: float) -> float:
    """Returns Phi(Phi^-1(kappa) + mu): for Gaussians that are mu deviations apart."""
    return float(special.ndtr(special.ndtri(kappa) + mu))


def profile_bound(kappa: float, delta: Callable[[float], float]) -> tuple[float, float]:
    """Returns min over epsilon of e^epsilon * kappa + delta(epsilon), and where.

    Every epsilon, of any sign, gives a bound, so that a search that misses the least
    is loose and never wrong. It is convex in e^epsilon, which is what is searched.
    """

    def reached(factor: float) -> float:
        return factor * kappa + delta(math.log(factor))

    found = optimize.minimize_scalar(
        reached,
        bounds=(1e-12, 1 / kappa),
        method="bounded",
        options={"xatol": 1e-6 / kappa},
    )
    # The search in e^epsilon is coarse where the least is close to 0.
    fine = optimize.minimize_scalar(
        lambda order: reached(math.exp(order)),
        bounds=(math.log(found.x) - 2, min(math.log(found.x) + 2, -math.log(kappa))),
        method="bounded",
    )
    value, order = min((found.fun, math.log(found.x)), (fine.fun, float(fine.x)))
    return float(min(max(value, kappa), 1.0)), order


def _views(
    plan: PrivacyPlan, leakage: int, looks: int | None, round_index: int | None
) -> list[Events] | str:
    """Returns what is read, for each place of noise; or why nothing bounds it."""
    if not plan.defense.mechanisms:
        return NO_MECHANISM
    if looks is None:
        return _whole_training(plan, leakage)
    found, reasons = [], []
    for point in _BEFORE[leakage]:
        here = [m for m in plan.defense.mechanisms if m.point is point]
        reason = _lacking(plan, here, leakage)
        if here and not reason:
            found.append(_looked(plan, here, leakage, looks, round_index))
        elif reason:
            reasons.append(reason)
    return found or (reasons[0] if reasons else READ_BEFORE)


def _whole_training(plan: PrivacyPlan, leakage: int) -> list[Events] | str:
    here = [m for m in plan.mechanisms if m.point in _BEFORE[leakage]]
    if not here:
        return READ_BEFORE
    reason = _lacking(plan, list(plan.mechanisms), leakage)
    if reason:
        return reason
    uses = leakage == 2 and plan.unit is Unit.EXAMPLE
    events = plan.seen(plan.rounds_taken(high=True), uses=uses, high=True)
    return READ_BEFORE if events is None else [events]


def _lacking(plan: PrivacyPlan, mechanisms: list[Mechanism], leakage: int) -> str:
    """Returns why the noise of one place bounds nothing; empty if it does."""
    rounds = plan.setting.rounds
    if not mechanisms:
        return ""
    whole = [m for m in mechanisms if m.coordinates.startswith("all")]
    if not whole:
        return PARTIAL.format(coordinates=mechanisms[0].coordinates)
    if any(m.data_dependent for m in mechanisms):
        return DATA_DEPENDENT
    for mechanism in mechanisms:
        if any(mechanism.multiplier(t) <= 0 for t in range(rounds)):
            return NO_NOISE
        if not is_noise(plan.effective_noise(mechanism)):
            return NO_BOUND
    if leakage == 2 and all(m.on_batch_sum for m in whole):
        return SHARED_DRAW
    return ""


def _looked(
    plan: PrivacyPlan,
    mechanisms: list[Mechanism],
    leakage: int,
    looks: int,
    round_index: int | None,
) -> Events:
    """Returns the releases of one place in so many looks at a known victim."""
    setting = plan.setting
    parts = []
    for mechanism in mechanisms:
        noises = plan.effective_noise(mechanism)
        exact = is_pure(mechanism)
        weakest = float(noises.max() if exact else noises.min())
        noise = weakest if round_index is None else float(noises[round_index])
        count = looks
        if leakage != 2 and mechanism.point is Point.PER_EXAMPLE:
            # The victim is every example of the client's batches: one draw on the
            # sum hides B of them at once, a draw for each hides one, B times.
            count *= setting.local_steps
            if mechanism.on_batch_sum:
                size = setting.batch_size
                noise = noise * size if exact else noise / size
            else:
                count *= setting.batch_size
        parts.append((pure if exact else gaussian)(noise, 1.0, count))
    whole = parts[0]
    for part in parts[1:]:
        whole = whole + part
    return whole


def _assumptions(
    plan: PrivacyPlan, leakage: int, looks: int | None, prior: Prior
) -> tuple[str, ...]:
    setting = plan.setting
    if looks is not None:
        unit = "example" if leakage == 2 else "client's whole batches"
        view = (
            f"in every look the adversary reads {_READS[leakage]}, and knows that the "
            f"victim, the {unit}, is in it"
        )
    else:
        rounds = plan.rounds_taken(high=True)
        view = (
            f"the adversary reads {_READS[leakage]} in every one of the {rounds:,} "
            f"rounds that its client takes part in (95 % of the clients: no more)"
        )
        if leakage != 2 and plan.unit is Unit.EXAMPLE and plan.draw.rate < 1:
            view += "; which examples a batch holds is secret"
    reference = "the reference is the same view without the victim (add or remove one)"
    if looks is None and leakage != 2 and plan.draw.fixed:
        reference += (
            "; a batch has a fixed size, so that another example is in its place, "
            "which counts twice"
        )
    tensors = any(m.per_tensor for m in plan.defense.mechanisms)
    spread = (
        f"each of {plan.tensors} tensors is clipped on its own: jointly "
        f"C * sqrt({plan.tensors})"
        if tensors
        else "the clip bounds all tensors jointly"
    )
    batch = f"B = {setting.batch_size}, L = {setting.local_steps}"
    sizes = [] if leakage == 2 else [batch]
    confidence = [f"prior with confidence {prior.confidence:.0%}"]
    return (
        view,
        reference,
        spread,
        f"before reading: {prior.says}",
        *sizes,
        *(confidence if prior.confidence < 1 else []),
        "the noise is what the defense says it is",
    )


_SMALLEST, _LARGEST = 1e-3, 1e6  # the noise multipliers that are searched


def least_sigma(limit: float, certified: Callable[[float], Certificate]) -> float:
    """Returns the least noise multiplier whose certificate is at most `limit`.

    Args:
      limit: the success that is allowed.
      certified: returns the certificate of a noise multiplier; more noise never
        certifies less.
    """
    if not 0 < limit < 1:
        raise InputError(f"the success that is allowed must be in (0, 1): {limit}")
    most = certified(_LARGEST)
    if most.value is None:
        raise InputError(f"no noise multiplier has a certificate: {most.reason}")
    if not (most.value or 1.0) <= limit:
        raise InputError(
            f"no noise brings the success below {limit:g}: without reading anything, "
            f"{most.kappa:.3g} is reached ({most.prior.says})"
        )

    def holds(log_sigma: float) -> bool:
        value = certified(math.exp(log_sigma)).value
        return value is not None and value <= limit

    low, high = math.log(_SMALLEST), math.log(_LARGEST)
    if holds(low):
        raise InputError(f"a success of {limit:g} is certified with next to no noise")
    while high - low > 1e-5:
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return math.exp(high)
