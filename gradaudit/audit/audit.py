"""`ga.audit`: the whole grid, one verdict, one page.

Cells are saved as they finish, each in its folder below `cells/`; audit.json is whole
at every moment. The same audit goes on from there.
"""

import contextlib
import dataclasses
import datetime
import pathlib
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console

from gradaudit import files, machine
from gradaudit.audit.audit_cells import DONE, INTERRUPTED, failed, finished, run_cell
from gradaudit.audit.audit_document import assemble
from gradaudit.audit.audit_gates import Gates
from gradaudit.audit.audit_grid import Grid
from gradaudit.audit.audit_plan import AuditPlan, changed
from gradaudit.audit.captured_grid import CapturedGrid
from gradaudit.clusters import placed
from gradaudit.errors import InputError, LostProcess
from gradaudit.executors import Executor, Task, in_this_process
from gradaudit.report import summary
from gradaudit.report.page import page
from gradaudit.report.result import AUDIT, Result, claim
from gradaudit.spec import Spec

Plain = dict[str, Any]
CELLS = "cells"
# Cells finished, cells in all, a running one's name, how much of it is done, of what.
# Where several run at once, the first counts what all of the others have done, too.
Tell = Callable[[float, int, str, int, int], None]


@dataclasses.dataclass(frozen=True)
class AuditResult(Result):
    """Everything of one audit; `document` is audit.json, `folder` has the cells."""

    file = AUDIT

    document: Plain
    folder: pathlib.Path
    include_reconstructions: bool = False

    @property
    def verdict(self) -> str:
        """The worst cell's: leaks, not shown to leak, certified below ..."""
        return str(self.document["headline"]["verdict"])

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C came before the end."""
        return bool(self.document["status"] == INTERRUPTED)

    @property
    def exit_code(self) -> int:
        """What the program ends with: 0, 1, 3 or 130."""
        return int(self.document["gates"]["exit_code"])

    def to_dict(self) -> Plain:
        """Returns audit.json."""
        return self.document

    def rows(self) -> dict[str, list[Plain]]:
        """Returns cells.csv, a row for each attack and line-up."""
        return {"cells.csv": summary.rows(self.document)}

    def texts(self) -> dict[str, Callable[[], str]]:
        """Returns the page, and the summaries for continuous integration."""
        return {
            "summary.md": lambda: summary.markdown(self.document),
            "junit.xml": lambda: summary.junit(self.document),
            "report.html": lambda: page(
                self.document, self.folder, self.include_reconstructions
            ),
        }

    def save(self, folder: pathlib.Path | str) -> pathlib.Path:
        """Writes audit.json, the page and the summaries; brings the cells along."""
        target = pathlib.Path(folder)
        if target.resolve() != self.folder.resolve() and (self.folder / CELLS).exists():
            shutil.copytree(self.folder / CELLS, target / CELLS, dirs_exist_ok=True)
        return super().save(target)

    def show(self) -> None:
        """Prints what the command line prints."""
        Console(highlight=False).print(summary.audit_table(self.document))


def audit(
    plan: AuditPlan | None = None,
    *,
    gates: Gates | None = None,
    out: pathlib.Path | str | None = None,
    overwrite: bool = False,
    extend: bool = False,
    include_reconstructions: bool = False,
    progress: Tell | None = None,
    on: str | Executor = in_this_process,
    **asked: Any,
) -> AuditResult:
    """Audits every cell of a grid, and says in one line what came out.

    `ga.audit()` is a sensible default on embedded data; `ga.audit(victims=16,
    defenses=["none", "fed-cdp"])` changes what `AuditPlan` names.

    Args:
      plan: what is asked; all of its fields can be given by name instead.
      gates: limits that must hold.
      out: a folder for cells and report. The same audit goes on from its cells there;
        the folder of another run is refused. Without, a temporary one.
      overwrite: begin anew, whatever is in `out`.
      extend: go on in the folder of an audit that asked for other things; cells that
        both have are not run again.
      include_reconstructions: show pictures of data that is no public set.
      progress: is told how far the audit and its running cell are.
      on: what runs the cells: one after the other in this process by default;
        "local:4" are processes, "dask:ADDRESS" and "ray:ADDRESS" clusters (see
        `gradaudit.clusters.placed`). It changes no number.
      **asked: fields of `AuditPlan`.
    """
    executor = placed(on) if isinstance(on, str) else on
    machine.configure()
    plan = changed(plan or AuditPlan(), asked)
    spec = plan.spec()
    grid = Grid.of(plan) if plan.captured is None else CapturedGrid.of(plan)
    cells = grid.cells()
    folder = pathlib.Path(out or tempfile.mkdtemp(prefix="gradaudit-audit-"))
    with files.one_run_in(folder):
        _open(folder, spec, overwrite, extend)
        tell = progress or (lambda *_: None)
        document = _run(grid, cells, folder, gates or Gates(), tell, executor)
        result = AuditResult(document, folder, include_reconstructions)
        if out is None:  # it lives as long as its result
            weakref.finalize(result, shutil.rmtree, folder, ignore_errors=True)
        result.save(folder)
    return result


def _open(folder: pathlib.Path, spec: Spec, overwrite: bool, extend: bool) -> None:
    """Refuses another run's folder; an audit's may be extended."""
    other = None
    with contextlib.suppress(InputError):
        other = Spec.read(folder)
    if not (extend and other is not None and other.command == "audit"):
        claim(folder, spec, overwrite)
    if not ((folder / AUDIT).exists() or overwrite or not (folder / CELLS).exists()):
        raise InputError(
            f"{folder} has a folder {CELLS}, and no {AUDIT} that says of which audit: "
            "choose another --out, or say --overwrite"
        )
    if overwrite:
        shutil.rmtree(folder / CELLS, ignore_errors=True)


def _run(
    grid: Grid | CapturedGrid,
    cells: list[Plain],
    folder: pathlib.Path,
    gates: Gates,
    tell: Tell,
    executor: Executor,
) -> Plain:
    """Runs what is missing; audit.json on the disk is valid after every cell."""
    outcomes: dict[str, Plain] = {}
    environment, interrupted = machine.describe(), False

    def document() -> Plain:
        return files.finite(
            assemble(
                grid,
                cells,
                outcomes,
                gates,
                environment=environment,
                interrupted=interrupted,
                date=datetime.datetime.now(datetime.UTC).date().isoformat(),
            )
        )

    files.write_json(folder / AUDIT, document())
    begun = [cell for cell in cells if cell["same_as"] is None]
    for cell in begun:
        outcome = finished(cell, folder / CELLS / cell["id"])
        if outcome is not None:
            outcomes[cell["id"]] = outcome
    work = [cell for cell in begun if cell["id"] not in outcomes]
    done = len(outcomes)
    try:
        for cell, outcome in _outcomes(work, folder / CELLS, executor, tell, done):
            outcomes[cell["id"]] = outcome
            if outcome["status"] == DONE:
                files.write_json(folder / AUDIT, document())
    except KeyboardInterrupt:
        interrupted = True
    return document()


def _outcomes(
    work: list[Plain], folder: pathlib.Path, executor: Executor, tell: Tell, done: int
) -> Iterator[tuple[Plain, Plain]]:
    """Runs cells wherever that is; yields each with its outcome as it comes."""
    function = f"{run_cell.__module__}:{run_cell.__name__}"
    tasks = [Task(c["name"], function, c, folder / c["id"]) for c in work]
    parts: dict[int, float] = {}  # of those that are running

    def hear(index: int, part: int, whole: int, text: str) -> None:
        del text
        parts[index] = part / max(whole, 1)
        others = sum(parts.values()) - parts[index]
        tell(done + others, done + len(work), work[index]["name"], part, whole)

    for index, answer in executor(tasks, hear):
        done += 1
        parts.pop(index, None)
        if isinstance(answer, LostProcess):
            answer = failed(work[index], str(answer))
        yield work[index], answer
