"""A result that is on the disk, read again: the same methods as a fresh one."""

import csv
import functools
import pathlib
import zipfile
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradaudit import files
from gradaudit.errors import InputError, require
from gradaudit.report import schema
from gradaudit.report.result import AUDIT, RESULT, Result

_DAMAGE = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error)
_LARGEST = 4 << 30


class Saved(Result):
    """What a run left in a folder; its document was checked against its schema."""

    def __init__(self, document: dict[str, Any], folder: pathlib.Path) -> None:
        self._document, self.folder = document, folder

    @property
    def is_audit(self) -> bool:
        """Whether it is a whole audit, not one run."""
        return schema.kind_of(self._document) == schema.AUDIT

    def to_dict(self) -> dict[str, Any]:
        """Returns result.json or audit.json."""
        return self._document

    def rows(self) -> dict[str, list[dict[str, Any]]]:
        """Returns the tables; numbers are numbers again, what is empty is None."""
        names = ("trials.csv", "cells.csv", "line_ups.csv", "rounds.csv")
        return {n: self._table(n) for n in names if (self.folder / n).is_file()}

    def arrays(self) -> dict[str, dict[str, NDArray[Any]]]:
        """Returns reconstructions.npz, if there is one."""
        name = "reconstructions.npz"
        return {name: self._arrays} if (self.folder / name).is_file() else {}

    def cell(self, cell: dict[str, Any]) -> "Saved":
        """Returns the result of one cell of an audit."""
        return load(self.folder / cell["folder"])

    @functools.cached_property
    def _arrays(self) -> dict[str, NDArray[Any]]:
        path = self.folder / "reconstructions.npz"
        try:
            require(path.stat().st_size <= _LARGEST, f"{path} is larger than 4 GiB")
            with np.load(path, allow_pickle=False) as file:
                return {name: file[name] for name in file.files}
        except _DAMAGE as error:
            if isinstance(error, InputError):
                raise
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
    schema.validate(document, schema.kind_of(document), str(place))
    return Saved(document, place.parent)
