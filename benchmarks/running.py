"""Runs benchmarks: cells wherever they run, each kept as it finishes, none twice."""

import importlib
import os
import pathlib
import shutil
import time
from collections.abc import Callable, Iterator, Sequence

from gradaudit import files, machine
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
from gradaudit.errors import LostProcess, unknown_name
from gradaudit.executors import Executor, Task, in_this_process
from gradaudit.executors import Tell as TellTask

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
    executor: Executor = in_this_process,
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
        for cell, answer in _answers(pending, work, executor, tell, done, len(cells)):
            if "missing" in answer:
                say(f"left out: {cell.name} ({answer['missing']})")
                record.lacks(cell, answer["missing"])
            else:
                record.add(cell, record.finished(cell, **answer))
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


def measured(argument: Plain, folder: pathlib.Path, tell: TellTask) -> Plain:
    """Measures one cell, given as plain data; returns what is kept of it.

    Or what it lacks: peers' packages are only found out to be missing on the way.
    """
    module, _, name = argument["measure"].partition(":")
    measure = getattr(importlib.import_module(module), name)
    cell = Cell(argument["name"], measure, argument["arguments"])

    def inside(text: str, part: int, whole: int) -> None:
        tell(part, whole, text)

    machine.configure()  # before anybody asks what there is: a cell may not use jax
    machine.forget_programs()
    began = time.perf_counter()
    try:
        found = run_cell(cell, Context(folder, inside))
    except Missing as lacks:
        return {"missing": str(lacks)}
    return {
        "measured": files.finite(found),
        "seconds": time.perf_counter() - began,
        "load": round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None,
        "environment": machine.describe(),
    }


def _answers(
    cells: list[Cell],
    work: pathlib.Path,
    executor: Executor,
    tell: Tell,
    done: int,
    total: int,
) -> Iterator[tuple[Cell, Plain]]:
    """Measures cells wherever that is; yields each with its answer as it comes."""
    tasks = [
        Task(
            cell.name,
            f"{measured.__module__}:{measured.__name__}",
            {
                "name": cell.name,
                "measure": f"{cell.measure.__module__}:{cell.measure.__qualname__}",
                "arguments": cell.arguments,
            },
            work / cell.fingerprint[:16],
        )
        for cell in cells
    ]

    def hear(index: int, part: int, whole: int, text: str) -> None:
        words = f"{done + 1} of {total}: {cells[index].name}"
        tell(f"{words}, {text}" if text else words, part, whole)

    for index, answer in executor(tasks, hear):
        done += 1
        if isinstance(answer, LostProcess):
            raise LostProcess(f"{cells[index].name}: {answer}")
        yield cells[index], answer


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
