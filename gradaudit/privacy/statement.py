"""The answer for a plan: claimed, accounted and effective epsilon, side by side."""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gradaudit.errors import within_unit
from gradaudit.federation.setting import (
    Selection,
    Setting,
    setting_as_plain,
    setting_in_words,
)
from gradaudit.privacy.events import Events, Unit
from gradaudit.privacy.guarantee import (
    TRUTH_METHOD,
    Guarantee,
    View,
    judge,
    tight_epsilon,
    views_of,
)
from gradaudit.privacy.methods import Account, account
from gradaudit.privacy.plan import HIGH, TENSORS, PrivacyPlan, Sampling, copies_in

if TYPE_CHECKING:  # defenses import jax
    from gradaudit.defenses.transforms import Defense

CLAIM_METHOD = "moments"  # what the papers report


@dataclasses.dataclass(frozen=True)
class Rung:
    """One step on the way from the claim to what holds, and what it changed."""

    name: str
    epsilon: float
    says: str


@dataclasses.dataclass(frozen=True)
class Privacy:
    """The answer for one plan, with the plan.

    `claimed` is the papers' count with the noise at its word; `accounted` the same
    noise with the draws and the shared examples of this run; `effective` is this run
    relative to what a unit can really change, None if nothing finite holds; `at_best`
    is the effective epsilon if a data-dependent S were always as large as its bound.
    """

    plan: PrivacyPlan
    delta: float
    guarantee: Guarantee
    claimed: Account | None
    accounted_epsilon: float
    effective: Account | None
    at_best: float
    views: tuple[View, ...]

    @property
    def defense(self) -> str:
        """Returns its name."""
        return self.plan.defense.name

    @property
    def unit(self) -> Unit:
        """Returns whose presence is hidden."""
        return self.plan.unit

    @property
    def q(self) -> float:
        """Returns the rate that the claim counts."""
        return self.plan.claimed_rate

    @property
    def steps(self) -> int:
        """Returns the steps that the claim counts."""
        return self.plan.steps

    @property
    def events(self) -> Events | None:
        """Returns the events that the claim counts; None if something is exact."""
        return self.plan.claimed()

    @property
    def claimed_epsilon(self) -> float:
        """Returns the claim by the papers' method, the moments accountant."""
        return self.claimed[CLAIM_METHOD] if self.claimed else math.inf

    @property
    def effective_epsilon(self) -> float:
        """Returns the tight epsilon of what is really released."""
        return self.effective[TRUTH_METHOD] if self.effective else math.inf

    @functools.cached_property
    def rungs(self) -> tuple[Rung, ...]:
        """Returns the figures between the claim and what holds, a cause at a time."""
        plan = self.plan
        if self.claimed is None:
            return ()
        multiplier = self.guarantee.claimed_multiplier
        count = f"q = {self.q:g}, {self.steps:,} steps"
        says = f"moments accountant, noise multiplier {multiplier:.4g}, {count}"
        rungs = [Rung("claimed", self.claimed_epsilon, says)]
        says = "the same claim, by loss distribution"
        rungs.append(Rung("tight", self.claimed[TRUTH_METHOD], says))
        if plan.holders > 1:
            says = f"from {plan.holders:,} clients that hold the example and take part"
            rungs.append(Rung("shared", tight_epsilon(plan.shared(), self.delta), says))
        says = f"as this run draws: {_draw_in_words(plan)}"
        rungs.append(Rung("accounted", self.accounted_epsilon, says))
        says = "no finite epsilon holds for what is released"
        if self.effective is not None:
            held = self.guarantee.effective_multiplier
            says = f"what is really released, noise multiplier {held:.4g}"
        rungs.append(Rung("effective", self.effective_epsilon, says))
        return tuple(rungs)


def epsilon(
    defense: "Defense",
    setting: Setting | None = None,
    *,
    delta: float = 1e-5,
    tensors: int = TENSORS,
    sampling: Sampling = Sampling.LOCAL,
    convention: str = "clean",
    copies: int | None = None,
    class_sizes: Sequence[int] = (),
    participations: int | None = None,
) -> Privacy:
    """Returns what a defense claims, what that is tightly, and what is released.

    Everything is derived from the defense's mechanisms and the setting.

    Args:
      defense: for example `gradaudit.defenses.fed_cdp(clip=4.0, sigma=6.0)`.
      setting: clients, rounds, steps, draws, partition; by default the papers' MNIST
        column, where nobody says who holds what.
      delta: the probability that the guarantee may fail.
      tensors: M, how many tensors the model has; per-tensor clips depend on it.
      sampling: how the claim counts an example's sampling rate.
      convention: "clean", or "paper" for the papers' rounding and off-by-one.
      copies: how many clients hold one example at most; by default what the setting's
        partition and `class_sizes` say.
      class_sizes: how many examples each class of the data has.
      participations: the most rounds that a client really took part in.
    """
    setting = setting or Setting()
    if copies is None:
        copies = copies_in(setting, class_sizes)
    plan = PrivacyPlan(defense, setting, copies, tensors, sampling, participations)
    return privacy_of(plan, delta=delta, convention=convention)


def privacy_of(
    plan: PrivacyPlan, *, delta: float = 1e-5, convention: str = "clean"
) -> Privacy:
    """Returns what a plan claims, accounts for and really releases."""
    within_unit(delta=delta)
    claim, held = plan.claimed(), plan.effective()
    unit = plan.unit
    claimed = account(claim, delta, unit=unit, convention=convention) if claim else None
    effective = account(held, delta, unit=unit) if held and plan.has_noise() else None
    privacy = Privacy(
        plan=plan,
        delta=delta,
        guarantee=judge(plan),
        claimed=claimed,
        accounted_epsilon=tight_epsilon(plan.accounted(), delta),
        effective=effective,
        at_best=tight_epsilon(held, delta),
        views=views_of(plan, delta),
    )
    guarantee = dataclasses.replace(
        privacy.guarantee,
        holds=_what_holds(privacy),
        notes=(*privacy.guarantee.notes, *_remarks(privacy)),
    )
    return dataclasses.replace(privacy, guarantee=guarantee)


def _draw_in_words(plan: PrivacyPlan) -> str:
    what = "batches" if plan.unit is Unit.EXAMPLE else "rounds"
    if plan.unit is Unit.CLIENT and plan.setting.selection is Selection.ACTIVE:
        return "clients selected by their losses, no amplification (q = 1)"
    if plan.draw.fixed:
        return f"{what} of fixed size, without replacement"
    if plan.draw.rate == 1:
        return f"every {plan.unit.value} in every step"
    return f"{what} by independent coins (Poisson)"


def _what_holds(privacy: Privacy) -> str:
    """Returns one sentence: what holds for this run."""
    plan, effective = privacy.plan, privacy.effective
    draws = _draw_in_words(plan)
    draws = draws[0].upper() + draws[1:]
    if effective is None:
        return f"{draws}: no finite epsilon holds for this run."
    shared = ""
    if plan.holders > 1:
        shared = (
            f" and up to {plan.holders:,} clients that hold it take part in a round"
        )
    elif plan.unit is Unit.EXAMPLE and plan.copies is None:
        shared = ", if no two clients hold the same one"
    aside = ""
    if plan.setting.selection is Selection.ACTIVE:
        aside = ", the selection itself left aside"
    return (
        f"{draws}: by loss distribution, where neighbours {effective.relation}{shared}"
        f"{aside}: epsilon = {privacy.effective_epsilon:.4g} at "
        f"delta = {privacy.delta:g}."
    )


def _remarks(privacy: Privacy) -> list[str]:
    """Returns what else a reader of the numbers must know, in sentences."""
    plan = privacy.plan
    if privacy.claimed is None:
        return []
    notes = []
    if plan.unit is Unit.EXAMPLE and plan.copies is None:
        notes.append(
            "It is not known how many clients hold one example; one is counted."
        )
    elif plan.unit is Unit.CLIENT and (plan.copies or 1) > 1:
        notes.append(
            f"Hiding a client does not hide an example that up to {plan.copies:,} "
            "clients hold."
        )
    if plan.unit is Unit.EXAMPLE and plan.sampling is Sampling.GLOBAL:
        notes.append(
            "The draw of clients is counted in the claim only: a client that is drawn "
            "brings all of its examples for all local steps."
        )
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
            f"not their mean; releases of one example: {closest.releases}, "
            f"epsilon = {closest.epsilon:.4g}."
        )
    spent = privacy.claimed.methods["base"].delta
    if spent > privacy.delta * (1 + 1e-9):
        notes.append(
            f"Base, advanced and optimal composition state delta = {privacy.delta:g} "
            f"of each step; composed they spend delta = {spent:.2g}."
        )
    return notes


def number(value: float) -> float | str:
    """Returns the number, or a word where JSON has none."""
    return value if math.isfinite(value) else "inf"


def account_as_plain(account: Account) -> dict[str, Any]:
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
        "neighbouring": account.relation,
        "convention": account.convention,
        "notes": list(account.notes),
    }


def privacy_as_plain(privacy: Privacy) -> dict[str, Any]:
    """Returns every figure, the views, the verdict, and the setting they belong to."""
    plan, effective = privacy.plan, privacy.effective
    common = account_as_plain(privacy.claimed) if privacy.claimed else {"methods": {}}
    return common | {
        "defense": privacy.defense,
        "unit": privacy.unit.value,
        "delta": privacy.delta,
        "steps": privacy.steps,
        "q": privacy.q,
        "sampling": plan.sampling.value,
        "tensors": plan.tensors,
        "setting": setting_as_plain(plan.setting),
        "setting_in_words": setting_in_words(plan.setting),
        "copies": plan.copies,
        "holders_per_round": plan.holders,
        "epsilon": {
            "claimed": number(privacy.claimed_epsilon),
            "accounted": number(privacy.accounted_epsilon),
            "effective": number(privacy.effective_epsilon),
            "effective_at_best": number(privacy.at_best),
        },
        "from_claim_to_effective": [
            {"name": rung.name, "epsilon": number(rung.epsilon), "says": rung.says}
            for rung in privacy.rungs
        ],
        "effective_methods": (
            account_as_plain(effective)["methods"] if effective else {}
        ),
        "effective_neighbouring": effective.relation if effective else None,
        "views": [_view_as_plain(view) for view in privacy.views],
        "guarantee": {"valid": privacy.guarantee.valid}
        | dataclasses.asdict(privacy.guarantee)
        | {"verdict": privacy.guarantee.verdict},
    }


def _view_as_plain(view: View) -> dict[str, Any]:
    usual, high = (
        {
            "epsilon": number(seen.epsilon),
            "releases": seen.releases,
            "participations": seen.participations,
        }
        for seen in (view.usual, view.high)
    )
    often = {"quantile": HIGH, **high}
    more = {"high": often, "q": view.q, "reason": view.reason}
    return {"type": view.leakage, **usual, **more}
