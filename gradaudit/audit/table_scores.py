"""How much of a table was rebuilt: cells, by column, and whole rows."""

import collections
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradaudit.columns import Column, split
from gradaudit.report import metrics

# Of a column's deviation: a normal number's mean is so near in a quarter of the cases
# (Vero et al. 2023, section 5).
TOLERANCE = 0.319

Cells = NDArray[Any]


def cell_scores(
    columns: Sequence[Column],
    truth: tuple[Cells, Cells],
    handed_in: tuple[Cells, Cells],
    everybody: tuple[Cells, Cells],
) -> dict[str, Any] | None:
    """Returns the shares of cells and of whole rows that are right; None: no table.

    Inputs and labels each: the truth and what was handed in, (victims, batch, features)
    and (victims, batch), and the whole set that victims are from. The label is the last
    column. Right is the same value, or a number within `TOLERANCE` of the column's
    deviation. Guessing hands in one value per column, the one that is right for most of
    those who are no victims. Intervals count victims, whose cells are not independent.
    """
    if not columns or not len(truth[0]):
        return None
    whole = _with_labels(columns, *_without(everybody, truth))
    true, found = (
        _with_labels(columns, *truth),
        _with_labels(columns, *_matched(truth, handed_in)),
    )
    rows, right, guessed = [], [], []
    for (name, is_number, own), (_, _, cells), (_, _, others) in zip(
        true, found, whole, strict=True
    ):
        near = TOLERANCE * float(np.std(others)) if is_number else 0.0
        right.append(np.abs(own - cells) <= near)
        guessed.append(np.abs(own - _commonest(others, near)) <= near)
        rate = _rate(right[-1])
        rows.append({"name": name, **rate, "guess": float(guessed[-1].mean())})
    every, guess = np.stack(right, axis=-1), np.stack(guessed, axis=-1)
    return {
        "right": {**_rate(every), "guess": float(guess.mean())},
        "rows": {
            **_rate(np.asarray(every.all(axis=-1))),
            "guess": float(guess.all(axis=-1).mean()),
        },
        "columns": rows,
        "tolerance": TOLERANCE,
    }


def _rate(right: NDArray[np.bool_]) -> dict[str, Any]:
    """Returns the share of what is right (victims, ...), victims being apart."""
    flat = right.reshape(len(right), -1)
    hits = flat.sum(axis=1).tolist()
    return dataclasses.asdict(
        metrics.rate_over_draws(hits, [flat.shape[1]] * len(flat))
    )


def _matched(
    truth: tuple[Cells, Cells], handed_in: tuple[Cells, Cells]
) -> tuple[Cells, Cells]:
    """Returns what was handed in, in the order of the truth."""
    pairs = zip(truth[0], handed_in[0], strict=True)
    order = np.stack([metrics.match(true, guess) for true, guess in pairs])
    inputs = np.take_along_axis(handed_in[0], order[..., None], axis=1)
    return metrics.clipped(inputs), np.take_along_axis(handed_in[1], order, axis=1)


def _with_labels(
    columns: Sequence[Column], inputs: Cells, labels: Cells
) -> list[tuple[str, bool, Cells]]:
    """Returns (name, whether it is a number, cells) of every column."""
    table = [(c.name, not c.values, cells) for c, cells in split(columns, inputs)]
    return [*table, ("label", False, labels)]


def _without(
    everybody: tuple[Cells, Cells], victims: tuple[Cells, Cells]
) -> tuple[Cells, Cells]:
    """Returns the set without the victims' own rows; all of it if nobody is left."""
    inputs, labels = everybody
    theirs = victims[0].reshape(-1, inputs.shape[1]).astype(inputs.dtype)
    left = collections.Counter(row.tobytes() for row in theirs)
    kept = np.ones(len(inputs), bool)
    for index, row in enumerate(inputs):
        name = row.tobytes()
        if left[name]:
            left[name] -= 1
            kept[index] = False
    return (inputs[kept], labels[kept]) if kept.any() else everybody


def _commonest(cells: Cells, near: float) -> Any:
    """Returns the value that most cells are, or are near to."""
    values, counts = np.unique(cells, return_counts=True)
    total = np.append(0, np.cumsum(counts))
    low = np.searchsorted(values, values - near)
    high = np.searchsorted(values, values + near, side="right")
    return values[np.argmax(total[high] - total[low])]
