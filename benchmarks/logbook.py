"""The logbook: what was measured, a JSON file for each benchmark and scale."""

import dataclasses
import datetime
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any, Self

from gradaudit import files
from gradaudit.benchmarks.suite import Benchmark, Cell, Measured, Plain, Scale
from gradaudit.errors import InputError

SHIPPED = pathlib.Path(__file__).parent / "results"  # the project's own measurements
_VERSION = 1


@dataclasses.dataclass
class Record:
    """The cells of one benchmark at one scale, on disk as soon as they are finished."""

    path: pathlib.Path
    content: Plain

    @classmethod
    def begin(
        cls, folder: pathlib.Path, benchmark: Benchmark, scale: Scale, seed: int
    ) -> Self:
        """Returns the record that is in the folder, or a new one.

        Refuses a record of another seed: its cells would be mixed with these.
        """
        path = folder / benchmark.name / f"{scale.value}.json"
        if path.exists():
            record = cls.read(path)
            if record.content["seed"] != seed:
                raise InputError(
                    f"{path} was measured with seed {record.content['seed']}: choose "
                    "another --out, or --overwrite"
                )
            return record
        command = f"gradaudit bench run {benchmark.name} --scale {scale.value}"
        return cls(
            path,
            {
                "version": _VERSION,
                "benchmark": benchmark.name,
                "scale": scale.value,
                "seed": seed,
                "command": command + (f" --seed {seed}" if seed else ""),
                "environments": [],
                "cells": {},
                "missing": {},
            },
        )

    @classmethod
    def read(cls, path: pathlib.Path) -> Self:
        """Reads one record, or says in words why it is none."""
        content = files.read_json(path, "record")
        wanted = ("benchmark", "scale", "seed", "environments", "cells")
        if not isinstance(content, dict) or any(key not in content for key in wanted):
            raise InputError(f"{path} is no record of gradaudit bench")
        return cls(path, content)

    @property
    def measured(self) -> Measured:
        """What each finished cell measured, by its name."""
        return {name: cell["measured"] for name, cell in self.content["cells"].items()}

    @property
    def missing(self) -> Mapping[str, str]:
        """Why cells could not run here, by their names."""
        missing: Mapping[str, str] = self.content.get("missing", {})
        return missing

    def has(self, cell: Cell) -> bool:
        """Whether this very cell is finished."""
        kept = self.content["cells"].get(cell.name)
        return kept is not None and kept["fingerprint"] == cell.fingerprint

    def add(self, cell: Cell, kept: Plain) -> None:
        """Keeps a finished cell; when it returns, it is on the disk."""
        self.content["cells"][cell.name] = kept
        self.content["missing"].pop(cell.name, None)
        self._write()

    def lacks(self, cell: Cell, why: str) -> None:
        """Keeps why a cell could not run."""
        self.content["missing"][cell.name] = why
        self._write()

    def arrange(self, cells: list[Cell]) -> None:
        """Puts the cells in their order, and drops what is no part any more.

        Also a cell whose arguments have changed: the tables would show its figure
        under the new ones.
        """
        kept, missing = self.content["cells"], self.content["missing"]
        names = [cell.name for cell in cells]
        here = [cell.name for cell in cells if self.has(cell)]
        self.content["cells"] = {name: kept[name] for name in here}
        self.content["missing"] = {n: missing[n] for n in names if n in missing}
        self._write()

    def finished(
        self,
        cell: Cell,
        measured: Plain,
        seconds: float,
        load: float | None,
        environment: Plain,
    ) -> Plain:
        """Returns what is kept of a cell that was measured just now, and where."""
        known = self.content["environments"]
        if environment not in known:
            known.append(environment)
        now = datetime.datetime.now(datetime.UTC)
        return {
            "fingerprint": cell.fingerprint,
            "arguments": cell.arguments,
            "measured": measured,
            "seconds": round(seconds, 2),
            "finished": now.isoformat(timespec="seconds"),
            "load": load,
            "environment": known.index(environment),
        }

    def borrowed(self, kept: Plain, lender: "Record") -> Plain:
        """Returns a cell of another record as this one keeps it."""
        known = self.content["environments"]
        here = lender.content["environments"][kept["environment"]]
        if here not in known:
            known.append(here)
        source = f"{lender.content['benchmark']}/{lender.content['scale']}"
        shared = {"shared_with": kept.get("shared_with", source)}
        return kept | {"environment": known.index(here)} | shared

    def _write(self) -> None:
        files.write_json(self.path, self.content)

    def dates(self) -> str:
        """Returns when the cells were measured: a day, or the first and the last."""
        days = sorted({c["finished"][:10] for c in self.content["cells"].values()})
        return " to ".join(dict.fromkeys((days[0], days[-1]))) if days else "never"


def records_in(folder: pathlib.Path) -> Iterator[Record]:
    """Yields every record of a folder."""
    for path in sorted(folder.glob("*/*.json")):
        if path.stem in {scale.value for scale in Scale}:
            yield Record.read(path)


def finished_cells(folder: pathlib.Path) -> dict[str, tuple[Plain, Record]]:
    """Returns the finished cells of all records of a folder, by their fingerprints."""
    return {
        kept["fingerprint"]: (kept, record)
        for record in records_in(folder)
        for kept in record.content["cells"].values()
    }


def environment_in_words(about: Mapping[str, Any]) -> str:
    """Returns the versions and the machine in one line."""
    packages = about.get("packages", {})
    return (
        f"gradaudit {about.get('gradaudit')}, jax {packages.get('jax')}, "
        f"Python {about.get('python')}, {about.get('cores')} cores of "
        f"{about.get('machine')} ({about.get('backend')})"
    )
