"""Privacy events: which noisy releases a unit's data takes part in, in order."""

import dataclasses
import enum
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gradaudit.errors import InputError, at_least

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]
Numbers = float | Sequence[float] | FloatArray  # one for all steps, or one per step

MOST_STEPS = 10**8  # composed in seconds
_MOST_NOISE = 1e9  # beyond, epsilon is all rounding


class Unit(enum.Enum):
    """Whose presence the guarantee hides."""

    EXAMPLE = "example"
    CLIENT = "client"


@dataclasses.dataclass(frozen=True, eq=False)
class Events:
    """A sequence of noisy releases, as runs of equal steps.

    `noise` is the noise multiplier sigma of a Gaussian release, or the epsilon of a
    `pure` one, relative to the change that neighbours make. A unit takes part in a
    step with probability `rate`: on its own coin (Poisson; neighbours differ by adding
    or removing it), or, where `fixed`, in a draw of a fixed size without replacement
    (neighbours differ by replacing it).
    """

    noise: FloatArray  # (runs,)
    rate: FloatArray  # (runs,)
    pure: BoolArray  # (runs,)
    fixed: BoolArray  # (runs,)
    count: IntArray  # (runs,) how many steps in a row

    @property
    def steps(self) -> int:
        """Returns how many releases there are."""
        return int(self.count.sum())

    @property
    def is_constant(self) -> bool:
        """Returns whether every step is the same."""
        return len(self.merged().noise) == 1

    def between(self, start: int, end: int) -> "Events":
        """Returns steps start + 1 .. end."""
        last = np.cumsum(self.count)
        before = last - self.count
        count = np.minimum(last, end) - np.maximum(before, start)
        kept = count > 0
        columns = self.noise, self.rate, self.pure, self.fixed, count
        return Events(*(column[kept] for column in columns))

    def first(self, steps: int) -> "Events":
        """Returns the first steps."""
        return self.between(0, steps)

    def extended(self, steps: int) -> "Events":
        """Returns the events with the last one repeated this many times more."""
        count = self.count.copy()
        count[-1] += steps
        return dataclasses.replace(self, count=count)

    def repeated(self, times: int) -> "Events":
        """Returns the events with every step repeated in place."""
        return dataclasses.replace(self, count=self.count * times)

    def merged(self) -> "Events":
        """Returns equal steps as one run each, sorted: the order carries no privacy."""
        kinds = [self.noise, self.rate, self.pure, self.fixed]
        rows, index = np.unique(np.stack(kinds, 1), axis=0, return_inverse=True)
        count = np.bincount(index, weights=self.count).astype(np.int64)
        pure, fixed = rows[:, 2].astype(bool), rows[:, 3].astype(bool)
        return Events(rows[:, 0], rows[:, 1], pure, fixed, count)

    def relation(self, unit: Unit) -> str:
        """Returns the neighbouring relation in words."""
        if not self.fixed.any():
            return f"add or remove one {unit.value}"
        return f"replace one {unit.value}"

    def __add__(self, other: "Events") -> "Events":
        """Returns these events followed by the other's."""
        return _joined([self, other], np.concatenate)


def in_turn(parts: Sequence[Events]) -> Events:
    """Returns a run of each sequence in turn: all of them in the order of time."""
    if len({len(part.count) for part in parts}) != 1:
        raise InputError("only sequences with as many runs each can be taken in turn")
    return _joined(parts, lambda columns: np.stack(columns, axis=1).ravel())


def _joined(parts: Sequence[Events], join: Callable[[list[Any]], Any]) -> Events:
    names = [field.name for field in dataclasses.fields(Events)]
    return Events(*(join([getattr(part, name) for part in parts]) for name in names))


def gaussian(
    sigma: Numbers, q: Numbers, steps: int | None = None, *, fixed: bool = False
) -> Events:
    """Returns Gaussian releases with noise multiplier sigma and sampling rate q.

    Args:
      sigma: one number for all steps, or one per step.
      q: one number for all steps, or one per step.
      steps: how many; may be left out when sigma or q has one value per step.
      fixed: drawn in a fixed size without replacement, not on independent coins;
        sigma is then relative to what replacing one unit changes.
    """
    return _events(sigma, q, steps, pure=False, fixed=fixed)


def pure(
    epsilon: Numbers, q: Numbers, steps: int | None = None, *, fixed: bool = False
) -> Events:
    """Returns releases that are epsilon-DP each (Laplace, LDP randomizers)."""
    return _events(epsilon, q, steps, pure=True, fixed=fixed)


def from_sensitivity_trace(
    noise_std: float, sensitivities: Sequence[float] | FloatArray, q: float
) -> Events:
    """Returns the events of noise of one fixed std under a changing sensitivity.

    sigma_t = std / S_t (Wei & Liu 2022, Table VII); `sensitivities` is a recorded
    trace of S, one value per step.
    """
    if not (math.isfinite(noise_std) and noise_std > 0):
        raise InputError(f"the noise std must be positive, got {noise_std}")
    trace = np.atleast_1d(np.asarray(sensitivities, float))
    if not np.all(np.isfinite(trace) & (trace > 0)):
        raise InputError("every sensitivity of the trace must be positive and finite")
    return gaussian(noise_std / trace, q)


def _events(
    noise: Numbers, q: Numbers, steps: int | None, *, pure: bool, fixed: bool
) -> Events:
    name = "epsilon" if pure else "sigma"
    noises, rates = np.atleast_1d(np.asarray(noise, float), np.asarray(q, float))
    runs = max(len(noises), len(rates))
    if steps is None:
        steps = runs
    at_least(1, MOST_STEPS, steps=steps)
    for what, values in ((name, noises), ("q", rates)):
        if len(values) not in (1, steps):
            raise InputError(
                f"{what} must be one number or {steps} numbers, got {len(values)}"
            )
    _check_all(noises, noises > 0, f"{name} must be positive and finite")
    _check_all(noises, noises <= _MOST_NOISE, f"{name} must be at most {_MOST_NOISE:g}")
    _check_all(rates, (rates > 0) & (rates <= 1), "q must lie in (0, 1]")
    return Events(
        np.broadcast_to(noises, (runs,)).copy(),
        np.broadcast_to(rates, (runs,)).copy(),
        np.full(runs, pure),
        np.broadcast_to(fixed & (rates < 1), (runs,)).copy(),
        np.full(runs, steps // runs, np.int64),
    )


def _check_all(values: FloatArray, in_range: BoolArray, message: str) -> None:
    wrong = np.flatnonzero(~(np.isfinite(values) & in_range))
    if len(wrong):
        where = f" in step {wrong[0]}" if len(values) > 1 else ""
        raise InputError(f"{message}, got {values[wrong[0]]}{where}")
