"""Result: what every run leaves, and the one writer of it."""

import abc
import pathlib
from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

from gradaudit import files

SCHEMA_VERSION = 2


def write_figure(path: pathlib.Path, figure: Any) -> None:
    """Writes a matplotlib Figure in the format of the name, whole or not at all."""
    kind = path.suffix.lstrip(".") or "png"
    files.write_whole(path, lambda file: figure.savefig(file, format=kind, dpi=130))


class Result(abc.ABC):
    """What a run leaves: `to_dict` is result.json, the other methods its other files.

    One writer for all commands: `save` puts whole files into one folder.
    """

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

    def save(self, folder: pathlib.Path | str) -> pathlib.Path:
        """Writes every file whole, result.json last; returns the folder."""
        target = pathlib.Path(folder)
        for name, rows in self.rows().items():
            files.write_csv(target / name, rows)
        for name, arrays in self.arrays().items():
            files.write_arrays(target / name, arrays)
        for name, draw in self.figures().items():
            write_figure(target / name, draw())
        files.write_json(target / "result.json", self.to_dict())
        return target
