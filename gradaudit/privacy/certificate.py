"""The certificate: an upper bound on *any* adversary's success, from the noise alone.

Whoever succeeds with probability kappa before reading succeeds with at most
sup P(E) over events E of probability kappa under a reference that does not depend on
the secret (Hayes et al. 2023; Balle et al. 2022): Phi(Phi^-1(kappa) + mu) for Gaussian
releases, min over epsilon of e^epsilon * kappa + delta(epsilon) in general. The proof,
and where the bound is loose, is in docs/certificate.md.
"""

import dataclasses
import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

from gradaudit.errors import InputError, at_least, within_unit
from gradaudit.mechanism import Mechanism, Point
from gradaudit.privacy.calibrate import least
from gradaudit.privacy.events import Events, Unit, gaussian, pure
from gradaudit.privacy.guarantee import (
    DATA_DEPENDENT,
    NO_BOUND,
    NO_MECHANISM,
    NO_NOISE,
    NOISE_BEFORE,
    PARTIAL,
    READ_BEFORE,
    SHARED_DRAW,
)
from gradaudit.privacy.loss import LossDistribution
from gradaudit.privacy.plan import PrivacyPlan, is_noise, is_pure

_READS = {
    0: "the client's update at the server",
    1: "the client's update at the client",
    2: "the example's own noisy gradient",
}
_RESOLUTION = 0.02  # of the loss distribution: closed form and profile within 1 %
_MOST_PUBLIC = 2_000  # examples of which the pairwise distances are taken
_SMALLEST, _LARGEST = 1e-3, 1e6  # the noise multipliers that are searched


@dataclasses.dataclass(frozen=True)
class Prior:
    """What the adversary reaches without reading: at most `mass`.

    It holds with probability `confidence` over the draw of the public data, if it was
    learned from any. `reason` says why there is none, if `mass` is 1.
    """

    mass: float
    says: str
    confidence: float = 1.0
    reason: str = ""


def among(candidates: int) -> Prior:
    """Returns the prior of a line-up: one of n, equally likely."""
    at_least(2, candidates=candidates)
    return Prior(1 / candidates, f"one of {candidates:,} candidates, equally likely")


def near(
    public: NDArray[Any], success_rmse: float, batch: int = 1, confidence: float = 0.95
) -> Prior:
    """Returns the prior of a reconstruction at an RMSE, learned from public data.

    The largest mass of a ball of radius r: the N' public examples inside it lie within
    2r of each other, so N' is at most the largest count m of examples within 2r of one
    of them, and Clopper-Pearson for m of N bounds the mass, whichever ball it is.
    For a batch of B, the j best matched of the B errors are at most
    r * sqrt(B / (B - j + 1)): each j gives a bound, the least is taken, and the
    failure probability is split over them.

    Args:
      public: examples, drawn like the victims and independently of them, (N, ...).
      success_rmse: the RMSE of a success, over all features of the batch.
      batch: how many examples are rebuilt together, in any order.
      confidence: that the bound holds, over the draw of the public examples.
    """
    if len(public) < 2:
        raise InputError("the prior needs at least two public examples")
    within_unit(confidence=confidence)
    at_least(1, batch=batch)
    kept = np.random.default_rng(0).permutation(len(public))[:_MOST_PUBLIC]
    rows = np.asarray(public, np.float32)[np.sort(kept)].reshape(len(kept), -1)
    count, failure = len(rows), (1 - confidence) / batch
    radii = [success_rmse * math.sqrt(batch / (batch - j)) for j in range(batch)]
    crowds = _largest_crowds(rows, [2 * radius for radius in radii])
    masses = []
    for j, crowd in enumerate(crowds, start=1):
        upper = special.betaincinv(crowd + 1, count - crowd, 1 - failure)
        mass = float(upper) if crowd < count else 1.0
        masses.append(math.comb(batch, j) * math.perm(batch, j) * mass**j)
    mass = min(1.0, *masses)
    what = "one example" if batch == 1 else f"a batch of {batch}, in any order"
    reason = ""
    if mass >= 1:
        reason = (
            f"Of {count:,} public examples up to {crowds[0]:,} lie within twice the "
            f"threshold (RMSE {2 * radii[0]:.3g}) of one of them: what a guess of "
            f"{what} reaches without reading can't be bounded below 1."
        )
    return Prior(
        mass,
        f"{what} drawn like {count:,} public examples, of which at most {crowds[0]:,} "
        f"lie within RMSE {2 * success_rmse:g} of one of them",
        confidence,
        reason,
    )


def _largest_crowds(rows: NDArray[np.float32], radii: list[float]) -> list[int]:
    """Returns for each RMSE the most rows within it of one row, itself included."""
    squares = np.einsum("nd,nd->n", rows, rows)
    limits = [rows.shape[1] * radius**2 * (1 + 1e-5) for radius in radii]
    most = [1] * len(radii)
    for start in range(0, len(rows), 512):
        part = slice(start, start + 512)
        apart = squares[part, None] + squares - 2 * rows[part] @ rows.T
        for index, limit in enumerate(limits):
            most[index] = max(most[index], int((apart <= limit).sum(axis=1).max()))
    return most


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
    if type not in NOISE_BEFORE:
        raise InputError(f"type must be 0, 1 or 2, got {type}")
    if (candidates is None) == (prior is None):
        raise InputError(
            "a certificate needs either the number of candidates or a prior"
        )
    at_least(1, looks=looks)
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
    for point in NOISE_BEFORE[leakage]:
        here = [m for m in plan.defense.mechanisms if m.point is point]
        if not here:
            continue
        reason = _lacking(plan, here, leakage)
        if reason:
            reasons.append(reason)
        else:
            found.append(_looked(plan, here, leakage, looks, round_index))
    return found or (reasons[0] if reasons else READ_BEFORE)


def _whole_training(plan: PrivacyPlan, leakage: int) -> list[Events] | str:
    here = [m for m in plan.mechanisms if m.point in NOISE_BEFORE[leakage]]
    if not here:
        return READ_BEFORE
    reason = _lacking(plan, plan.mechanisms, leakage)
    if reason:
        return reason
    uses = leakage == 2 and plan.unit is Unit.EXAMPLE
    events = plan.seen(plan.rounds_taken(high=True), uses=uses, high=True)
    return READ_BEFORE if events is None else [events]


def _lacking(plan: PrivacyPlan, mechanisms: Sequence[Mechanism], leakage: int) -> str:
    """Returns why the noise of one place bounds nothing; empty if it does."""
    whole = [m for m in mechanisms if m.coordinates.startswith("all")]
    if not whole:
        return PARTIAL.format(coordinates=mechanisms[0].coordinates)
    if any(m.data_dependent for m in mechanisms):
        return DATA_DEPENDENT
    for mechanism in mechanisms:
        if np.any(plan.stated_noise(mechanism) <= 0):
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
    setting, parts = plan.setting, []
    for mechanism in mechanisms:
        noises = plan.effective_noise(mechanism)
        exact = is_pure(mechanism)
        noise, count = float(noises.max() if exact else noises.min()), looks
        if round_index is not None:
            noise = float(noises[round_index])
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
    return functools.reduce(operator.add, parts)


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
    spread = "the clip bounds all tensors jointly"
    if any(m.per_tensor for m in plan.defense.mechanisms):
        spread = (
            f"each of {plan.tensors} tensors is clipped on its own: jointly "
            f"C * sqrt({plan.tensors})"
        )
    said = [view, reference, spread, f"before reading: {prior.says}"]
    if leakage != 2:
        said.append(f"B = {setting.batch_size}, L = {setting.local_steps}")
    if prior.confidence < 1:
        said.append(f"prior with confidence {prior.confidence:.0%}")
    return (*said, "the noise is what the defense says it is")


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
    if not most.value <= limit:
        raise InputError(
            f"no noise brings the success below {limit:g}: without reading anything, "
            f"{most.kappa:.3g} is reached ({most.prior.says})"
        )

    def holds(sigma: float) -> bool:
        value = certified(sigma).value
        return value is not None and value <= limit

    if holds(_SMALLEST):
        raise InputError(f"a success of {limit:g} is certified with next to no noise")
    return least(holds, _SMALLEST, _LARGEST)
