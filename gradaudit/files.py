"""Files: written whole or not at all, read with errors in words."""

import csv
import hashlib
import io
import json
import math
import os
import pathlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any, BinaryIO

from gradaudit.errors import InputError

_BLOCK = 1 << 20
_LARGEST_JSON = 256 << 20


def write_whole(path: pathlib.Path, write: Callable[[BinaryIO], Any]) -> None:
    """Calls `write(file)` and puts the finished file in place.

    Guarantee: whoever reads `path`, at any moment and after any crash, finds the old
    file or the new one; two writers never share a temporary file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = pathlib.Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def append_line(path: pathlib.Path, line: str) -> None:
    """Adds one line; when it returns, the line is on the disk.

    A crash may leave a part of the line, without its end.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(line.encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def write_text(path: pathlib.Path, text: str) -> None:
    """Writes text, UTF-8, whole or not at all."""
    write_whole(path, lambda file: file.write(text.encode()))


def write_json(path: pathlib.Path, value: Any) -> None:
    """Writes one JSON document, whole or not at all; see `finite`."""
    write_text(path, json.dumps(finite(value), indent=2, allow_nan=False) + "\n")


def write_csv(path: pathlib.Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes rows with the keys of the first as header; tuples become words."""
    text = io.StringIO(newline="")
    if rows:
        writer = csv.DictWriter(text, list(rows[0]))
        writer.writeheader()
        for row in rows:
            writer.writerow(
                {
                    key: " ".join(map(str, v)) if isinstance(v, (tuple, list)) else v
                    for key, v in row.items()
                }
            )
    write_text(path, text.getvalue())


def write_arrays(path: pathlib.Path, arrays: Mapping[str, Any]) -> None:
    """Writes a compressed .npz, whole or not at all."""
    import numpy as np

    write_whole(path, lambda file: np.savez_compressed(file, **arrays))


def read_json(path: pathlib.Path, what: str = "file") -> Any:
    """Reads one JSON document, or says in words why it can't be read."""
    try:
        if path.exists() and not path.is_file():  # a pipe or a device may never end
            raise InputError(f"the {what} {path} is no regular file")
        if path.exists() and path.stat().st_size > _LARGEST_JSON:
            raise InputError(
                f"the {what} {path} is larger than {_LARGEST_JSON >> 20} MiB"
            )
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"there is no {what} {path}") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise InputError(f"the {what} {path} can't be read: {error}") from None


def finite(value: Any) -> Any:
    """Returns the value with NaN and infinities as null, so that it is valid JSON."""
    if isinstance(value, Mapping):
        return {key: finite(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def digest(path: pathlib.Path) -> str:
    """Returns the SHA-256 of a file, or of a folder's file names and contents."""
    whole = hashlib.sha256()
    files = sorted(f for f in path.rglob("*") if f.is_file()) if path.is_dir() else None
    for file in files if files is not None else [path]:
        if files is not None:
            whole.update(f"{file.relative_to(path)}\0{file.stat().st_size}\0".encode())
        with file.open("rb") as opened:
            while block := opened.read(_BLOCK):
                whole.update(block)
    return whole.hexdigest()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
