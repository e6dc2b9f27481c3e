"""Questions the other way round: which sigma, which step, how many rounds.

The search for sigma is ours because dp-accounting's calibrate_dp_mechanism asks its own
accountants only; five of the seven methods here are not among them.
"""

import csv
import dataclasses
import math
import pathlib
from collections.abc import Callable, Iterable

from gradaudit.errors import InputError
from gradaudit.privacy.events import Events, gaussian
from gradaudit.privacy.methods import ask, spend
from gradaudit.privacy.plan import PrivacyPlan

_SMALLEST, _LARGEST = 1e-2, 1e6  # the noise multipliers that are searched


@dataclasses.dataclass(frozen=True)
class Stop:
    """When a budget runs out: the first step whose epsilon exceeds it, or None.

    `final` is epsilon after all steps.
    """

    step: int | None
    final: float


def calibrate(
    target: float, q: float, steps: int, delta: float = 1e-5, method: str = "pld"
) -> float:
    """Returns the smallest constant sigma whose epsilon is at most `target`."""
    _check_target(target)

    def spent(sigma: float) -> float:
        return spend(method, gaussian(sigma, q, steps), delta).epsilon

    floor = spent(_LARGEST)
    if not floor <= target:
        raise InputError(
            f"{method} can't show epsilon = {target:g}: it never goes below "
            f"{floor:.4g} for q = {q:g}, {steps} steps and delta = {delta:g}; try rdp "
            "or pld"
        )
    if spent(_SMALLEST) <= target:
        raise InputError(
            f"epsilon = {target:g} is reached with less noise than sigma = "
            f"{_SMALLEST:g} by {method}; ask for a smaller epsilon"
        )
    return least(lambda sigma: spent(sigma) <= target, _SMALLEST, _LARGEST)


def least(holds: Callable[[float], bool], low: float, high: float) -> float:
    """Returns the least number for which something holds, as it does for `high`.

    It holds for the answer, which is one part in 100,000 too large at most.
    """
    low, high = math.log(low), math.log(high)
    while high - low > 1e-5:
        middle = (low + high) / 2
        low, high = (low, middle) if holds(math.exp(middle)) else (middle, high)
    return math.exp(high)


def exhausted_at(
    target: float,
    events: Events,
    delta: float = 1e-5,
    method: str = "pld",
    convention: str = "clean",
) -> Stop:
    """Returns the first step at which the budget `target` is exceeded."""
    _check_target(target)
    answering, asked = ask(method, events, delta, convention)
    step = answering.first_over(target, asked, delta)
    if step is not None:
        step = max(1, step - (asked.steps - events.steps))
    return Stop(step, answering.epsilon(asked, delta))


def first_reaching(log: Iterable[tuple[int, float]], accuracy: float) -> int:
    """Returns the first step (or round) of a training log that reaches an accuracy.

    Args:
      log: pairs of (step, accuracy), counted from 1.
      accuracy: the target.
    """
    entries = sorted(log)
    if not len(entries):
        raise InputError("the training log is empty")
    for step, reached in entries:
        if reached >= accuracy:
            return step
    best = max(reached for _, reached in entries)
    raise InputError(
        f"accuracy {accuracy:g} is never reached in the training log; "
        f"the best is {best:g}"
    )


def read_log(path: str | pathlib.Path) -> list[tuple[int, float]]:
    """Reads a CSV training log with the columns `accuracy` and `round` or `step`."""
    try:
        with pathlib.Path(path).open(newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"can't read the training log {path}: {error}") from None
    columns = set(rows[0]) if rows else set()
    step = next((name for name in ("step", "round") if name in columns), None)
    if step is None or "accuracy" not in columns:
        raise InputError(
            f"the training log {path} needs the columns accuracy and round (or step), "
            f"got {', '.join(sorted(columns)) or 'none'}"
        )
    try:
        return [
            (int(row[step] or ""), float(row["accuracy"]))
            for row in rows
            if row["accuracy"]  # a round without a validation
        ]
    except ValueError as error:
        raise InputError(f"the training log {path}: {error}") from None


def _check_target(target: float) -> None:
    if not (math.isfinite(target) and target > 0):
        raise InputError(
            f"the target epsilon must be positive and finite, got {target}"
        )


def affordable_rounds(target: float, plan: PrivacyPlan, delta: float = 1e-5) -> int:
    """Returns how many of the plan's rounds stay within epsilon = target, at least 1.

    The epsilon is the accounted one: this run's draws and shared examples, the noise
    at its word; the training's result says beside it what really holds. Guarantee:
    accounting that many rounds gives at most the target, and one more gives more (or
    there is none more).
    """
    rounds = rounds_within(target, plan, delta)
    if not rounds > 0:
        raise InputError(
            f"not even one round under {plan.defense.name!r} stays within "
            f"epsilon = {target:g}"
        )
    return rounds


def rounds_within(target: float, plan: PrivacyPlan, delta: float = 1e-5) -> int:
    """Returns the same, 0 if not even one round does."""
    events, limit = plan.accounted(), plan.setting.rounds
    if events is None:
        raise InputError(
            f"defense {plan.defense.name!r} claims no finite epsilon, so it can't have "
            "a target; choose one that clips and adds noise, as fed-cdp"
        )
    per_round = events.steps // limit
    stop = exhausted_at(target, events, delta).step
    rounds = limit if stop is None else (stop - 1) // per_round

    def spent(rounds: int) -> float:
        return spend("pld", events.first(rounds * per_round), delta).epsilon

    # The grid of losses belongs to the question, so each edge is asked on its own.
    while rounds > 0 and spent(rounds) > target:
        rounds -= 1
    while rounds < limit and spent(rounds + 1) <= target:
        rounds += 1
    return rounds
