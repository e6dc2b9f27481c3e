"""Tables: .npz, .csv, and Adult's census rows."""

import io
import math
import os
import struct
import warnings
import zipfile
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gradaudit import files
from gradaudit.data.dataset import Array, Column, Contents, whole_labels
from gradaudit.errors import InputError

# The names that people give to inputs and labels, per split.
_NAMES = {
    "train": (("x_train", "y_train"),),
    "test": (("x_test", "y_test"),),
    "all": (("x", "y"), ("inputs", "labels"), ("features", "labels")),
}
_OF_ARCHIVES = (struct.error, zipfile.BadZipFile, zlib.error)
DAMAGE = (OSError, ValueError, EOFError, RuntimeError, KeyError, *_OF_ARCHIVES)

_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}

_MOST_AXES = 4
_LONGEST_LINE = 1 << 26
_LARGEST_LABEL = 2**53  # above it a number in a table may stand for another


def is_file_of(suffix: str, path: Path) -> bool:
    """Whether this is a file whose name ends so."""
    return path.suffix == suffix and path.is_file()


def read_npz(path: Path) -> Contents:
    """Reads `x` and `y`, or `x_train`, `y_train`, `x_test`, `y_test`."""
    splits = {}
    with files.opened(path) as file:
        if not zipfile.is_zipfile(file):
            raise InputError(
                f"{path}: field 'archive' can't be read: the file is cut short or no "
                ".npz at all; numpy.savez(path, x=inputs, y=labels) writes one"
            )
        try:
            with zipfile.ZipFile(file) as archive:
                for split, (x, y) in _pairs(path, archive).items():
                    inputs = read_member(path, archive, x)
                    labels = read_member(path, archive, y)
                    splits[split] = inputs, _classes(path, y, labels, inputs)
        except InputError:
            raise
        except DAMAGE as error:
            raise InputError(
                f"{path}: field 'archive' can't be read ({error})"
            ) from None
    return Contents(splits, 1 + max(int(y.max()) for _, y in splits.values()))


def _pairs(path: Path, archive: zipfile.ZipFile) -> dict[str, tuple[str, str]]:
    """Returns the names of inputs and labels by split, if they are small enough."""
    members = {info.filename.removesuffix(".npy"): info for info in archive.filelist}
    pairs = {
        split: (x, y)
        for split, choices in _NAMES.items()
        for x, y in choices
        if x in members and y in members
    }
    if not pairs:
        raise InputError(
            f"{path}: needs arrays 'x' and 'y' (or 'x_train', 'y_train', 'x_test', "
            f"'y_test'), found {', '.join(sorted(members)[:10]) or 'none'}"
        )
    wanted = {name for pair in pairs.values() for name in pair}
    files.require_room(path, "archive", sum(members[name].file_size for name in wanted))
    return pairs


def read_member(
    path: Path,
    archive: zipfile.ZipFile,
    name: str,
    least_axes: int = 1,
    most_axes: int = _MOST_AXES,
) -> Array:
    """Returns one array of numbers; the archive hands out no more than it declares."""
    with archive.open(f"{name}.npy") as file:
        version = np.lib.format.read_magic(file)
        if version not in _HEADERS:
            raise InputError(f"{path}: field {name!r} is no array of numbers")
        shape, fortran, dtype = _HEADERS[version](file)
        if dtype.kind not in "biuf":
            raise InputError(
                f"{path}: field {name!r} holds {dtype}, expected integers or real "
                "numbers"
            )
        if not (least_axes <= len(shape) <= most_axes and min(shape, default=1) > 0):
            raise InputError(
                f"{path}: field {name!r} has shape {_short(shape)}, expected "
                f"{least_axes} to {most_axes} axes, none of them empty"
            )
        expected = math.prod(shape) * dtype.itemsize
        data = files.read_up_to(file, expected + 1)
    if len(data) != expected:
        raise InputError(
            f"{path}: field {name!r} has shape {shape}, which needs {expected:,} "
            f"bytes, found {len(data):,}{' or more' * (len(data) > expected)}"
        )
    array: Array = np.frombuffer(data, dtype)
    return array.reshape(shape, order="F" if fortran else "C")


def _short(shape: tuple[int, ...]) -> str:
    return str(shape) if len(shape) <= 2 * _MOST_AXES else f"of {len(shape)} axes"


def _classes(path: Path, name: str, labels: Array, inputs: Array) -> Array:
    if labels.ndim == 2 and labels.shape[1] > 1:
        one_hot = ((labels == 0) | (labels == 1)).all() and (labels.sum(1) == 1).all()
        if not one_hot:
            raise InputError(
                f"{path}: field {name!r} is {labels.dtype} {labels.shape}: such labels "
                "must be one-hot, a single 1 in each row"
            )
        labels = labels.argmax(axis=1)
    if not inputs.ndim >= 2 or labels.size != len(inputs):
        raise InputError(
            f"{path}: field 'x' of {name!r} is {inputs.shape} for {labels.shape} labels"
        )
    return whole_labels(path, name, labels.reshape(-1), len(inputs))


def read_csv(path: Path) -> Contents:
    """Reads rows of a label and features; a first line of names is passed over.

    The classes are the distinct labels in increasing order.
    """
    with files.opened(path) as file:
        files.require_room(path, "file", os.fstat(file.fileno()).st_size)
        text = io.TextIOWrapper(file, encoding="utf-8-sig")  # a mark is no character
        try:
            table = _rows(path, text)
        except InputError:
            raise
        except UnicodeDecodeError as error:
            raise InputError(
                f"{path}: field 'text' is not UTF-8 ({error.reason} at byte "
                f"{error.start}); save it as UTF-8"
            ) from None
        except ValueError as error:
            raise InputError(f"{path}: field 'rows' can't be read ({error})") from None
    if not len(table) or not table.shape[1] > 1:
        raise InputError(
            f"{path}: field 'rows' is {table.shape}, expected a label and features"
        )
    names, labels = np.unique(table[:, 0], return_inverse=True)
    # Not a comparison with `>`: NaN must fail it too.
    strange = names[~((names == np.round(names)) & (abs(names) <= _LARGEST_LABEL))]
    if len(strange) != 0:
        raise InputError(
            f"{path}: field 'label' (the first column) must hold whole numbers, found "
            f"{strange[:1]}"
        )
    with np.errstate(over="ignore"):  # an infinity is refused with the data
        features = table[:, 1:].astype(np.float32)
    return Contents({"all": (features, labels)}, len(names))


def _rows(path: Path, text: io.TextIOWrapper) -> NDArray[np.float64]:
    first = text.readline(_LONGEST_LINE)
    if first.strip() == "":
        raise InputError(f"{path}: field 'rows' is empty")
    if len(first) >= _LONGEST_LINE:
        raise InputError(
            f"{path}: line 1 has {_LONGEST_LINE:,} characters or more; is this a table?"
        )
    cells = first.split(",")
    most = max(1, files.most_bytes() // (8 * len(cells)))
    header = _is_header(path, cells[0].strip().strip('"'))
    text.seek(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # no rows: said by the caller
        table: NDArray[np.float64] = np.loadtxt(
            text,
            np.float64,
            delimiter=",",
            quotechar='"',
            skiprows=int(header),
            max_rows=most + 1,
            ndmin=2,
        )
    if len(table) > most:
        files.require_room(path, "rows", table.nbytes)
    return table


def _is_header(path: Path, cell: str) -> bool:
    """Whether line 1 begins with a column's name instead of a label."""
    try:
        float(cell)
    except ValueError:
        if cell == "":
            raise InputError(
                f"{path}: line 1 begins with an empty field: leave out the column of "
                "row numbers (pandas: to_csv(index=False))"
            ) from None
        if not (cell[0].isalpha() or cell[0] in "_#"):
            raise InputError(
                f"{path}: line 1 begins with {cell[:20]!r}, neither a label nor the "
                "name of a column"
            ) from None
        return True
    return False


_UNKNOWN = "?"
# Of Adult: the range of a number in the training file, or the names of a category.
_ADULT: dict[str, tuple[int, int] | str] = {
    "age": (17, 90),
    "workclass": (
        "Federal-gov Local-gov Never-worked Private Self-emp-inc Self-emp-not-inc "
        "State-gov Without-pay"
    ),
    "fnlwgt": (12285, 1484705),
    "education": (
        "10th 11th 12th 1st-4th 5th-6th 7th-8th 9th Assoc-acdm Assoc-voc Bachelors "
        "Doctorate HS-grad Masters Preschool Prof-school Some-college"
    ),
    "education-num": (1, 16),
    "marital-status": (
        "Divorced Married-AF-spouse Married-civ-spouse Married-spouse-absent "
        "Never-married Separated Widowed"
    ),
    "occupation": (
        "Adm-clerical Armed-Forces Craft-repair Exec-managerial Farming-fishing "
        "Handlers-cleaners Machine-op-inspct Other-service Priv-house-serv "
        "Prof-specialty Protective-serv Sales Tech-support Transport-moving"
    ),
    "relationship": ("Husband Not-in-family Other-relative Own-child Unmarried Wife"),
    "race": "Amer-Indian-Eskimo Asian-Pac-Islander Black Other White",
    "sex": "Female Male",
    "capital-gain": (0, 99999),
    "capital-loss": (0, 4356),
    "hours-per-week": (1, 99),
    "native-country": (
        "Cambodia Canada China Columbia Cuba Dominican-Republic Ecuador El-Salvador "
        "England France Germany Greece Guatemala Haiti Holand-Netherlands Honduras "
        "Hong Hungary India Iran Ireland Italy Jamaica Japan Laos Mexico Nicaragua "
        "Outlying-US(Guam-USVI-etc) Peru Philippines Poland Portugal Puerto-Rico "
        "Scotland South Taiwan Thailand Trinadad&Tobago United-States Vietnam "
        "Yugoslavia"
    ),
}
_INCOME = "<=50K >50K"
_UNKNOWN_IN = ("workclass", "occupation", "native-country")


def adult_columns() -> tuple[Column, ...]:
    """Returns how the features hold the columns; the ranges are public."""
    return tuple(
        Column(name, tuple(kind.split()), optional=name in _UNKNOWN_IN)
        if isinstance(kind, str)
        else Column(name)
        for name, kind in _ADULT.items()
    )


_SPLITS = {"adult.data": "train", "adult.test": "test"}


def accepts_adult(path: Path) -> bool:
    """Whether this is one of the two files, or a folder that holds one."""
    if path.is_dir():
        return any((path / name).is_file() for name in _SPLITS)
    return path.suffix in (".data", ".test")


def read_adult(path: Path) -> Contents:
    """Reads one file, or the one or two files of a folder."""
    if path.is_dir():
        halves = {split: path / name for name, split in _SPLITS.items()}
        splits = {s: _read_adult(half) for s, half in halves.items() if half.is_file()}
    else:
        splits = {_SPLITS[f"adult{path.suffix}"]: _read_adult(path)}
    return Contents(splits, 2, adult_columns())


def _adult_rows(path: Path) -> list[list[str]]:
    """Returns the rows as text, without the test file's comment and full stops."""
    try:
        lines = files.read_all(path).decode("ascii").splitlines()
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: field 'text' is corrupt ({error})") from None
    rows = []
    for number, line in enumerate(lines, 1):
        if line.startswith("|") or not line.strip():
            continue
        row = [value.strip() for value in line.removesuffix(".").split(",")]
        if len(row) != len(_ADULT) + 1:
            raise InputError(
                f"{path}: line {number} has {len(row)} fields, expected "
                f"{len(_ADULT) + 1}; the file is truncated or corrupt"
            )
        rows.append(row)
    if not rows:
        raise InputError(f"{path}: field 'rows' is empty")
    return rows


def _read_adult(path: Path) -> tuple[Array, Array]:
    *columns, income = np.asarray(_adult_rows(path)).T
    encoded = [
        _encoded(path, name, kind, column)
        for (name, kind), column in zip(_ADULT.items(), columns, strict=True)
    ]
    labels = _encoded(path, "income", _INCOME, income)
    if not labels.any(axis=1).all():
        raise InputError(f"{path}: field 'income' is missing in a row")
    return np.concatenate(encoded, axis=1), labels.argmax(axis=1).astype(np.uint8)


def _encoded(
    path: Path, name: str, kind: tuple[int, int] | str, column: NDArray[np.str_]
) -> NDArray[np.float32]:
    """Returns a feature per name of a category, or a number scaled to [0, 1].

    Unknown values set no feature; numbers outside of the range are clipped.
    """
    if isinstance(kind, str):
        names = np.asarray(kind.split())
        strange = column[~np.isin(column, names) & (column != _UNKNOWN)]
        if len(strange):
            value = str(strange[0])
            raise InputError(f"{path}: field {name!r}: unknown value {value!r}")
        return np.asarray(column[:, None] == names, np.float32)
    try:
        numbers = column.astype(np.float64)
    except ValueError as error:
        raise InputError(f"{path}: field {name!r}: {error}") from None
    if not np.isfinite(numbers).all():
        value = numbers[~np.isfinite(numbers)][0]
        raise InputError(f"{path}: field {name!r}: found {value}")
    low, high = kind
    scaled = np.clip((numbers - low) / (high - low), 0.0, 1.0)
    return scaled[:, None].astype(np.float32)
