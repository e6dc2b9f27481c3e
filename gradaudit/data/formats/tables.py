"""Tables: .npz, .csv, and Adult's census rows."""

import dataclasses
import warnings
import zipfile
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gradaudit.data.dataset import Array, Contents
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


UNKNOWN = "?"


@dataclasses.dataclass(frozen=True)
class Number:
    """A column of numbers and its range in the training file."""

    low: int
    high: int

    def encode(self, column: NDArray[np.str_]) -> NDArray[np.float32]:
        """Returns one feature (n, 1), the range scaled to [0, 1] and clipped."""
        scaled = (column.astype(np.float64) - self.low) / (self.high - self.low)
        return np.clip(scaled, 0.0, 1.0)[:, None].astype(np.float32)


@dataclasses.dataclass(frozen=True)
class Category:
    """A column of names; `names` are separated by blanks."""

    names: str

    def encode(self, column: NDArray[np.str_]) -> NDArray[np.float32]:
        """Returns one feature per name (n, names); unknown values set none."""
        names = np.asarray(self.names.split())
        strange = column[~np.isin(column, names) & (column != UNKNOWN)]
        if len(strange):
            raise ValueError(f"unknown value {str(strange[0])!r}")
        return np.asarray(column[:, None] == names, np.float32)


COLUMNS: dict[str, Number | Category] = {
    "age": Number(17, 90),
    "workclass": Category(
        "Federal-gov Local-gov Never-worked Private Self-emp-inc Self-emp-not-inc "
        "State-gov Without-pay"
    ),
    "fnlwgt": Number(12285, 1484705),
    "education": Category(
        "10th 11th 12th 1st-4th 5th-6th 7th-8th 9th Assoc-acdm Assoc-voc Bachelors "
        "Doctorate HS-grad Masters Preschool Prof-school Some-college"
    ),
    "education-num": Number(1, 16),
    "marital-status": Category(
        "Divorced Married-AF-spouse Married-civ-spouse Married-spouse-absent "
        "Never-married Separated Widowed"
    ),
    "occupation": Category(
        "Adm-clerical Armed-Forces Craft-repair Exec-managerial Farming-fishing "
        "Handlers-cleaners Machine-op-inspct Other-service Priv-house-serv "
        "Prof-specialty Protective-serv Sales Tech-support Transport-moving"
    ),
    "relationship": Category(
        "Husband Not-in-family Other-relative Own-child Unmarried Wife"
    ),
    "race": Category("Amer-Indian-Eskimo Asian-Pac-Islander Black Other White"),
    "sex": Category("Female Male"),
    "capital-gain": Number(0, 99999),
    "capital-loss": Number(0, 4356),
    "hours-per-week": Number(1, 99),
    "native-country": Category(
        "Cambodia Canada China Columbia Cuba Dominican-Republic Ecuador El-Salvador "
        "England France Germany Greece Guatemala Haiti Holand-Netherlands Honduras "
        "Hong Hungary India Iran Ireland Italy Jamaica Japan Laos Mexico Nicaragua "
        "Outlying-US(Guam-USVI-etc) Peru Philippines Poland Portugal Puerto-Rico "
        "Scotland South Taiwan Thailand Trinadad&Tobago United-States Vietnam "
        "Yugoslavia"
    ),
}


INCOME = Category("<=50K >50K")


_SPLITS = {"adult.data": "train", "adult.test": "test"}


def accepts_adult(path: Path) -> bool:
    """Whether this is one of the two files, or a folder that holds one."""
    if path.is_dir():
        return any((path / name).is_file() for name in _SPLITS)
    return path.suffix in (".data", ".test")


def read_adult(path: Path) -> Contents:
    """Reads one file, or the one or two files of a folder."""
    if path.is_dir():
        files = {s: path / n for n, s in _SPLITS.items() if (path / n).is_file()}
    else:
        files = {_SPLITS[f"adult{path.suffix}"]: path}
    return Contents({split: _read(file) for split, file in files.items()}, 2)


def parse(path: Path) -> list[list[str]]:
    """Returns the rows as text, without the test file's comment and full stops."""
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: field 'text' is corrupt ({error})") from None
    rows = []
    for number, line in enumerate(lines, 1):
        if line.startswith("|") or not line.strip():
            continue
        row = [value.strip() for value in line.removesuffix(".").split(",")]
        require(
            len(row) == len(COLUMNS) + 1,
            f"{path}: line {number} has {len(row)} fields, expected "
            f"{len(COLUMNS) + 1}; the file is truncated or corrupt",
        )
        rows.append(row)
    require(bool(rows), f"{path}: field 'rows' is empty")
    return rows


def _read(path: Path) -> tuple[Array, Array]:
    *columns, income = np.asarray(parse(path)).T
    encoded = [
        _encode(path, name, COLUMNS[name], column)
        for name, column in zip(COLUMNS, columns, strict=True)
    ]
    labels = _encode(path, "income", INCOME, income)
    require(
        bool(labels.any(axis=1).all()), f"{path}: field 'income' is missing in a row"
    )
    return np.concatenate(encoded, axis=1), labels.argmax(axis=1).astype(np.uint8)


def _encode(
    path: Path, name: str, kind: Number | Category, column: NDArray[np.str_]
) -> NDArray[np.float32]:
    try:
        return kind.encode(column)
    except ValueError as error:
        raise InputError(f"{path}: field {name!r}: {error}") from None
