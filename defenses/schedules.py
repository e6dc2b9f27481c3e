"""Schedules: how a clipping bound or a noise scale changes over the rounds.

A schedule is a frozen dataclass that is called with the round `t`, counted from 0.
A Python integer gives a Python float (accounting reads it); a traced or concrete
array gives an array (the transforms read it inside jit). After the last round the
value is held. Every schedule is positive on all of its rounds, or it can't be built.
"""

import abc
import dataclasses
import math
import pathlib
from collections.abc import Callable
from typing import Any, ClassVar, Protocol

import jax.numpy as jnp
import numpy as np

from gradaudit.errors import InputError, named


class Schedule(Protocol):
    """A number that depends on the round."""

    def __call__(self, t: Any) -> Any:
        """Returns the value in round t: a float for an int, else an array."""


class _Formula(abc.ABC):
    """A schedule given by one formula, over numpy or jax.numpy."""

    @abc.abstractmethod
    def _at(self, t: Any, xp: Any) -> Any:
        """Returns the value in round t, computed with the numpy-like module `xp`."""

    @abc.abstractmethod
    def _last(self) -> int | None:
        """Returns the last round; later ones repeat its value. None = no end."""

    def __call__(self, t: Any) -> Any:
        """Returns the value in round t: a float for an int, else an array."""
        last = self._last()
        if isinstance(t, int | np.integer):
            return float(self._at(int(t) if last is None else min(int(t), last), np))
        t = t if last is None else jnp.minimum(t, last)
        return jnp.asarray(self._at(t, jnp), jnp.float32)


@dataclasses.dataclass(frozen=True)
class Constant(_Formula):
    """The same value in every round; zero is allowed (no noise)."""

    value: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.value) and self.value >= 0):
            raise InputError(
                f"the value must be finite and not negative, got {self.value}"
            )

    def _at(self, t: Any, xp: Any) -> Any:
        return xp.full(xp.shape(t), self.value)

    def _last(self) -> int | None:
        return None


class _Decay(_Formula):
    """A formula from a start on, over a number of rounds, for dataclasses.

    Refuses what is zero or negative in some round.
    """

    policy: ClassVar[str]
    start: float
    rounds: int

    def __post_init__(self) -> None:
        _check_start(self.policy, self.start, self.rounds)
        parameters = vars(self)
        for name in ("rate", "decay"):
            value = parameters.get(name, 0.5)
            if not 0 < value < 1:
                raise InputError(
                    f"{self.policy}: {name} must lie in (0, 1), got {value}"
                )
        if not parameters.get("step", 1) >= 1:
            raise InputError(
                f"{self.policy}: step must be at least 1, got {parameters['step']}"
            )
        for t in range(self.rounds):
            value = self(t)
            if not value > 0:
                raise InputError(
                    f"{self.policy}: the value must stay positive until the last "
                    f"round, got {value:.6g} in round {t} of {self.rounds}; use a "
                    "smaller rate"
                )

    def _last(self) -> int | None:
        return int(self.rounds) - 1


def _check_start(policy: str, start: float, rounds: int) -> None:
    if not (math.isfinite(start) and start > 0):
        raise InputError(f"{policy}: start must be positive and finite, got {start}")
    if not rounds >= 1:
        raise InputError(f"{policy}: rounds must be at least 1, got {rounds}")


@dataclasses.dataclass(frozen=True)
class _WithRate(_Decay):
    start: float
    rate: float
    rounds: int


class Linear(_WithRate):
    """start * (1 - rate * t) (Wei et al. 2023, section 5.3)."""

    policy = "linear"

    def _at(self, t: Any, xp: Any) -> Any:
        return self.start * (1 - self.rate * t)


class Exponential(_WithRate):
    """start * exp(-rate * t) (Wei et al. 2023, section 5.3)."""

    policy = "exponential"

    def _at(self, t: Any, xp: Any) -> Any:
        return self.start * xp.exp(-self.rate * t)


class InverseLinear(_WithRate):
    """1 / value grows linearly, so epsilon per round does (Wei & Liu 2022, Table VIII).

    1 / value = (1 / start) * (1 + rate * t).
    """

    policy = "inverse-linear"

    def _at(self, t: Any, xp: Any) -> Any:
        return self.start / (1 + self.rate * t)


@dataclasses.dataclass(frozen=True)
class Staircase(_Decay):
    """start * (1 - rate * floor(t / step)) (Wei et al. 2023, section 5.3)."""

    policy = "staircase"
    start: float
    rate: float
    step: int
    rounds: int

    def _at(self, t: Any, xp: Any) -> Any:
        return self.start * (1 - self.rate * (t // self.step))


@dataclasses.dataclass(frozen=True)
class CosineCycles(_Decay):
    """Cosine annealing with restarts (Wei et al. 2023, section 5.3).

    In each of `cycles` periods the value falls from `start` towards `floor`. The
    paper's formula has floor = 0, which ends every cycle next to no noise at all.
    """

    policy = "cyclic"
    start: float
    cycles: int
    rounds: int
    floor: float = 0.0

    def __post_init__(self) -> None:
        _check_start("cyclic", self.start, self.rounds)
        if not 1 <= self.cycles <= self.rounds:
            raise InputError(
                f"cyclic: cycles must lie in 1..rounds={self.rounds}, got {self.cycles}"
            )
        if not 0 <= self.floor < self.start:
            raise InputError(
                f"cyclic: floor must lie in [0, start={self.start}), got {self.floor}"
            )

    def _at(self, t: Any, xp: Any) -> Any:
        period = -(-self.rounds // self.cycles)
        wave = (xp.cos(math.pi * (t % period) / period) + 1) / 2
        return self.floor + (self.start - self.floor) * wave


@dataclasses.dataclass(frozen=True)
class TriangleCycles(_Decay):
    """A decaying triangle wave (Wei & Liu 2022, section IV-A).

    The value falls for `step` rounds as peak * (1 - rate * s), rises back over the
    next `step`, and the peak itself loses the share `decay` of `start` per triangle.
    The paper uses one letter for the step and for its index; this is how we read it.
    """

    policy = "triangle"
    start: float
    rate: float
    step: int
    decay: float
    rounds: int

    def _at(self, t: Any, xp: Any) -> Any:
        half, within = t // self.step, t % self.step
        distance = xp.where(half % 2 == 0, within, self.step - within)
        peak = self.start * (1 - self.decay * (half // 2))
        return peak * (1 - self.rate * distance)


@dataclasses.dataclass(frozen=True)
class Table(_Formula):
    """One value per round, for example from a file."""

    values: tuple[float, ...]

    def __post_init__(self) -> None:
        if not len(self.values):
            raise InputError("a schedule table needs at least one value")
        for t, value in enumerate(self.values):
            if not (math.isfinite(value) and value > 0):
                raise InputError(
                    f"a schedule table must be positive, got {value} in round {t}"
                )

    @classmethod
    def read(cls, path: str | pathlib.Path) -> "Table":
        """Reads numbers that are separated by commas or white space."""
        try:
            text = pathlib.Path(path).read_text()
        except OSError as error:
            raise InputError(f"can't read the schedule {path}: {error}") from None
        try:
            return cls(tuple(float(word) for word in text.replace(",", " ").split()))
        except ValueError as error:
            raise InputError(f"the schedule {path}: {error}") from None

    def _at(self, t: Any, xp: Any) -> Any:
        return xp.asarray(self.values)[t]

    def _last(self) -> int | None:
        return len(self.values) - 1


_CYCLES = {"cyclic", "triangle"}  # they come back up, and may fall to 0
_STAIRS = 10

# policy -> its schedule from (start, end, rounds): `end` is reached at t = rounds, or
# at the bottom of a cycle
POLICIES: dict[str, Callable[[float, float, int], Schedule]] = {
    "linear": lambda start, end, rounds: Linear(
        start, (1 - end / start) / rounds, rounds
    ),
    "staircase": lambda start, end, rounds: Staircase(
        start, (1 - end / start) / _STAIRS, -(-rounds // _STAIRS), rounds
    ),
    "exponential": lambda start, end, rounds: Exponential(
        start, math.log(start / end) / rounds, rounds
    ),
    "cyclic": lambda start, end, rounds: CosineCycles(start, 2, rounds, end),
    "triangle": lambda start, end, rounds: TriangleCycles(
        start, (1 - end / start) / rounds, max(1, rounds // 4), 0.1, rounds
    ),
    "inverse-linear": lambda start, end, rounds: InverseLinear(
        start, (start / end - 1) / rounds, rounds
    ),
}


def decay(policy: str, start: float, end: float, rounds: int) -> Schedule:
    """Returns the named policy from `start` to `end` over `rounds`."""
    make = named("decay policy", policy, POLICIES)
    _check_start(policy, start, rounds)
    if policy not in _CYCLES and not 0 < end < start:
        raise InputError(f"{policy}: end must lie in (0, start={start}), got end={end}")
    return make(start, end, rounds)


def as_schedule(name: str, value: "float | Schedule", zero: bool = False) -> Schedule:
    """Returns a schedule for a number or a schedule, or says what is wrong with it."""
    if callable(value):
        return value
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise InputError(f"{name} must be a number or a schedule, got {value!r}")
    valid = math.isfinite(value) and (value >= 0 if zero else value > 0)
    wanted = "finite and not negative" if zero else "positive and finite"
    if not valid:
        raise InputError(f"{name} must be {wanted}, got {value}")
    return Constant(float(value))
