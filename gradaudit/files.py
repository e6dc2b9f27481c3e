"""Files: written whole or not at all, read bounded and with errors in words."""

import contextlib
import csv
import hashlib
import io
import json
import math
import os
import pathlib
import secrets
import shutil
import stat
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any, BinaryIO, TypeVar, cast

from gradaudit.errors import InputError

Plain = TypeVar("Plain")  # data as JSON has it

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None  # type: ignore[assignment]

LOCK = ".gradaudit.lock"
_PARTIAL = ".partial"  # how the name of an unfinished file ends

_LARGEST_JSON = 256 << 20


def write_whole(path: pathlib.Path, write: Callable[[BinaryIO], Any]) -> None:
    """Calls `write(file)` and puts the finished file in place.

    Guarantee: whoever reads `path`, at any moment and after any crash, finds the old
    file or the new one; two writers never share a temporary file. A full disk raises
    in words, and leaves the old file. A device or a pipe is never replaced by a file.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise InputError(f"{path} is no ordinary file: choose another place")
    with _writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        name = f".{path.name}.{secrets.token_hex(8)}{_PARTIAL}"
        temporary = path.parent / name
        try:
            with temporary.open("xb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def append_lines(path: pathlib.Path, lines: Sequence[str]) -> None:
    """Adds lines; when it returns, they are on the disk.

    A crash may leave a part of a line, without its end: see `read_lines`.
    """
    text = "".join(f"{line}\n" for line in lines)
    with _writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())


def whole_lines(path: pathlib.Path) -> Iterator[bytes]:
    """Yields the whole lines of a file, one in memory at a time; cuts a torn end."""
    whole = 0
    with path.open("rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                break
            whole += len(line)
            yield line
    if path.stat().st_size > whole:
        os.truncate(path, whole)


@contextlib.contextmanager
def _writing(path: pathlib.Path) -> Iterator[None]:
    """Says which file it was that the system refused to write."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"{path} can't be written: {error.strerror or error}; make room, or choose "
            "another place"
        ) from error


_locks: dict[pathlib.Path, int] = {}  # folders that this process holds, how often


@contextlib.contextmanager
def one_run_in(folder: pathlib.Path) -> Iterator[None]:
    """Holds a folder for one run; raises in words while another process does.

    Unfinished files of a run that was killed are removed. The system lets go of the
    lock when its process ends, however it ends: no lock is ever left behind. Where the
    system has no such locks, nothing is held.
    """
    path = pathlib.Path(os.path.abspath(folder)) / LOCK
    held = None if path in _locks or fcntl is None else _lock(path)
    _locks[path] = _locks.get(path, 0) + 1
    try:
        yield
    finally:
        _locks[path] -= 1
        if not _locks[path]:
            del _locks[path]
        if held is not None:
            path.unlink(missing_ok=True)
            os.close(held)


def _lock(path: pathlib.Path) -> int:
    while True:
        with _writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            who = os.read(handle, 32).decode(errors="replace").strip()
            os.close(handle)
            raise InputError(
                f"another run (process {who or 'unknown'}) is writing to "
                f"{path.parent}: wait for its end, or choose another --out"
            ) from None
        except OSError:  # a file system without locks
            return handle
        # Whoever held it before may have removed the file that is locked now.
        if path.exists() and os.path.samestat(os.fstat(handle), path.stat()):
            os.truncate(handle, 0)
            os.write(handle, f"{os.getpid()}\n".encode())
            _remove_unfinished(path.parent)
            return handle
        os.close(handle)


def _remove_unfinished(folder: pathlib.Path) -> None:
    """Removes what `write_whole` could not finish, also in the cells of an audit."""
    for depth in ("", "*/", "*/*/"):
        for left in folder.glob(f"{depth}.*{_PARTIAL}"):
            left.unlink(missing_ok=True)


def write_bytes(path: pathlib.Path, content: bytes) -> None:
    """Writes bytes, whole or not at all."""
    write_whole(path, lambda file: file.write(content))


def write_text(path: pathlib.Path, text: str) -> None:
    """Writes text, UTF-8, whole or not at all."""
    write_bytes(path, text.encode())


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
            writer.writerow({key: _in_a_cell(value) for key, value in row.items()})
    write_text(path, text.getvalue())


def _in_a_cell(value: Any) -> Any:
    return " ".join(map(str, value)) if isinstance(value, (tuple, list)) else value


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


def finite(value: Plain) -> Plain:
    """Returns the value with NaN and infinities as null, so that it is valid JSON."""
    plain: Any = value
    if isinstance(value, Mapping):
        plain = {key: finite(entry) for key, entry in value.items()}
    elif isinstance(value, (list, tuple)):
        plain = [finite(entry) for entry in value]
    elif isinstance(value, float) and not math.isfinite(value):
        plain = None
    return cast(Plain, plain)


def digest(path: pathlib.Path) -> str:
    """Returns the SHA-256 of a file, or of a folder's file names and contents."""
    whole, found = hashlib.sha256(), [path]
    if path.is_dir():
        found = sorted(file for file in path.rglob("*") if file.is_file())
    for file in found:
        if file != path:
            whole.update(f"{file.relative_to(path)}\0{file.stat().st_size}\0".encode())
        with file.open("rb") as source:
            hashlib.file_digest(source, lambda: whole)
    return whole.hexdigest()


def pack_folder(folder: pathlib.Path) -> bytes:
    """Returns a folder as bytes; an empty one if there is none."""
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w:gz", compresslevel=1) as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.name != LOCK:
                archive.add(path, str(path.relative_to(folder)))
    return whole.getvalue()


def unpack_folder(whole: bytes, folder: pathlib.Path) -> None:
    """Puts a folder in place of the one that was sent; whole, or not at all."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        prefix=".arriving-", dir=folder.parent, ignore_cleanup_errors=True
    ) as made:
        with tarfile.open(fileobj=io.BytesIO(whole)) as archive:
            archive.extractall(made, filter="data")
        shutil.rmtree(folder, ignore_errors=True)
        pathlib.Path(made).rename(folder)


# Files that may be damaged or hostile are read bounded, without waiting. None may
# decode to more than 4 GiB, so that an archive of a few kilobytes can't fill the
# memory. What a header declares is compared with that before anything is decoded, and
# never more is decoded than was declared. Only regular files are opened.
LIMIT_VARIABLE = "GRADAUDIT_MAX_DATA_GIB"  # moves the limit
DEFAULT_GIB = 4.0
_READ_AT_ONCE = 1 << 22


def most_bytes() -> int:
    """Returns how many bytes one file or folder may decode to."""
    text = os.environ.get(LIMIT_VARIABLE, "")
    try:
        gib = float(text or DEFAULT_GIB)
    except ValueError:
        gib = math.nan
    if not 0 < gib < math.inf:
        raise InputError(
            f"{LIMIT_VARIABLE} must be a positive number of GiB, got {text!r}"
        )
    return int(gib * (1 << 30))


def require_room(path: pathlib.Path, field: str, wanted: int) -> None:
    """Raises `InputError` when a field declares more bytes than are allowed."""
    allowed = most_bytes()
    if not wanted <= allowed:
        raise InputError(
            f"{path}: field {field!r} decodes to {wanted:,} bytes, more than the "
            f"{allowed:,} that are allowed; set {LIMIT_VARIABLE} if that is meant"
        )


@contextlib.contextmanager
def opened(path: pathlib.Path) -> Iterator[BinaryIO]:
    """Opens a regular file to read; pipes and devices are refused, never waited for."""

    def at_once(name: str, flags: int) -> int:
        return os.open(name, flags | getattr(os, "O_NONBLOCK", 0))

    try:
        file = open(path, "rb", opener=at_once)  # noqa: SIM115 (closed below)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{path}: field 'file' can't be opened ({reason})") from None
    with file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise InputError(
                f"{path}: field 'file' is no regular file (a pipe or a device?)"
            )
        yield file


def read_up_to(file: io.BufferedIOBase | IO[bytes], count: int) -> bytearray:
    """Returns at most `count` bytes; the memory follows what is there."""
    data = bytearray()
    while len(data) < count:
        block = file.read(min(_READ_AT_ONCE, count - len(data)))
        if not block:
            break
        data += block
    return data


def read_all(path: pathlib.Path) -> bytearray:
    """Returns a whole file within the limit."""
    with opened(path) as file:
        require_room(path, "file", os.fstat(file.fileno()).st_size)
        data = read_up_to(file, most_bytes() + 1)
        require_room(path, "file", len(data))
        return data
