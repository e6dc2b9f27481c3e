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
from typing import Any, Protocol

import jax.numpy as jnp
import numpy as np

from gradaudit.errors import InputError, unknown_name


class Schedule(Protocol):
    """A number that depends on the round."""

    def __call__(self, t: Any) -> Any:
        """Returns the value in round t: a float for an int, else an array."""


class _Formula(abc.ABC):
    """A schedule given by one formula, over numpy or jax.numpy."""

    @abc.abstractmethod
    def _at(self, t: Any, xp: Any) -> Any:
        """Returns the value in round t, computed with the numpy-like module `xp`."""

    def _last(self) -> int | None:
        """Returns the last round; later ones repeat its value. None = no end."""
        return int(getattr(self, "rounds")) - 1  # noqa: B009

    def __call__(self, t: Any) -> Any:
        """Returns the value in round t: a float for an int, else an array."""
        last = self._last()
        if isinstance(t, int | np.integer):
            return float(self._at(int(t) if last is None else min(int(t), last), np))
        t = t if last is None else jnp.minimum(t, last)
        return jnp.asarray(self._at(t, jnp), jnp.float32)


def _check_start(kind: str, start: float, rounds: int) -> None:
    if not (math.isfinite(start) and start > 0):
        raise InputError(f"{kind}: start must be positive and finite, got {start}")
    if not rounds >= 1:
        raise InputError(f"{kind}: rounds must be at least 1, got {rounds}")


def _check_rate(kind: str, rate: float) -> None:
    if not 0 < rate < 1:
        raise InputError(f"{kind}: rate must lie in (0, 1), got {rate}")


def _check_last(kind: str, schedule: Schedule, rounds: int) -> None:
    """Refuses a decay that is zero or negative in some round."""
    for t in range(rounds):
        value = schedule(t)
        if not value > 0:
            raise InputError(
                f"{kind}: the value must stay positive until the last round, "
                f"got {value:.6g} in round {t} of {rounds}; use a smaller rate"
            )


def _check_decay(kind: str, start: float, end: float) -> None:
    if not 0 < end < start:
        raise InputError(f"{kind}: end must lie in (0, start={start}), got end={end}")


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


@dataclasses.dataclass(frozen=True)
class Linear(_Formula):
    """start * (1 - rate * t) (Wei et al. 2023, section 5.3)."""

    start: float
    rate: float
    rounds: int

    def __post_init__(self) -> None:
        _check_start("linear", self.start, self.rounds)
        _check_rate("linear", self.rate)
        _check_last("linear", self, self.rounds)

    @classmethod
    def between(cls, start: float, end: float, rounds: int) -> "Linear":
        """Returns the schedule that would reach `end` at t = rounds."""
        _check_start("linear", start, rounds)
        _check_decay("linear", start, end)
        return cls(start, (1 - end / start) / rounds, rounds)

    def _at(self, t: Any, xp: Any) -> Any:
        return self.start * (1 - self.rate * t)


@dataclasses.dataclass(frozen=True)
class Staircase(_Formula):
    """start * (1 - rate * floor(t / step)) (Wei et al. 2023, section 5.3)."""

    start: float
    rate: float
    step: int
    rounds: int

    def __post_init__(self) -> None:
        _check_start("staircase", self.start, self.rounds)
        _check_rate("staircase", self.rate)
        if not self.step >= 1:
            raise InputError(f"staircase: step must be at least 1, got {self.step}")
        _check_last("staircase", self, self.rounds)

    @classmethod
    def between(
        cls, start: float, end: float, rounds: int, stairs: int = 10
    ) -> "Staircase":
        """Returns `stairs` equal drops, the last of which would end at `end`."""
        _check_start("staircase", start, rounds)
        _check_decay("staircase", start, end)
        if not stairs >= 1:
            raise InputError(f"staircase: stairs must be at least 1, got {stairs}")
        return cls(start, (1 - end / start) / stairs, -(-rounds // stairs), rounds)

    def _at(self, t: Any, xp: Any) -> Any:
        return self.start * (1 - self.rate * (t // self.step))


@dataclasses.dataclass(frozen=True)
class Exponential(_Formula):
    """start * exp(-rate * t) (Wei et al. 2023, section 5.3)."""

    start: float
    rate: float
    rounds: int

    def __post_init__(self) -> None:
        _check_start("exponential", self.start, self.rounds)
        _check_rate("exponential", self.rate)
        _check_last("exponential", self, self.rounds)

    @classmethod
    def between(cls, start: float, end: float, rounds: int) -> "Exponential":
        """Returns the schedule that would reach `end` at t = rounds."""
        _check_start("exponential", start, rounds)
        _check_decay("exponential", start, end)
        return cls(start, math.log(start / end) / rounds, rounds)

    def _at(self, t: Any, xp: Any) -> Any:
        return self.start * xp.exp(-self.rate * t)


@dataclasses.dataclass(frozen=True)
class CosineCycles(_Formula):
    """Cosine annealing with restarts (Wei et al. 2023, section 5.3).

    In each of `cycles` periods the value falls from `start` towards `floor`. The
    paper's formula has floor = 0, which ends every cycle next to no noise at all.
    """

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
class TriangleCycles(_Formula):
    """A decaying triangle wave (Wei & Liu 2022, section IV-A).

    The value falls for `step` rounds as peak * (1 - rate * s), rises back over the
    next `step`, and the peak itself loses the share `decay` of `start` per triangle.
    The paper uses one letter for the step and for its index; this is how we read it.
    """

    start: float
    rate: float
    step: int
    decay: float
    rounds: int

    def __post_init__(self) -> None:
        _check_start("triangle", self.start, self.rounds)
        _check_rate("triangle", self.rate)
        _check_rate("triangle decay", self.decay)
        if not self.step >= 1:
            raise InputError(f"triangle: step must be at least 1, got {self.step}")
        _check_last("triangle", self, self.rounds)

    def _at(self, t: Any, xp: Any) -> Any:
        half, within = t // self.step, t % self.step
        distance = xp.where(half % 2 == 0, within, self.step - within)
        peak = self.start * (1 - self.decay * (half // 2))
        return peak * (1 - self.rate * distance)


@dataclasses.dataclass(frozen=True)
class InverseLinear(_Formula):
    """1 / value grows linearly, so epsilon per round does (Wei & Liu 2022, Table VIII).

    1 / value = (1 / start) * (1 + rate * t).
    """

    start: float
    rate: float
    rounds: int

    def __post_init__(self) -> None:
        _check_start("inverse-linear", self.start, self.rounds)
        _check_rate("inverse-linear", self.rate)

    @classmethod
    def between(cls, start: float, end: float, rounds: int) -> "InverseLinear":
        """Returns the schedule that would reach `end` at t = rounds."""
        _check_start("inverse-linear", start, rounds)
        _check_decay("inverse-linear", start, end)
        return cls(start, (start / end - 1) / rounds, rounds)

    def _at(self, t: Any, xp: Any) -> Any:
        return self.start / (1 + self.rate * t)


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


# name -> schedule from (start, end, rounds); the words of the command line
POLICIES: dict[str, Callable[[float, float, int], Schedule]] = {
    "linear": Linear.between,
    "staircase": Staircase.between,
    "exponential": Exponential.between,
    "cyclic": lambda start, end, rounds: CosineCycles(start, 2, rounds, end),
    "triangle": lambda start, end, rounds: TriangleCycles(
        start, (1 - end / start) / rounds, max(1, rounds // 4), 0.1, rounds
    ),
    "inverse-linear": InverseLinear.between,
}


def decay(policy: str, start: float, end: float, rounds: int) -> Schedule:
    """Returns the named policy from `start` to `end` over `rounds`."""
    if policy not in POLICIES:
        raise unknown_name("decay policy", policy, POLICIES)
    return POLICIES[policy](start, end, rounds)


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
