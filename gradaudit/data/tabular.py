"""Arrays and tables: `.npz` with inputs and labels, and CSV with the label first.

Purchase (Shokri et al., 2017) comes as either: 600 binary features and 100 classes
numbered from 1 in the CSV, `features` and one-hot `labels` in the NPZ.
"""

import warnings
import zipfile
import zlib
from pathlib import Path

import numpy as np

from gradaudit.data.contents import Array, Contents
from gradaudit.errors import InputError, require

# The names that people give to inputs and labels, per split.
_NAMES = {
    "train": (("x_train", "y_train"),),
    "test": (("x_test", "y_test"),),
    "all": (("x", "y"), ("inputs", "labels"), ("features", "labels")),
}
_DAMAGE = (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error)


def accepts_npz(path: Path) -> bool:
    """Whether this is an `.npz` file."""
    return path.suffix == ".npz" and path.is_file()


def accepts_csv(path: Path) -> bool:
    """Whether this is a `.csv` file."""
    return path.suffix == ".csv" and path.is_file()


def read_npz(path: Path) -> Contents:
    """Reads `x` and `y`, or `x_train`, `y_train`, `x_test`, `y_test`."""
    require(
        zipfile.is_zipfile(path),
        f"{path}: field 'archive' can't be read: the file is cut short or no .npz at "
        "all; numpy.savez(path, x=inputs, y=labels) writes one",
    )
    try:
        # np.load leaves the file open when the archive is damaged.
        with path.open("rb") as opened, np.load(opened) as file:
            arrays = {name: file[name] for name in file.files}
    except _DAMAGE as error:
        raise InputError(f"{path}: field 'archive' can't be read ({error})") from None
    splits = {
        split: (arrays[x], _classes(path, y, arrays[y]))
        for split, choices in _NAMES.items()
        for x, y in choices
        if x in arrays and y in arrays
    }
    if not splits:
        raise InputError(
            f"{path}: needs arrays 'x' and 'y' (or 'x_train', 'y_train', 'x_test', "
            f"'y_test'), found {', '.join(sorted(arrays)) or 'none'}"
        )
    for split, (inputs, labels) in splits.items():
        require(
            inputs.ndim >= 2 and len(inputs) == len(labels),
            f"{path}: field 'x' of {split} is {inputs.shape} for {len(labels)} labels",
        )
    return Contents(splits, 1 + max(int(y.max()) for _, y in splits.values()))


def read_csv(path: Path) -> Contents:
    """Reads rows of a label and features; a first line of names is passed over.

    The classes are the distinct labels in increasing order.
    """
    with path.open() as file:
        header = not _is_number(file.readline().split(",")[0])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # no rows: said below
            table = np.loadtxt(
                path, np.float32, delimiter=",", skiprows=int(header), ndmin=2
            )
    except (ValueError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: field 'rows' can't be read ({error})") from None
    require(
        len(table) > 0 and table.shape[1] > 1,
        f"{path}: field 'rows' is {table.shape}, expected a label and features",
    )
    names, labels = np.unique(table[:, 0], return_inverse=True)
    require(
        bool(np.all(names == np.round(names))),
        f"{path}: field 'label' (the first column) must hold whole numbers, found "
        f"{names[names != np.round(names)][:1]}",
    )
    return Contents({"all": (table[:, 1:], labels)}, len(names))


def _classes(path: Path, name: str, labels: Array) -> Array:
    one_hot = labels.ndim == 2 and labels.shape[1] > 1
    labels = labels.argmax(axis=1) if one_hot else labels.reshape(-1)
    require(
        len(labels) > 0 and np.issubdtype(labels.dtype, np.integer),
        f"{path}: field {name!r} must hold integers, found {labels.dtype} "
        f"{labels.shape}",
    )
    return labels


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
