"""Errors in words: what was wrong, what was expected, what to do.

Everything that a user can get wrong raises `InputError`; the command line turns
it into one line on stderr and exit code 2.
"""

import difflib
import math
from collections.abc import Iterable, Mapping
from typing import TypeVar

Value = TypeVar("Value")


class InputError(ValueError):
    """A value that the caller gave can't be used; the message says why."""


class LostProcess(RuntimeError):
    """A process that took part in the work is gone; the message says what to do."""


def at_least(least: int, most: int | None = None, **numbers: int | None) -> None:
    """Raises `InputError` unless every number lies there; None is no number."""
    for name, value in numbers.items():
        if value is not None and not value >= least:
            raise InputError(f"{name} must be at least {least}, got {value}")
        if value is not None and most is not None and value > most:
            raise InputError(f"{name} must be at most {most:,}, got {value:,}")


def positive(**numbers: float | None) -> None:
    """Raises `InputError` unless every number is positive and finite; None is none."""
    for name, value in numbers.items():
        if value is not None and not 0 < value < math.inf:
            raise InputError(f"{name} must be positive and finite, got {value}")


def within_unit(**numbers: float) -> None:
    """Raises `InputError` unless every number lies between 0 and 1, both excluded."""
    for name, value in numbers.items():
        if not 0 < value < 1:
            raise InputError(f"{name} must lie in (0, 1), got {value}")


def check_seed(seed: int) -> None:
    """Raises `InputError` unless jax reads all of the seed, which is 32 bits.

    Larger ones would repeat smaller ones.
    """
    if not 0 <= seed < 2**32:
        raise InputError(f"seed must lie in 0..2^32 - 1, got {seed}")


def not_negative(**numbers: float) -> None:
    """Raises `InputError` unless every number is at least 0."""
    for name, value in numbers.items():
        if not value >= 0:
            raise InputError(f"{name} must not be negative, got {value}")


def unknown_name(kind: str, name: str, known: Iterable[str]) -> InputError:
    """Returns the error for a name that is not in a table, with the nearest one."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return InputError(f"unknown {kind} {name!r}{hint} (known: {', '.join(names)})")


def named(kind: str, name: str, known: Mapping[str, Value]) -> Value:
    """Returns what a table has under a name; raises `InputError` for an unknown one."""
    if name not in known:
        raise unknown_name(kind, name, known)
    return known[name]
