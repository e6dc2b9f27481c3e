"""The composition methods. A method is what a step costs, and what the costs sum to.

Five are kept because the papers print their numbers (Wei & Liu 2022, section III.B) and
dp-accounting has other ones. At sigma = 6, q = 0.01, 10,000 steps and delta = 1e-5:
base (123.5), advanced (7.458) and optimal composition (6.740) are the printed closed
forms, for any schedule; its `advanced_composition` is for equal steps within one total
delta, and has no answer here. zCDP is 1.159 as printed, 0.950 from its ZCDpEvent. The
moments accountant's classic conversion gives 0.823, its RdpAccountant 0.659 at the same
orders. The Renyi method is that one (0.659; Canonne, Kamath & Steinke 2020, Proposition
12), written for the sums after every step, which it has one at a time.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gradaudit.errors import InputError, named, within_unit
from gradaudit.privacy.events import Events, FloatArray, Unit
from gradaudit.privacy.loss import LossDistribution
from gradaudit.privacy.renyi import (
    CLASSIC_ORDERS,
    DENSE_ORDERS,
    amplified,
    classic_curves,
    dense_curves,
)


@dataclasses.dataclass(frozen=True)
class Additive:
    """A method whose costs add up over steps.

    `costs(events, delta)` is (runs, k), `convert(sums, delta)` maps (..., k) to
    epsilon. `delta_per_step` says that delta is that of each Gaussian release, so
    that the composition spends more of it. `needs_coins` says that the cost is that of
    Poisson draws only.
    """

    costs: Callable[[Events, float], FloatArray]
    convert: Callable[[FloatArray, float], Any]
    delta_per_step: bool = False
    delta_slack: bool = False
    needs_coins: bool = False

    def holds_for(self, events: Events) -> bool:
        """Returns whether the method bounds draws of this kind."""
        return not (self.needs_coins and bool(events.fixed.any()))

    def epsilon(self, events: Events, delta: float) -> float:
        """Returns epsilon after all steps."""
        runs = events.merged()
        with np.errstate(all="ignore"):
            epsilon = float(self.convert(runs.count @ self.costs(runs, delta), delta))
        return math.inf if math.isnan(epsilon) else epsilon

    def curve(self, events: Events, delta: float) -> FloatArray:
        """Returns epsilon after each step, (steps,)."""
        with np.errstate(all="ignore"):
            costs = np.repeat(self.costs(events, delta), events.count, axis=0)
            values: FloatArray = self.convert(np.cumsum(costs, axis=0), delta)
        return np.nan_to_num(values, nan=np.inf, posinf=np.inf)

    def first_over(self, target: float, events: Events, delta: float) -> int | None:
        """Returns the first step whose epsilon exceeds the target, or None."""
        over = np.flatnonzero(self.curve(events, delta) > target)
        return int(over[0]) + 1 if len(over) else None

    def spent_delta(self, events: Events, delta: float) -> float:
        """Returns the delta that the composition really spends."""
        if not self.delta_per_step:
            return delta
        slack = delta if self.delta_slack else 0.0
        expected = np.sum(events.count * events.rate * ~events.pure)
        return min(1.0, slack + delta * float(expected))


def gaussian_epsilon_scale(delta: float) -> float:
    """Returns sigma * epsilon_0 of the Gaussian mechanism, sqrt(2 ln(1.25 / delta))."""
    return math.sqrt(2 * math.log(1.25 / delta))


def step_epsilons(events: Events, delta: float) -> FloatArray:
    """Returns each step's epsilon after amplification by sampling, (runs,)."""
    gaussian = gaussian_epsilon_scale(delta) / events.noise
    return amplified(np.where(events.pure, events.noise, gaussian), events.rate)


def _base_costs(events: Events, delta: float) -> FloatArray:
    return step_epsilons(events, delta)[:, None]


def _advanced_costs(events: Events, delta: float) -> FloatArray:
    epsilon = step_epsilons(events, delta)
    return np.stack([epsilon * np.expm1(epsilon), np.square(epsilon)], axis=1)


def _divergence_costs(events: Events, delta: float) -> FloatArray:
    """(exp(e) - 1) e / (exp(e) + 1), and e^2."""
    epsilon = step_epsilons(events, delta)
    return np.stack([epsilon * np.tanh(epsilon / 2), np.square(epsilon)], axis=1)


def _zcdp_costs(events: Events, delta: float) -> FloatArray:
    pure = np.square(step_epsilons(events, delta)) / 2
    gaussian = np.square(events.rate / events.noise)
    return np.where(events.pure, pure, gaussian)[:, None]


def _sum(sums: FloatArray, delta: float) -> Any:
    return sums[..., 0]


def _advanced(sums: FloatArray, delta: float) -> Any:
    slack = math.log(1 / delta)
    return sums[..., 0] + np.sqrt(2 * sums[..., 1] * slack)


def _optimal(sums: FloatArray, delta: float) -> Any:
    slack = np.log(math.e + np.sqrt(sums[..., 1]) / delta)
    return sums[..., 0] + np.sqrt(2 * sums[..., 1] * slack)


def _zcdp(sums: FloatArray, delta: float) -> Any:
    rho = sums[..., 0]
    return rho + 2 * np.sqrt(rho * math.log(1 / delta))


def _classic_conversion(sums: FloatArray, delta: float) -> Any:
    orders = np.asarray(CLASSIC_ORDERS)
    return np.min(sums + math.log(1 / delta) / (orders - 1), axis=-1)


def _improved_conversion(sums: FloatArray, delta: float) -> Any:
    orders = np.asarray(DENSE_ORDERS)
    each = sums + np.log1p(-1 / orders) - np.log(delta * orders) / (orders - 1)
    # delta <= sqrt(1 - exp(-KL)): then nothing is spent at this delta.
    free = np.expm1(-sums) + delta**2 > 0
    return np.maximum(np.min(np.where(free, 0.0, each), axis=-1), 0.0)


BASE = Additive(_base_costs, _sum, delta_per_step=True)
ADVANCED = Additive(_advanced_costs, _advanced, delta_per_step=True, delta_slack=True)
# Equation 3 of Wei & Liu 2022 as printed; their Table V has the form above.
ADVANCED_AS_PRINTED = Additive(
    _divergence_costs, _advanced, delta_per_step=True, delta_slack=True
)
OPTIMAL = Additive(_divergence_costs, _optimal, delta_per_step=True, delta_slack=True)
ZCDP = Additive(_zcdp_costs, _zcdp, needs_coins=True)
MOMENTS = Additive(
    lambda events, _: classic_curves(events), _classic_conversion, needs_coins=True
)
RENYI = Additive(
    lambda events, _: dense_curves(events), _improved_conversion, needs_coins=True
)

Method = Additive | LossDistribution
Question = tuple[Method, Events]

_PUBLISHED = (BASE, ADVANCED, OPTIMAL, ZCDP, MOMENTS)
_EXACT_STEPS = 10_000  # the one horizon that is counted as it is


def clean(method: Method, events: Events, delta: float) -> Question:
    """Returns the question unchanged."""
    return method, events


def as_published(method: Method, events: Events, delta: float) -> Question:
    """Returns the question that the papers' printed number answers.

    One noise scale for all steps: T steps are counted as T + 1 (10,000 as 10,000),
    and base and advanced composition round the Gaussian mechanism's epsilon to three
    digits (0.807 for sigma = 6). A schedule of noise scales: advanced composition is
    equation 3 as printed, and the moments accountant counts one step more.
    """
    if method not in _PUBLISHED:
        return method, events
    if events.is_constant:
        if method in (BASE, ADVANCED) and not events.pure.any():
            events = _rounded(events, delta)
        return method, events.extended(int(events.steps != _EXACT_STEPS))
    if method == ADVANCED:
        return ADVANCED_AS_PRINTED, events
    return method, events.extended(int(method == MOMENTS))


def _rounded(events: Events, delta: float) -> Events:
    scale = gaussian_epsilon_scale(delta)
    epsilon = round(scale / float(events.noise[0]), 3)
    if epsilon == 0:
        return events
    return dataclasses.replace(
        events, noise=np.full_like(events.noise, scale / epsilon)
    )


_KIND = "accounting method"
_GRID = 5e-3  # how far the tight value may lie above the exact one

METHODS: Mapping[str, Method] = {
    "base": BASE,
    "advanced": ADVANCED,
    "optimal": OPTIMAL,
    "zcdp": ZCDP,
    "moments": MOMENTS,
    "rdp": RENYI,
    "pld": LossDistribution(),
}


CONVENTIONS: Mapping[str, Callable[[Method, Events, float], Question]] = {
    "clean": clean,
    "paper": as_published,
}


@dataclasses.dataclass(frozen=True)
class Spent:
    """One method's answer: epsilon, and the delta that goes with it.

    `reason` says why epsilon is infinite, if it is.
    """

    epsilon: float
    delta: float
    reason: str = ""


@dataclasses.dataclass(frozen=True)
class Account:
    """The answers of the methods, and what the question was."""

    methods: Mapping[str, Spent]
    delta: float
    steps: int
    unit: Unit
    relation: str  # what neighbours differ by, in words
    convention: str

    @property
    def notes(self) -> tuple[str, ...]:
        """Returns which answers lie below the tight one, so that they are no bound."""
        tight = self.methods["pld"].epsilon
        return tuple(
            f"{name} lies below the tight value here"
            + (
                f", at its larger delta = {spent.delta:.3g}."
                if spent.delta > self.delta
                else ": it is not a bound for these steps."
            )
            for name, spent in self.methods.items()
            if math.isfinite(tight) and spent.epsilon < tight * (1 - _GRID)
        )

    def __getitem__(self, method: str) -> float:
        """Returns one method's epsilon."""
        return named(_KIND, method, self.methods).epsilon


def ask(name: str, events: Events, delta: float, convention: str = "clean") -> Question:
    """Returns the method and the events under a convention."""
    asked = named("convention", convention, CONVENTIONS)
    within_unit(delta=delta)
    return asked(named(_KIND, name, METHODS), events, delta)


def spend(name: str, events: Events, delta: float, convention: str = "clean") -> Spent:
    """Returns one method's answer."""
    if not named(_KIND, name, METHODS).holds_for(events):
        raise InputError(f"{name} does not bound draws of a fixed size; ask pld")
    method, asked = ask(name, events, delta, convention)
    epsilon = method.epsilon(asked, delta)
    reason = "" if math.isfinite(epsilon) else _why_infinite(events)
    return Spent(epsilon, method.spent_delta(events, delta), reason)


def account(
    events: Events,
    delta: float = 1e-5,
    *,
    unit: Unit = Unit.EXAMPLE,
    convention: str = "clean",
) -> Account:
    """Returns the epsilon of every method that bounds these events.

    Args:
      events: what is released; see `gaussian` and `pure`.
      delta: the probability that the guarantee may fail.
      unit: whose presence is hidden; it is only passed on to the answer.
      convention: "clean", or "paper" for the papers' rounding and off-by-one.
    """
    answers = {
        name: spend(name, events, delta, convention)
        for name, method in METHODS.items()
        if method.holds_for(events)
    }
    relation = events.relation(unit)
    return Account(answers, delta, events.steps, unit, relation, convention)


def _why_infinite(events: Events) -> str:
    weakest = float(events.noise[~events.pure].min(initial=math.inf))
    if not math.isfinite(weakest):
        return (
            f"epsilon = {float(events.noise.max()):.3g} per step is so large that this "
            "bound overflows"
        )
    return f"sigma = {weakest:.3g} is so small that this bound overflows"
