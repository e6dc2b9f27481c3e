"""What a benchmark is: cells of plain data, and tables made of what they measured."""

import dataclasses
import enum
import hashlib
import importlib.util
import json
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gradaudit.errors import InputError

Plain = dict[str, Any]  # what JSON holds


class Missing(InputError):
    """A cell can't run here; the message says what is missing. No other cell minds."""


class Scale(enum.Enum):
    """How much of a published table is run."""

    SMOKE = "smoke"  # seconds: does it still run
    SMALL = "small"  # minutes on two cores
    PAPER = "paper"  # the published sizes


def quiet(text: str, done: int, total: int) -> None:
    """Tells nobody."""


@dataclasses.dataclass(frozen=True)
class Context:
    """What a running cell has beside its arguments; it decides no number."""

    folder: pathlib.Path | None = None  # where unfinished work is kept
    tell: Callable[[str, int, int], None] = quiet  # what runs, how much of it is done


Measure = Callable[..., Plain]  # measure(context, **arguments)


@dataclasses.dataclass(frozen=True)
class Cell:
    """One measurement, as plain data: `measure(context, **arguments)` is all of it.

    `measure` is a function of a module, so that a cell can be sent to another process.
    Guarantee: equal cells measure equal numbers, times apart; a cell that several
    benchmarks need is therefore run once.
    """

    name: str  # unique in its benchmark
    measure: Measure
    arguments: Plain
    datasets: tuple[str, ...] = ()  # that must be here
    modules: tuple[str, ...] = ()  # that must be installed
    # How long it takes: `units` of work of one kind, and what measures their speed.
    kind: str = ""
    units: float = 0.0
    sample: Plain | None = None  # arguments of a short run of the same kind

    @property
    def fingerprint(self) -> str:
        """What decides the numbers."""
        what = [self.measure.__module__, self.measure.__qualname__, self.arguments]
        return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()

    def missing(self) -> str | None:
        """Returns in words why the cell can't run here, or None."""
        from gradaudit.data import CATALOGUE

        for name in self.datasets:
            if name in CATALOGUE and not CATALOGUE[name].is_here():
                return f"{name} is not here: gradaudit data fetch {name}"
        for name in self.modules:
            if importlib.util.find_spec(name) is None:
                return f"{name} is not installed: pip install 'gradaudit[reference]'"
        return None


def run_cell(cell: Cell, context: Context) -> Plain:
    """Measures one cell."""
    return cell.measure(context, **cell.arguments)


Measured = Mapping[str, Plain]  # what the finished cells measured, by name


@dataclasses.dataclass(frozen=True)
class Entry:
    """One place of a table: what is printed in the paper, and what came out here."""

    measured: str = "–"
    published: str = ""

    def __str__(self) -> str:
        return (
            f"{self.measured} ({self.published})" if self.published else self.measured
        )


Row = list[Entry | str]  # labels are words, entries were measured


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows of labels and entries, under a title."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Row]


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """A family of published tables."""

    name: str
    title: str
    published: str  # which tables of which papers
    cells: Callable[[Scale, int], list[Cell]]  # for a seed
    tables: Callable[[Measured, Scale], list[Table]]
    differences: Callable[[Scale], list[str]]  # to the published setting, in words


def number(value: Any, digits: int = 3) -> str:
    """Returns a figure as tables show it; a dash for what there is not."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return (
        f"{value:.{digits}g}"
        if abs(value) < 1e-3 or value >= 1e4
        else (f"{value:.{digits}f}")
    )


def found(measured: Measured, name: str, *path: str) -> Any:
    """Returns what a cell measured under a path of keys; None if it was not run."""
    value: Any = measured.get(name)
    for key in path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(key)
    return value


def of_scale(scale: Scale, **values: Any) -> Any:
    """Returns the value of a scale: `of_scale(scale, smoke=1, small=5, paper=9)`."""
    if scale.value not in values:
        raise InputError(f"nothing is set for the scale {scale.value}")
    return values[scale.value]
