"""Readers for the standard files that people already have, by what is in them."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

from gradaudit.data import idx
from gradaudit.data.contents import Contents
from gradaudit.data.dataset import Dataset
from gradaudit.errors import InputError


@dataclasses.dataclass(frozen=True)
class Reader:
    """One kind of file or folder: whether it is this kind, and how it is read."""

    name: str
    files: str
    accepts: Callable[[Path], bool]
    read: Callable[[Path], Contents]


# The first that accepts a path reads it, so the special kinds stand before the general.
READERS: tuple[Reader, ...] = (
    Reader(
        "idx",
        "*-images-idx3-ubyte[.gz] with its labels, or their folder",
        idx.accepts,
        idx.read,
    ),
)


def read_path(path: Path) -> Contents:
    """Reads a file or folder with the first reader that accepts it."""
    if not path.exists():
        raise InputError(f"no such file or folder: {path}")
    for reader in READERS:
        if reader.accepts(path):
            return reader.read(path)
    known = "; ".join(f"{reader.name}: {reader.files}" for reader in READERS)
    raise InputError(f"{path}: no reader knows this kind of file (known: {known})")


def load_path(path: Path, split: str | None = None) -> Dataset:
    """Loads a dataset from the user's own files, by default all of it."""
    return read_path(path).dataset(str(path), split or "all", "your own files")
