"""What a reader finds in files, and how it becomes a dataset."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradaudit.data.dataset import Dataset
from gradaudit.errors import InputError

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
