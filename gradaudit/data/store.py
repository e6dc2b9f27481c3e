"""The data folder: each set is stored once, as verified arrays.

    <data folder>/<set>/manifest.json       where it is from
    <data folder>/<set>/<split>-inputs.npy  as they stand in the original files
    <data folder>/<set>/<split>-labels.npy

`GRADAUDIT_DATA` moves the folder. What is read is compared with SHA-256 digests
that are part of this package, so a changed byte never reaches an experiment.
"""

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs

from gradaudit import files
from gradaudit.data.dataset import Array, Contents, array_digest
from gradaudit.errors import InputError

_A_DAY = 24 * 60 * 60.0
_LONGEST_NAME = 200  # of what is quoted in an error


Digests = Mapping[str, str]  # "<split>-inputs" or "<split>-labels" to SHA-256


def data_folder() -> Path:
    """Returns the folder of all stored sets."""
    chosen = os.environ.get("GRADAUDIT_DATA")
    try:
        return Path(chosen or platformdirs.user_data_dir("gradaudit")).expanduser()
    except RuntimeError as error:  # nobody of that name
        raise InputError(f"GRADAUDIT_DATA={chosen}: {error}") from None


def is_stored(name: str) -> bool:
    """Whether a set is in the data folder (`read` says whether it is intact)."""
    with _in_words():
        return (data_folder() / name / "manifest.json").is_file()


def named_arrays(contents: Contents) -> dict[str, Array]:
    """Returns the arrays under the names that they are stored by."""
    return {
        f"{split}-{part}": array
        for split, arrays in contents.splits.items()
        for part, array in zip(("inputs", "labels"), arrays, strict=True)
    }


def write(name: str, contents: Contents, manifest: Mapping[str, Any]) -> None:
    """Stores a set; readers see either all of it or nothing."""
    with working_folder(name) as folder:
        for array_name, array in named_arrays(contents).items():
            path = folder / f"{array_name}.npy"
            files.write_whole(path, partial(np.save, arr=array, allow_pickle=False))
        files.write_json(folder / "manifest.json", {"name": name, **manifest})
        target = data_folder() / name
        shutil.rmtree(target, ignore_errors=True)
        folder.chmod(0o755)
        try:
            folder.rename(target)
        except OSError:
            if not is_stored(name):  # otherwise another process was faster
                raise


def read(name: str, digests: Digests, split: str = "all") -> dict[str, Array]:
    """Returns the verified arrays of one split, or of every split.

    Raises `InputError` when a set is not here or an array is not what was stored.
    """
    if not is_stored(name):
        raise InputError(
            f"dataset {name!r} is not in {data_folder()}; "
            f"run `gradaudit data fetch {name}`"
        )
    wanted = [n for n in digests if split == "all" or n.startswith(f"{split}-")]
    return {n: _verified(data_folder() / name / f"{n}.npy", digests[n]) for n in wanted}


@contextlib.contextmanager
def working_folder(name: str) -> Iterator[Path]:
    """A temporary folder on the same disk as the data folder, so renames are atomic."""
    with _in_words():
        data_folder().mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=data_folder()))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _in_words() -> Iterator[None]:
    """Says which folder refused: read-only, full, or no folder at all."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"the data folder {str(data_folder())[:_LONGEST_NAME]} can't be used "
            f"({error.strerror or error}); GRADAUDIT_DATA names another"
        ) from None


def sweep() -> None:
    """Removes working folders that a killed process left behind a day ago."""
    for folder in data_folder().glob(".*/"):
        if time.time() - folder.stat().st_mtime > _A_DAY:
            shutil.rmtree(folder, ignore_errors=True)


def _verified(path: Path, expected: str) -> Array:
    fetch = f"run `gradaudit data fetch {path.parent.name}` to get it again"
    try:
        array: Array = np.load(path, allow_pickle=False)
    except Exception as error:  # a damaged header can raise anything
        raise InputError(f"{path}: can't be read ({error}); {fetch}") from None
    found = array_digest(array)
    if found != expected:
        raise InputError(
            f"{path}: field 'data' has changed since it was stored (SHA-256 "
            f"{found[:12]}..., expected {expected[:12]}...); {fetch}"
        )
    return array
