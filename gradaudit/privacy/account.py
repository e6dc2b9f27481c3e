"""All methods side by side: epsilon of a sequence of events."""

import dataclasses
import math
from collections.abc import Callable, Mapping

from gradaudit.errors import unknown_name
from gradaudit.privacy.events import Events, Unit, check_delta
from gradaudit.privacy.loss import LossDistribution
from gradaudit.privacy.methods import (
    ADVANCED,
    BASE,
    MOMENTS,
    OPTIMAL,
    RENYI,
    ZCDP,
    Method,
    Question,
    as_published,
    clean,
)

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
    """The answers of all methods, and what the question was."""

    methods: Mapping[str, Spent]
    delta: float
    steps: int
    unit: Unit
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
        return self.methods[find_method(method, self.methods)].epsilon


def find_method(name: str, known: Mapping[str, object] = METHODS) -> str:
    """Returns the name if it is in the table, else raises in words."""
    if name not in known:
        raise unknown_name("accounting method", name, known)
    return name


def ask(name: str, events: Events, delta: float, convention: str = "clean") -> Question:
    """Returns the method and the events under a convention."""
    if convention not in CONVENTIONS:
        raise unknown_name("convention", convention, CONVENTIONS)
    check_delta(delta)
    return CONVENTIONS[convention](METHODS[find_method(name)], events, delta)


def spend(name: str, events: Events, delta: float, convention: str = "clean") -> Spent:
    """Returns one method's answer."""
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
    """Returns every method's epsilon for these events.

    Args:
      events: what is released; see `gaussian` and `pure`.
      delta: the probability that the guarantee may fail.
      unit: whose presence is hidden; it is only passed on to the answer.
      convention: "clean", or "paper" for the papers' rounding and off-by-one.
    """
    answers = {name: spend(name, events, delta, convention) for name in METHODS}
    return Account(answers, delta, events.steps, unit, convention)


def _why_infinite(events: Events) -> str:
    weakest = float(events.noise[~events.pure].min(initial=math.inf))
    if not math.isfinite(weakest):
        return (
            f"epsilon = {float(events.noise.max()):.3g} per step is so large that this "
            "bound overflows"
        )
    return f"sigma = {weakest:.3g} is so small that this bound overflows"
