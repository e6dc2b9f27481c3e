"""Runs benchmarks: cell after cell, each kept as it finishes, none twice."""

import pathlib
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from gradaudit import files
from gradaudit.benchmarks.logbook import Record, finished_cells
from gradaudit.benchmarks.suite import (
    Benchmark,
    Cell,
    Context,
    Missing,
    Plain,
    Scale,
    quiet,
    run_cell,
)
from gradaudit.errors import unknown_name

Tell = Callable[[str, int, int], None]
Say = Callable[[str], None]
_WORK = ".work"  # checkpoints of cells that are not finished


def run_benchmark(
    benchmark: Benchmark,
    scale: Scale,
    seed: int,
    folder: pathlib.Path,
    *,
    only: Sequence[str] = (),
    overwrite: bool = False,
    tell: Tell = quiet,
    say: Say = lambda line: None,
) -> Record:
    """Runs the cells that the folder does not have yet; returns the record.

    An interrupt leaves every finished cell in the record, and of a training the last
    finished round: the same call goes on from there. A cell that another benchmark has
    measured in the same folder is taken from it. What is missing (a data set, a
    package) is said and kept in the record.
    """
    with files.one_run_in(folder):
        if overwrite:
            (folder / benchmark.name / f"{scale.value}.json").unlink(missing_ok=True)
        record = Record.begin(folder, benchmark, scale, seed)
        every = benchmark.cells(scale, seed)
        cells = _only(every, only)
        pending = _pending(record, cells, folder, overwrite, say)
        work = folder / _WORK / f"{benchmark.name}-{scale.value}"
        done = len(cells) - len(pending)
        for cell, kept in in_turn(pending, record, work, tell, done, len(cells)):
            if isinstance(kept, Missing):
                say(f"left out: {cell.name} ({kept})")
                record.lacks(cell, str(kept))
            else:
                record.add(cell, kept)
        shutil.rmtree(work, ignore_errors=True)
        record.arrange(every)
        return record


def _only(cells: list[Cell], texts: Sequence[str]) -> list[Cell]:
    """Returns the cells of these names, or with these texts in their names.

    No texts mean all cells; a text that is in no name raises in words.
    """
    wanted: set[str] = set() if texts else {cell.name for cell in cells}
    for text in texts:
        named = {cell.name for cell in cells if cell.name == text}
        named = named or {cell.name for cell in cells if text in cell.name}
        if cells and not named:
            raise unknown_name("text of a cell's name", text, (c.name for c in cells))
        wanted |= named
    return [cell for cell in cells if cell.name in wanted]


def selected(
    benchmark: Benchmark,
    scale: Scale,
    seed: int,
    only: Sequence[str] = (),
    folder: pathlib.Path | None = None,
) -> list[Cell]:
    """Returns the cells that a run would measure: those that a folder lacks."""
    known = {} if folder is None else finished_cells(folder)
    return [
        cell
        for cell in _only(benchmark.cells(scale, seed), only)
        if cell.fingerprint not in known and cell.missing() is None
    ]


def _pending(
    record: Record,
    cells: list[Cell],
    folder: pathlib.Path,
    overwrite: bool,
    say: Say,
) -> list[Cell]:
    """Returns what is left to measure, after taking what others have measured."""
    pending, others = [], {} if overwrite else finished_cells(folder)
    for cell in cells:
        why = cell.missing()
        if record.has(cell):
            continue
        if cell.fingerprint in others:
            kept, lender = others[cell.fingerprint]
            record.add(cell, record.borrowed(kept, lender))
        elif why is not None:
            say(f"left out: {cell.name} ({why})")
            record.lacks(cell, why)
        else:
            pending.append(cell)
    return pending


def in_turn(
    cells: Iterable[Cell],
    record: Record,
    work: pathlib.Path,
    tell: Tell,
    done: int,
    total: int,
) -> Iterator[tuple[Cell, Plain | Missing]]:
    """Measures one cell after the other; yields each with what is kept of it.

    Or with what it lacks: peers' packages are only found out to be missing on the way.
    """
    for index, cell in enumerate(cells, done):
        name, place = cell.name, f"{index + 1} of {total}"

        def inside(
            text: str, part: int, whole: int, name: str = name, place: str = place
        ) -> None:
            tell(f"{place}: {name}, {text}", part, whole)

        tell(f"{place}: {name}", 0, 1)
        began = time.perf_counter()
        context = Context(work / cell.fingerprint[:16], inside)
        try:
            measured = run_cell(cell, context)
        except Missing as lacks:
            yield cell, lacks
            continue
        yield cell, record.finished(cell, measured, time.perf_counter() - began)


def estimate(cells: list[Cell], tell: Tell = quiet) -> tuple[float, list[str]]:
    """Returns how many seconds the cells take here, and what is not counted.

    A short run of each kind of work is measured first, of its cheapest cell: its
    seconds per unit, times the units of the cells of that kind.
    """
    dearest_first = sorted(cells, key=lambda cell: -cell.units)
    kinds = {cell.kind: cell for cell in dearest_first if cell.sample is not None}
    speeds = {}
    for index, (kind, cell) in enumerate(kinds.items()):
        tell(f"measuring a sample: {kind}", index, len(kinds))
        measured = cell.measure(Context(), **(cell.arguments | (cell.sample or {})))
        speeds[kind] = float(measured["timing"]["seconds_per_unit"])
    seconds = sum(speeds.get(cell.kind, 0.0) * cell.units for cell in cells)
    return seconds, [cell.name for cell in cells if cell.kind not in speeds]
