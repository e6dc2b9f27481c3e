"""Reading files that may be damaged or hostile: bounded, without waiting, in words.

No file may decode to more than 4 GiB, so that an archive of a few kilobytes can't
fill the memory; the environment variable `GRADAUDIT_MAX_DATA_GIB` moves the limit.
What a header declares is compared with the limit before anything is decoded, and
never more is decoded than was declared. Only regular files are opened: a pipe or a
device is refused instead of waited for.
"""

import contextlib
import math
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Protocol

from gradaudit.data.dataset import Array
from gradaudit.errors import InputError

LIMIT_VARIABLE = "GRADAUDIT_MAX_DATA_GIB"
DEFAULT_GIB = 4.0

_GIB = 1 << 30
_BLOCK = 1 << 22


class Readable(Protocol):
    """A stream of bytes, compressed or not."""

    def read(self, count: int, /) -> bytes:
        """Returns at most `count` bytes, none at the end."""


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
    return int(gib * _GIB)


def require_room(path: Path, field: str, wanted: int) -> None:
    """Raises `InputError` when a field declares more bytes than are allowed."""
    allowed = most_bytes()
    if not wanted <= allowed:
        raise InputError(
            f"{path}: field {field!r} decodes to {wanted:,} bytes, more than the "
            f"{allowed:,} that are allowed; set {LIMIT_VARIABLE} if that is meant"
        )


@contextlib.contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
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


def read_up_to(file: Readable, count: int) -> bytearray:
    """Returns at most `count` bytes; the memory follows what is there."""
    data = bytearray()
    while len(data) < count:
        block = file.read(min(_BLOCK, count - len(data)))
        if not block:
            break
        data += block
    return data


def read_all(path: Path) -> bytearray:
    """Returns a whole file within the limit."""
    with opened(path) as file:
        require_room(path, "file", os.fstat(file.fileno()).st_size)
        data = read_up_to(file, most_bytes() + 1)
        require_room(path, "file", len(data))
        return data


def whole_labels(path: Path, field: str, labels: Array, count: int) -> Array:
    """Returns `count` labels as they are, or says why they can't be class numbers."""
    if labels.shape != (count,) or not count > 0:
        raise InputError(
            f"{path}: field {field!r} is {labels.dtype} {labels.shape}, expected "
            f"{count} integers"
        )
    if labels.dtype.kind not in "iu":
        raise InputError(
            f"{path}: field {field!r} must hold integers, found {labels.dtype} "
            f"{labels.shape}"
        )
    return labels
