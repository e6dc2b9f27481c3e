"""`epsilon(defense, setting)`: claimed, accounted and effective, side by side."""

import dataclasses
import math
from typing import Any, Protocol

from gradaudit.errors import require
from gradaudit.federation.setting import Setting
from gradaudit.mechanism import Mechanism, Point
from gradaudit.privacy.account import Account, account, spend
from gradaudit.privacy.events import Events, Unit, check_delta
from gradaudit.privacy.guarantee import Guarantee, judge
from gradaudit.privacy.plan import (
    Sampling,
    claimed_noise,
    combined,
    effective_noise,
    in_training,
    in_view,
    is_noise,
    joined,
    rate_of,
    unit_of,
)

_TENSORS = 6  # two convolutions and a dense layer, weights and biases


CLAIM_METHOD = "moments"  # what the papers report


TRUTH_METHOD = "pld"


class Claims(Protocol):
    """What accounting reads of a defense."""

    @property
    def name(self) -> str:
        """Returns its name."""

    @property
    def mechanisms(self) -> tuple[Mechanism, ...]:
        """Returns what it releases."""


@dataclasses.dataclass(frozen=True)
class View:
    """What an adversary of one type can learn about one unit, by PLD."""

    leakage: int
    epsilon: float
    releases: int
    q: float
    reason: str = ""


@dataclasses.dataclass(frozen=True)
class Privacy:
    """The answer for one defense in one setting.

    `claimed` takes the defense's own noise multiplier at its word; `effective` is
    relative to what a unit can really change, and None if nothing finite holds;
    `at_best` is the effective epsilon if a data-dependent S were always as large as
    its bound.
    """

    defense: str
    unit: Unit
    q: float
    steps: int
    delta: float
    sampling: Sampling
    tensors: int
    guarantee: Guarantee
    claimed: Account | None
    effective: Account | None
    at_best: float
    views: tuple[View, ...]
    events: Events | None

    @property
    def claimed_epsilon(self) -> float:
        """Returns the claim by the papers' method, the moments accountant."""
        return self.claimed[CLAIM_METHOD] if self.claimed else math.inf

    @property
    def accounted_epsilon(self) -> float:
        """Returns the same claim by the tight method."""
        return self.claimed[TRUTH_METHOD] if self.claimed else math.inf

    @property
    def effective_epsilon(self) -> float:
        """Returns the tight epsilon of what is really released."""
        return self.effective[TRUTH_METHOD] if self.effective else math.inf


def epsilon(
    defense: Claims,
    setting: Setting | None = None,
    *,
    delta: float = 1e-5,
    tensors: int = _TENSORS,
    sampling: Sampling = Sampling.LOCAL,
    convention: str = "clean",
) -> Privacy:
    """Returns what a defense claims, what that is tightly, and what is released.

    Everything is derived from the defense's mechanisms and the setting.

    Args:
      defense: for example `gradaudit.defenses.fed_cdp(clip=4.0, sigma=6.0)`.
      setting: clients, rounds, steps; by default the papers' MNIST column.
      delta: the probability that the guarantee may fail.
      tensors: M, how many tensors the model has; per-tensor clips depend on it.
      sampling: how an example's sampling rate is counted.
      convention: "clean", or "paper" for the papers' rounding and off-by-one.
    """
    check_delta(delta)
    require(tensors >= 1, f"tensors must be at least 1, got {tensors}")
    setting = setting or Setting()
    units = [unit_of(mechanism) for mechanism in defense.mechanisms]
    unit = Unit.CLIENT if units and Unit.EXAMPLE not in units else Unit.EXAMPLE
    mine = tuple(m for m in defense.mechanisms if unit_of(m) is unit)
    rate = rate_of(unit, setting, sampling)
    claim = _training(mine, setting, rate, None)
    held = _training(mine, setting, rate, tensors)
    moving = any(m.data_dependent for m in mine)
    local_steps = setting.local_steps if unit is Unit.EXAMPLE else 1
    privacy = Privacy(
        defense=defense.name,
        unit=unit,
        q=rate,
        steps=setting.rounds * local_steps,
        delta=delta,
        sampling=sampling,
        tensors=tensors,
        guarantee=judge(mine, setting.rounds, tensors),
        claimed=_account(claim, delta, unit, convention),
        effective=None if moving else _account(held, delta, unit, "clean"),
        at_best=spend(TRUTH_METHOD, held, delta).epsilon if held else math.inf,
        views=tuple(_view(mine, setting, delta, tensors, kind) for kind in range(3)),
        events=claim,
    )
    notes = (*privacy.guarantee.notes, *_remarks(privacy))
    guarantee = dataclasses.replace(privacy.guarantee, notes=notes)
    return dataclasses.replace(privacy, guarantee=guarantee)


def _account(
    events: Events | None, delta: float, unit: Unit, convention: str
) -> Account | None:
    if events is None:
        return None
    return account(events, delta, unit=unit, convention=convention)


def _remarks(privacy: Privacy) -> list[str]:
    """Returns what else a reader of the numbers must know, in sentences."""
    if privacy.claimed is None:
        return []
    notes = []
    if privacy.effective is None and math.isfinite(privacy.at_best):
        notes.append(
            "Even if S were as large as its bound in every step, epsilon would be "
            f"{privacy.at_best:.4g}."
        )
    closest = privacy.views[2]
    if closest.reason and privacy.effective is not None:
        notes.append(f"Type 2 is not covered: {closest.reason}")
    elif not closest.reason:
        notes.append(
            "An adversary of type 2 is given the noisy gradients of single examples, "
            f"not their mean: {closest.releases} releases of one example, "
            f"epsilon = {closest.epsilon:.4g}."
        )
    spent = privacy.claimed.methods["base"].delta
    if spent > privacy.delta * (1 + 1e-9):
        notes.append(
            f"Base, advanced and optimal composition state delta = {privacy.delta:g} "
            f"of each step; composed they spend delta = {spent:.2g}."
        )
    notes.append("Batches and clients are accounted as drawn by Poisson sampling.")
    return notes


def _training(
    mechanisms: tuple[Mechanism, ...],
    setting: Setting,
    rate: float,
    tensors: int | None,
) -> Events | None:
    """Returns the claimed (tensors None) or effective events; None if exact."""
    noises = [
        claimed_noise(mechanism, setting.rounds)
        if tensors is None
        else effective_noise(mechanism, setting.rounds, tensors)
        for mechanism in mechanisms
    ]
    bounded = all(mechanism.clip(0) is not None for mechanism in mechanisms)
    if not mechanisms or not bounded or not all(map(is_noise, noises)):
        return None
    return joined(
        [
            in_training(mechanism, noise, setting, rate)
            for mechanism, noise in combined(mechanisms, noises)
        ]
    )


def _view(
    mechanisms: tuple[Mechanism, ...],
    setting: Setting,
    delta: float,
    tensors: int,
    leakage: int,
) -> View:
    """Returns what the adversary of this type is given."""
    exposed = _exposed(mechanisms, leakage)
    if exposed:
        return View(leakage, math.inf, 0, 1.0, exposed)
    noises = [effective_noise(m, setting.rounds, tensors) for m in mechanisms]
    if any(m.data_dependent for m in mechanisms) or not all(map(is_noise, noises)):
        reason = "No noise scale holds for every batch."
        return View(leakage, math.inf, 0, 1.0, reason)
    events = joined(
        [
            in_view(mechanism, noise, setting, leakage)
            for mechanism, noise in combined(mechanisms, noises)
        ]
    )
    spent = spend(TRUTH_METHOD, events, delta)
    rate = float(events.rate[0])
    return View(leakage, spent.epsilon, events.steps, rate, spent.reason)


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


Plain = dict[str, Any]


def number(value: float) -> float | str:
    """Returns the number, or a word where JSON has none."""
    return value if math.isfinite(value) else "inf"


def account_as_plain(account: Account) -> Plain:
    """Returns all methods and what the question was."""
    methods = account.methods.items()
    return {
        "methods": {name: number(spent.epsilon) for name, spent in methods},
        "delta": account.delta,
        "delta_spent": {name: spent.delta for name, spent in methods},
        "infinite_because": {
            name: spent.reason for name, spent in methods if spent.reason
        },
        "steps": account.steps,
        "unit": account.unit.value,
        "neighbouring": account.unit.relation,
        "convention": account.convention,
        "notes": list(account.notes),
    }


def privacy_as_plain(privacy: Privacy) -> Plain:
    """Returns claimed, accounted and effective epsilon, the views and the verdict."""
    verdict = privacy.guarantee
    common = account_as_plain(privacy.claimed) if privacy.claimed else {"methods": {}}
    effective = privacy.effective
    return common | {
        "defense": privacy.defense,
        "unit": privacy.unit.value,
        "neighbouring": privacy.unit.relation,
        "delta": privacy.delta,
        "steps": privacy.steps,
        "q": privacy.q,
        "sampling": privacy.sampling.value,
        "tensors": privacy.tensors,
        "epsilon": {
            "claimed": number(privacy.claimed_epsilon),
            "accounted": number(privacy.accounted_epsilon),
            "effective": number(privacy.effective_epsilon),
            "effective_at_best": number(privacy.at_best),
        },
        "effective_methods": (
            account_as_plain(effective)["methods"] if effective else {}
        ),
        "views": [_view_as_plain(view) for view in privacy.views],
        "guarantee": {
            "verdict": verdict.verdict,
            "valid": verdict.valid,
            "reasons": list(verdict.reasons),
            "notes": list(verdict.notes),
            "claimed_multiplier": verdict.claimed_multiplier,
            "effective_multiplier": verdict.effective_multiplier,
        },
    }


def _view_as_plain(view: View) -> Plain:
    return {
        "type": view.leakage,
        "epsilon": number(view.epsilon),
        "releases": view.releases,
        "q": view.q,
        "reason": view.reason,
    }
