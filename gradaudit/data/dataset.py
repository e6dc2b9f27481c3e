"""The one type for data: inputs in [0, 1], integer labels, and where they are from."""

import dataclasses
import functools
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from gradaudit.errors import InputError

Array = NDArray[Any]

TEST_EVERY = 5  # without an official split, every fifth example of a class is test

_MOST_CLASSES = 1_000_000


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of a table, as neighbouring features of an input hold it.

    A number is one feature in [0, 1]; a category has one feature for each of its
    `values`, of which one is 1, or none where the value is unknown (`optional`).
    """

    name: str
    values: tuple[str, ...] = ()
    optional: bool = False

    @property
    def features(self) -> int:
        """How many features it takes."""
        return len(self.values) or 1

    def cell(self, features: NDArray[np.floating]) -> NDArray[Any]:
        """Returns what features (..., features) say: a number, or a value's index.

        The index of an unknown value is -1: less than half of any is set.
        """
        if not self.values:
            return features[..., 0]
        known = features.sum(axis=-1) >= 0.5 if self.optional else True
        return np.where(known, features.argmax(axis=-1), -1)


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset:
    """Labelled examples, validated on construction.

    Guarantees: `inputs` is a finite float32 array in [0, 1] with a leading example
    axis (images are NHWC), `labels` is int32 in [0, classes) and was whole before,
    both non-empty and of equal length.
    """

    name: str
    inputs: NDArray[np.float32]  # (n, *shape)
    labels: NDArray[np.int32]  # (n,)
    classes: int
    split: str
    licence: str
    columns: tuple[Column, ...] = ()  # of a table, in the order of its features

    def __post_init__(self) -> None:
        inputs = real_numbers(self.name, "inputs", self.inputs)
        labels = real_numbers(self.name, "labels", self.labels)
        if (
            not isinstance(self.classes, int | np.integer)
            or not 0 < self.classes <= _MOST_CLASSES
        ):
            raise InputError(
                f"dataset {self.name!r}: classes must be 1 to {_MOST_CLASSES:,}, got "
                f"{self.classes!r}"
            )
        self._check_inputs(inputs)
        self._check_labels(inputs, labels)
        features = sum(column.features for column in self.columns)
        if self.columns and inputs.shape[1:] != (features,):
            raise InputError(
                f"dataset {self.name!r}: its columns have {features} features, its "
                f"inputs shape {inputs.shape[1:]}"
            )
        object.__setattr__(self, "inputs", inputs.astype(np.float32, copy=False))
        object.__setattr__(self, "labels", labels.astype(np.int32, copy=False))

    def _check_inputs(self, inputs: Array) -> None:
        if inputs.ndim not in (2, 4):
            raise InputError(
                f"dataset {self.name!r}: inputs must be (examples, features) or "
                f"(examples, height, width, channels), got shape {inputs.shape}"
            )
        if not inputs.size > 0:
            raise InputError(f"dataset {self.name!r} is empty, shape {inputs.shape}")
        bad = ~np.isfinite(inputs)
        if bad.any():
            where = int(np.argwhere(bad)[0][0])
            raise InputError(
                f"dataset {self.name!r}: input {where} holds {inputs[bad][0]}; "
                "every pixel must be finite"
            )
        low, high = float(inputs.min()), float(inputs.max())
        if not (low >= 0.0 and high <= 1.0):
            raise InputError(
                f"dataset {self.name!r}: inputs must be in [0, 1], found {low} to "
                f"{high}; divide by 255 or scale the features first"
            )

    def _check_labels(self, inputs: Array, labels: Array) -> None:
        if labels.shape != (len(inputs),):
            raise InputError(
                f"dataset {self.name!r}: {len(inputs)} inputs need labels of shape "
                f"({len(inputs)},), got {labels.shape}"
            )
        # NaN is neither inside nor whole.
        whole = labels == np.floor(labels) if labels.dtype.kind == "f" else True
        wrong = ~((labels >= 0) & (labels < self.classes) & whole)
        if wrong.any():
            where = int(np.argwhere(wrong)[0][0])
            raise InputError(
                f"dataset {self.name!r}: label {labels[where]} of example {where} is "
                f"no whole number or outside [0, {self.classes})"
            )

    @functools.cached_property
    def digest(self) -> str:
        """The SHA-256 of what is in it: inputs, labels and the number of classes.

        It does not depend on the name, nor on how the files held the examples.
        """
        parts = (array_digest(self.inputs), array_digest(self.labels), self.classes)
        return hashlib.sha256(" ".join(map(str, parts)).encode()).hexdigest()

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.inputs.shape[1:])

    def take(self, indices: NDArray[np.integer] | slice) -> Self:
        """Returns the chosen examples as a dataset of the same kind."""
        return dataclasses.replace(
            self, inputs=self.inputs[indices], labels=self.labels[indices]
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Contents:
    """The arrays of each split, as they stand in the files.

    Images are (n, height, width) or (n, height, width, channels), tables are
    (n, features). `splits` holds `train` and/or `test` where the files say so, and
    otherwise `all`.
    """

    splits: Mapping[str, tuple[Array, Array]]  # inputs, labels
    classes: int
    columns: tuple[Column, ...] = ()

    def select(self, split: str, source: str) -> tuple[Array, Array]:
        """Returns the inputs and labels of `train`, `test` or `all`."""
        if split in self.splits:
            return self.splits[split]
        if split == "all":
            pairs = self.splits.values()
            return (
                np.concatenate([inputs for inputs, _ in pairs]),
                np.concatenate([labels for _, labels in pairs]),
            )
        if split in ("train", "test") and set(self.splits) == {"all"}:
            inputs, labels = self.splits["all"]
            chosen = held_out(labels) == (split == "test")
            return inputs[chosen], labels[chosen]
        names = sorted({*self.splits, "all"})
        raise InputError(f"{source} has no split {split!r} (it has {', '.join(names)})")

    def dataset(self, name: str, split: str, licence: str) -> Dataset:
        """Returns one split as a validated dataset."""
        inputs, labels = self.select(split, name)
        inputs = to_unit(real_numbers(name, "inputs", inputs))
        return Dataset(name, inputs, labels, self.classes, split, licence, self.columns)


def cells_by_column(
    columns: Sequence[Column], inputs: NDArray[np.floating]
) -> Iterator[tuple[Column, NDArray[Any]]]:
    """Yields every column with its cells of inputs (..., features)."""
    at = 0
    for column in columns:
        yield column, column.cell(inputs[..., at : at + column.features])
        at += column.features


def array_digest(array: Array) -> str:
    """Returns the SHA-256 of an array: its type, shape and bytes."""
    summary = hashlib.sha256(f"{array.dtype.str} {array.shape}\n".encode())
    summary.update(np.ascontiguousarray(array).data)
    return summary.hexdigest()


def real_numbers(name: str, what: str, value: Any) -> Array:
    """Returns an array of integers or real numbers, or says what it is instead."""
    try:
        array = np.asarray(value)
    except (ValueError, TypeError) as error:
        raise InputError(f"dataset {name!r}: {what} are no array ({error})") from None
    if array.dtype.kind not in "biuf":
        raise InputError(
            f"dataset {name!r}: {what} must be integers or real numbers, got "
            f"{array.dtype}"
        )
    return array


def whole_labels(
    path: Path,
    field: str,
    labels: Array,
    count: int,
    least: int = 0,
    most: int | None = None,
) -> Array:
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
    low, high = int(labels.min()), int(labels.max())
    if low < least or (most is not None and high > most):
        upwards = "" if most is None else f" to {most}"
        raise InputError(
            f"{path}: field {field!r} holds the label {low if low < least else high}; "
            f"classes count from {least}{upwards}"
        )
    return labels


def held_out(labels: Array) -> NDArray[np.bool_]:
    """Marks every fifth example of each class, in file order."""
    order = np.argsort(labels, kind="stable")
    ordered = labels[order]
    rank = np.empty(len(labels), np.int64)
    rank[order] = np.arange(len(labels)) - np.searchsorted(ordered, ordered)
    marked: NDArray[np.bool_] = rank % TEST_EVERY == TEST_EVERY - 1
    return marked


def to_unit(inputs: Array) -> NDArray[np.float32]:
    """Returns float32 inputs with a channel axis.

    Integers in images are byte pixels and are divided by 255; in tables they are
    features and stay as they are.
    """
    pixels = inputs.ndim > 2 and np.issubdtype(inputs.dtype, np.integer)
    # One pass: the full-size copy is what loading costs.
    with np.errstate(over="ignore"):  # an infinity is refused with its place
        scaled = np.divide(inputs, np.float32(255 if pixels else 1), dtype=np.float32)
    return scaled[..., None] if inputs.ndim == 3 else scaled
