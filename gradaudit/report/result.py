"""Result: what every run leaves; its one writer, one schema and one reader."""

import abc
import contextlib
import csv
import dataclasses
import functools
import importlib.resources
import json
import pathlib
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gradaudit import files
from gradaudit.errors import InputError
from gradaudit.report.drawing import rendered
from gradaudit.spec import Spec

SCHEMA_VERSION = 2
RESULT, AUDIT = "result.json", "audit.json"
PARAMETERS = "parameters.npz"  # of a training: its network at the end, named tensors
_STAGE = ".writing-"
UNFINISHED = ("victims.jsonl", "checkpoint.npz")  # from which a run goes on
_EXAMPLES = "reconstructions.npz"
_TABLES = ("cells", "evidence", "line_ups", "pairs", "points", "posterior", "rounds")
_FIGURES = ("convergence", "enough", "epsilon", "line_up", "norms", "victims")
# Every file that a result of any command may have, so that none outlives its run.
KNOWN = frozenset(
    [RESULT, AUDIT, PARAMETERS, _EXAMPLES, "trials.csv", "curve.png"]
    + ["report.html", "junit.xml", "summary.md"]
    + [f"{name}.csv" for name in _TABLES]
    + [f"figures/{name}.png" for name in _FIGURES]
)


def write_figure(path: pathlib.Path, figure: Any) -> None:
    """Writes a matplotlib Figure in the format of the name, whole or not at all."""
    kind = path.suffix.lstrip(".") or "png"
    files.write_bytes(path, rendered(figure, kind, dpi=130))


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
        with files.one_run_in(target):
            for left in target.glob(f"{_STAGE}*"):  # of a run that was killed
                shutil.rmtree(left, ignore_errors=True)
            with tempfile.TemporaryDirectory(
                prefix=_STAGE, dir=target, ignore_cleanup_errors=True
            ) as stage:
                names = self._write(pathlib.Path(stage))
                for name in names:
                    (target / name).parent.mkdir(parents=True, exist_ok=True)
                    pathlib.Path(stage, name).replace(target / name)
            remove_result(target, but=names)
        return target

    def _write(self, folder: pathlib.Path) -> list[str]:
        """Writes all files; returns their names, the document last."""
        tables, arrays = self.rows(), self.arrays()
        figures, texts = self.figures(), self.texts()
        for name, rows in tables.items():
            files.write_csv(folder / name, rows)
        for name, held in arrays.items():
            files.write_arrays(folder / name, held)
        for name, draw in figures.items():
            write_figure(folder / name, draw())
        for name, text in texts.items():
            files.write_text(folder / name, text())
        files.write_json(folder / self.file, self.to_dict())
        return [*tables, *arrays, *figures, *texts, self.file]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunResult(Result):
    """The result of one command; `spec` runs it again."""

    spec: Spec
    environment: dict[str, Any]
    limitations: Sequence[str]
    interrupted: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Returns result.json; NaN and infinities become null."""
        return files.finite(
            {
                "schema_version": SCHEMA_VERSION,
                "spec": self.spec.plain(),
                "environment": self.environment,
                "status": "interrupted" if self.interrupted else "done",
                **self.content(),
                "limitations": list(self.limitations),
            }
        )

    @abc.abstractmethod
    def content(self) -> dict[str, Any]:
        """Returns what came out, as result.json has it."""


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
    if not same and found:
        raise InputError(
            f"{folder} holds another run ({', '.join(found)}): choose another --out, "
            "or say --overwrite"
        )


def remove_result(folder: pathlib.Path, but: Collection[str] = ()) -> None:
    """Removes the files of an older result, whatever command it was of."""
    for name in sorted(KNOWN - set(but), key=lambda name: not name.endswith(".json")):
        (folder / name).unlink(missing_ok=True)


def schema(name: str) -> dict[str, Any]:
    """Returns the schema of `RESULT` or `AUDIT`."""
    folder = importlib.resources.files("gradaudit.report") / "schemas"
    file = folder / name.replace(".json", ".schema.json")
    value: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return value


@functools.cache
def _validator(name: str) -> Any:
    from jsonschema import Draft202012Validator
    from referencing import Registry, Resource

    known = [schema(each) for each in (RESULT, AUDIT)]
    pairs = [(each["$id"], Resource.from_contents(each)) for each in known]
    return Draft202012Validator(schema(name), registry=Registry().with_resources(pairs))


def validate(value: Any, name: str, where: str = "the result") -> None:
    """Raises in words, with the place, if a document is not of its schema."""
    errors = sorted(_validator(name).iter_errors(value), key=lambda e: len(e.path))
    if not errors:
        return
    first = errors[0]
    place = "/".join(map(str, first.absolute_path)) or "its top"
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    raise InputError(
        f"{where} is no {name} of this version: at {place}: {first.message[:300]}{more}"
    )


def kind_of(value: Any) -> str:
    """Returns whether a document says that it is an audit or a result."""
    audit = isinstance(value, Mapping) and value.get("kind") == "audit"
    return AUDIT if audit else RESULT


_DAMAGE = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error)
_LARGEST = 4 << 30


class Saved(Result):
    """What a run left in a folder; its document was checked against its schema."""

    def __init__(self, document: dict[str, Any], folder: pathlib.Path) -> None:
        self._document, self.folder = document, folder

    @property
    def is_audit(self) -> bool:
        """Whether it is a whole audit, not one run."""
        return kind_of(self._document) == AUDIT

    def to_dict(self) -> dict[str, Any]:
        """Returns result.json or audit.json."""
        return self._document

    def rows(self) -> dict[str, list[dict[str, Any]]]:
        """Returns the tables; numbers are numbers again, what is empty is None."""
        names = ("trials.csv", "cells.csv", "line_ups.csv", "rounds.csv")
        return {n: self._table(n) for n in names if (self.folder / n).is_file()}

    def arrays(self) -> dict[str, dict[str, NDArray[Any]]]:
        """Returns reconstructions.npz, if there is one."""
        there = (self.folder / _EXAMPLES).is_file()
        return {_EXAMPLES: self._arrays} if there else {}

    def cell(self, cell: dict[str, Any]) -> "Saved":
        """Returns the result of one cell of an audit."""
        return load(self.folder / cell["folder"])

    @functools.cached_property
    def _arrays(self) -> dict[str, NDArray[Any]]:
        path = self.folder / _EXAMPLES
        try:
            if not path.stat().st_size <= _LARGEST:
                raise InputError(f"{path} is larger than 4 GiB")
            with np.load(path, allow_pickle=False) as file:
                return {name: file[name] for name in file.files}
        except InputError:
            raise
        except _DAMAGE as error:
            raise InputError(f"{path} can't be read: {error}") from None

    def _table(self, name: str) -> list[dict[str, Any]]:
        path = self.folder / name
        try:
            with path.open(newline="", encoding="utf-8") as file:
                return [
                    {key: _value(text) for key, text in row.items() if key is not None}
                    for row in csv.DictReader(file)
                ]
        except (OSError, ValueError, csv.Error) as error:
            raise InputError(f"{path} can't be read: {error}") from None


def _value(text: str | None) -> Any:
    if not text:
        return None
    if text in ("True", "False"):
        return text == "True"
    try:
        return float(text)
    except ValueError:
        return text


def load(path: pathlib.Path | str) -> Saved:
    """Reads a result: its folder, or its result.json or audit.json.

    Raises in words what is no result of this version.
    """
    place = pathlib.Path(path)
    try:
        inside = place.is_dir()
    except OSError as error:
        raise InputError(f"{str(path)[:200]} is no path: {error.strerror}") from None
    if inside:
        audit = place / AUDIT
        place = audit if audit.exists() else place / RESULT
    document = files.read_json(place, "result")
    validate(document, kind_of(document), str(place))
    return Saved(document, place.parent)
