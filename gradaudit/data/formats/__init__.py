"""File formats: the table that finds the right reader by what is in a file.

A new format is one file with `accepts` and `read`, and one line in `READERS`.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path

from gradaudit.data.dataset import Contents
from gradaudit.data.formats import images, records, tabular
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
        records.accepts_idx,
        records.read_idx,
    ),
    Reader(
        "cifar10-python",
        "data_batch_1 or test_batch, or their folder",
        partial(records.holds_batches, ""),
        partial(records.read_batches, "", records.python_batch),
    ),
    Reader(
        "cifar10-binary",
        "data_batch_1.bin or test_batch.bin, or their folder",
        partial(records.holds_batches, ".bin"),
        partial(records.read_batches, ".bin", records.binary_batch),
    ),
    Reader(
        "cifar10-png",
        "a folder of data_batch_1.png ... with labels in JSON",
        records.accepts_cifar_strips,
        records.read_cifar_strips,
    ),
    Reader(
        "adult",
        "adult.data or adult.test, or their folder",
        tabular.accepts_adult,
        tabular.read_adult,
    ),
    Reader(
        "svhn",
        "train_32x32.mat or test_32x32.mat, or a folder",
        images.accepts_svhn,
        images.read_svhn,
    ),
    Reader(
        "lfw",
        "lfw_funneled, or the scikit-learn cache that holds it",
        images.accepts_lfw,
        images.read_lfw,
    ),
    Reader(
        "orl-faces", "a folder of s1/1.pgm ...", images.accepts_orl, images.read_orl
    ),
    Reader(
        "image-folder",
        "a folder per class, images of one size",
        images.accepts,
        images.read,
    ),
    Reader(
        "npz",
        "x and y, or x_train, y_train, x_test, y_test (Purchase)",
        partial(tabular.is_file_of, ".npz"),
        tabular.read_npz,
    ),
    Reader(
        "csv",
        "rows of label, features in [0, 1] (Purchase)",
        partial(tabular.is_file_of, ".csv"),
        tabular.read_csv,
    ),
)


def read_path(path: Path) -> Contents:
    """Reads a file or folder with the first reader that accepts it.

    Guarantee: whatever the file holds, this returns or raises `InputError`; no code
    from a file runs, no pipe is waited for, and no more is decoded than is allowed.
    """
    try:
        if not path.exists():
            loop = "; the link leads nowhere" if path.is_symlink() else ""
            raise InputError(f"no such file or folder: {path}{loop}")
        if not (path.is_file() or path.is_dir()):
            raise InputError(
                f"{path}: is neither a file nor a folder (a pipe or a device?)"
            )
        for reader in READERS:
            if reader.accepts(path):
                return reader.read(path)
    except OSError as error:
        reason = error.strerror or error
        raise InputError(
            f"{error.filename or path}: can't be read ({reason})"
        ) from None
    except MemoryError:
        raise InputError(f"{path}: needs more memory than this machine has") from None
    known = "; ".join(f"{reader.name}: {reader.files}" for reader in READERS)
    raise InputError(f"{path}: no reader knows this kind of file (known: {known})")
