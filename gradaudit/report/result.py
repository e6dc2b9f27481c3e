"""Result: what every run leaves, and the one writer of it."""

import abc
import contextlib
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator
from typing import Any, ClassVar

from numpy.typing import NDArray

from gradaudit import files
from gradaudit.errors import InputError, require
from gradaudit.report.drawing import any_letters
from gradaudit.spec import Spec

SCHEMA_VERSION = 2
RESULT, AUDIT = "result.json", "audit.json"
_STAGE = ".writing-"
UNFINISHED = ("victims.jsonl", "checkpoint.npz")  # from which a run goes on
# Every file that a result of any command may have, so that none outlives its run.
KNOWN = frozenset(
    {
        *(RESULT, AUDIT, "cells.csv", "report.html", "junit.xml", "summary.md"),
        *("trials.csv", "reconstructions.npz", "rounds.csv", "curve.png"),
        *("line_ups.csv", "posterior.csv", "points.csv", "pairs.csv"),
        *("evidence.csv",),
        *("figures/victims.png", "figures/convergence.png", "figures/epsilon.png"),
        *("figures/norms.png", "figures/line_up.png", "figures/enough.png"),
    }
)


def write_figure(path: pathlib.Path, figure: Any) -> None:
    """Writes a matplotlib Figure in the format of the name, whole or not at all."""
    kind = path.suffix.lstrip(".") or "png"
    with any_letters():
        files.write_whole(path, lambda file: figure.savefig(file, format=kind, dpi=130))


class Result(abc.ABC):
    """What a run leaves: `to_dict` is result.json, the other methods its other files.

    One writer for all commands: `save` puts whole files into one folder.
    """

    file: ClassVar[str] = RESULT  # what `to_dict` is called on the disk

    @abc.abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Returns result.json: schema_version, spec, environment, and what came out."""

    def rows(self) -> dict[str, list[dict[str, Any]]]:
        """Returns the tables by file name, as rows: `{"trials.csv": [...]}`."""
        return {}

    def arrays(self) -> dict[str, dict[str, NDArray[Any]]]:
        """Returns the arrays by file name: `{"reconstructions.npz": {...}}`."""
        return {}

    def figures(self) -> dict[str, Callable[[], Any]]:
        """Returns by file name what draws each figure (a matplotlib Figure)."""
        return {}

    def texts(self) -> dict[str, Callable[[], str]]:
        """Returns by file name what writes each text: `{"summary.md": ...}`."""
        return {}

    def save(self, folder: pathlib.Path | str) -> pathlib.Path:
        """Writes every file whole, the document last; returns the folder.

        Guarantee: all files are written before the first one takes its place. What
        can't be written (a full disk) leaves the result that was there; after it,
        nothing of an older result is left.
        """
        target = pathlib.Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        with files.one_run_in(target), _stage(target) as stage:
            names = self._write(stage)
            for name in names:
                (target / name).parent.mkdir(parents=True, exist_ok=True)
                (stage / name).replace(target / name)
            remove_result(target, but=names)
        return target

    def _write(self, folder: pathlib.Path) -> list[str]:
        """Writes all files; returns their names, the document last."""
        for name, rows in self.rows().items():
            files.write_csv(folder / name, rows)
        for name, arrays in self.arrays().items():
            files.write_arrays(folder / name, arrays)
        for name, draw in self.figures().items():
            write_figure(folder / name, draw())
        for name, text in self.texts().items():
            files.write_text(folder / name, text())
        files.write_json(folder / self.file, self.to_dict())
        others = (self.rows(), self.arrays(), self.figures(), self.texts())
        return [*(name for named in others for name in named), self.file]


@contextlib.contextmanager
def _stage(folder: pathlib.Path) -> Iterator[pathlib.Path]:
    """Yields a new folder beside the files; whatever happens, it is gone after."""
    for left in folder.glob(f"{_STAGE}*"):  # of a run that was killed
        shutil.rmtree(left, ignore_errors=True)
    stage = pathlib.Path(tempfile.mkdtemp(prefix=_STAGE, dir=folder))
    try:
        yield stage
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def claim(folder: pathlib.Path, spec: Spec, overwrite: bool = False) -> None:
    """Raises if a run would overwrite another one's result, or its unfinished work.

    The same run may go there again: whose spec has all of these arguments.
    """
    if overwrite:
        return
    documents = (RESULT, AUDIT)
    found = [name for name in (*documents, *UNFINISHED) if (folder / name).exists()]
    same = False
    if len(found) == 1 and found[0] in documents:
        with contextlib.suppress(InputError):
            there = Spec.read(folder)
            same = there.command == spec.command and there.sources == spec.sources
            same &= dict(there.arguments) | dict(spec.arguments) == there.arguments
    require(
        same or not found,
        f"{folder} holds another run ({', '.join(found)}): choose another --out, or "
        "say --overwrite",
    )


def remove_result(folder: pathlib.Path, but: Collection[str] = ()) -> None:
    """Removes the files of an older result, whatever command it was of."""
    for name in sorted(KNOWN - set(but), key=lambda name: not name.endswith(".json")):
        (folder / name).unlink(missing_ok=True)
