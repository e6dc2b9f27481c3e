"""The one type for data: inputs in [0, 1], integer labels, and where they are from."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from gradaudit.errors import InputError, require


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset:
    """Labelled examples, validated on construction.

    Guarantees: `inputs` is a finite float32 array in [0, 1] with a leading example
    axis (images are NHWC), `labels` is int32 in [0, classes), both non-empty and of
    equal length.
    """

    name: str
    inputs: NDArray[np.float32]  # (n, *shape)
    labels: NDArray[np.int32]  # (n,)
    classes: int
    split: str
    licence: str

    def __post_init__(self) -> None:
        inputs, labels = np.asarray(self.inputs), np.asarray(self.labels)
        require(len(inputs) > 0, f"dataset {self.name!r} is empty")
        require(
            inputs.ndim in (2, 4),
            f"dataset {self.name!r}: inputs must be (examples, features) or "
            f"(examples, height, width, channels), got shape {inputs.shape}",
        )
        require(
            labels.shape == (len(inputs),),
            f"dataset {self.name!r}: {len(inputs)} inputs need labels of shape "
            f"({len(inputs)},), got {labels.shape}",
        )
        bad = ~np.isfinite(inputs)
        if bad.any():
            where = int(np.argwhere(bad)[0][0])
            raise InputError(
                f"dataset {self.name!r}: input {where} holds {inputs[bad][0]}; "
                "every pixel must be finite"
            )
        low, high = float(inputs.min()), float(inputs.max())
        require(
            low >= 0.0 and high <= 1.0,
            f"dataset {self.name!r}: inputs must be in [0, 1], found {low} to {high}; "
            "divide by 255 or scale the features first",
        )
        outside = (labels < 0) | (labels >= self.classes)
        if outside.any():
            where = int(np.argwhere(outside)[0][0])
            raise InputError(
                f"dataset {self.name!r}: label {labels[where]} of example {where} is "
                f"outside [0, {self.classes})"
            )
        object.__setattr__(self, "inputs", inputs.astype(np.float32, copy=False))
        object.__setattr__(self, "labels", labels.astype(np.int32, copy=False))

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


Array = NDArray[Any]


TEST_EVERY = 5  # without an official split, every fifth example of a class is test


@dataclasses.dataclass(frozen=True, eq=False)
class Contents:
    """The arrays of each split, as they stand in the files.

    Images are (n, height, width) or (n, height, width, channels), tables are
    (n, features). `splits` holds `train` and/or `test` where the files say so, and
    otherwise `all`.
    """

    splits: Mapping[str, tuple[Array, Array]]  # inputs, labels
    classes: int

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
        return Dataset(name, to_unit(inputs), labels, self.classes, split, licence)


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
    scaled = np.divide(inputs, np.float32(255 if pixels else 1), dtype=np.float32)
    return scaled[..., None] if inputs.ndim == 3 else scaled
