"""Columns of tables: how features hold them, and the cells that features say."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


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


def split(
    columns: Sequence[Column], inputs: NDArray[np.floating]
) -> Iterator[tuple[Column, NDArray[Any]]]:
    """Yields every column with its cells of inputs (..., features)."""
    at = 0
    for column in columns:
        yield column, column.cell(inputs[..., at : at + column.features])
        at += column.features
