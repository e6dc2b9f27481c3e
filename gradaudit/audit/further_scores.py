"""Scores that some runs have: of a malicious server's layer, of a table's cells."""

import collections
import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from gradaudit.attacks.base import Attack
from gradaudit.attacks.imprint import BACK, LAYER, Imprint, Imprinted
from gradaudit.audit.scores import whole_and_each
from gradaudit.data.dataset import Column, Dataset, cells_by_column
from gradaudit.models.model import Model
from gradaudit.report import metrics
from gradaudit.types import PyTree

_ALIKE = 1e-5  # second over first singular value of a matrix of equal rows
_SORTED = 8  # numbers in order: by chance once in 20,000 networks


Cells = NDArray[Any]


def further_scores(
    attack: Attack,
    model: Model,
    params: PyTree,
    dataset: Dataset,
    truth: tuple[Cells, Cells],
    handed_in: tuple[Cells, Cells],
    threshold: float,
) -> dict[str, Any]:
    """Returns what only some attacks and some data have to say, by its name.

    Inputs and labels each: the truth and what was handed in, (victims, batch, *shape)
    and (victims, batch).
    """
    everybody = (dataset.inputs, dataset.labels)
    found = {
        "imprint": imprint_scores(
            attack, model, params, truth[0], handed_in[0], threshold
        ),
        "cells": cell_scores(dataset.columns, truth, handed_in, everybody),
    }
    return {name: entry for name, entry in found.items() if entry is not None}


def imprint_scores(
    attack: Attack,
    model: Model,
    params: PyTree,
    truth: NDArray[np.float32],
    handed_in: NDArray[np.float32],
    threshold: float,
) -> dict[str, Any] | None:
    """Returns the share of examples alone in their bin: expected, true and rebuilt.

    None unless the server was malicious.
    """
    network = model.network
    if not isinstance(network, Imprinted) or not isinstance(attack, Imprint):
        return None
    if not len(truth):
        return None
    found = [_alone(network.bins_of(batch), batch) for batch in truth]
    alone = np.stack([own for own, _ in found])
    guess = np.clip(metrics.matched(truth, handed_in), 0, 1)
    near = whole_and_each(truth, guess)[1] <= threshold
    added = _size([params[LAYER], params[BACK]])
    return {
        "bins": attack.bins,
        "expected": float(np.mean([attack.expected(n) for _, n in found])),
        "alone": float(alone.mean()),
        "rebuilt": float(near.mean()),
        "alone_rebuilt": float(near[alone].mean()) if alone.any() else None,
        "each": [
            {"alone": int(a.sum()), "rebuilt": int(n.sum())}
            for a, n in zip(alone, near, strict=True)
        ],
        "examples": near.size,
        "added_parameters": added,
        "share_of_parameters": added / _size(params),
        "noticeable": noticeable(params),
    }


def seen_by_clients(scores: dict[str, Any] | None) -> list[str]:
    """Returns a sentence on what gives the layer away; none if there is no layer."""
    if scores is None:
        return []
    size = (
        f"{scores['added_parameters']:,} parameters more than agreed on "
        f"({scores['share_of_parameters']:.0%} of all)"
    )
    return [f"A client could notice: {'; '.join([size, *scores['noticeable']])}."]


def _alone(
    bins: NDArray[np.intp], batch: NDArray[np.float32]
) -> tuple[NDArray[np.bool_], int]:
    """Marks the examples whose bin nobody else is in; and how many different ones.

    Local steps may take an example twice: it is in its own company then.
    """
    which = np.unique(batch.reshape(len(batch), -1), axis=0, return_inverse=True)[1]
    pairs = np.unique(np.stack([bins, which.reshape(-1)]), axis=1)
    alone = np.asarray([np.sum(pairs[0] == own) == 1 for own in bins])
    return alone, pairs.shape[1]


def _size(params: PyTree) -> int:
    return sum(int(np.size(leaf)) for leaf in jax.tree.leaves(params))


def noticeable(params: PyTree) -> list[str]:
    """Returns in words what a client could find odd in the parameters it received.

    Guarantee: nothing in freshly drawn networks of `gradaudit list`.
    """
    said = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        name = ".".join(str(getattr(part, "key", part)) for part in path)
        values = np.asarray(leaf, np.float64)
        if values.ndim == 2 and min(values.shape) > 2:
            strength = np.linalg.svd(values, compute_uv=False)
            if strength[0] > 0 and strength[1] <= _ALIKE * strength[0]:
                shape = " x ".join(map(str, values.shape))
                said.append(f"{name} ({shape}) has rank 1: its rows are all alike")
        if values.ndim == 1 and len(values) >= _SORTED:
            steps = np.diff(values)
            if (steps > 0).all() or (steps < 0).all():
                said.append(f"{name}: {len(values)} numbers in order")
    return said


# Of a column's deviation: a normal number's mean is so near in a quarter of the cases
# (Vero et al. 2023, section 5).
TOLERANCE = 0.319


def cell_scores(
    columns: Sequence[Column],
    truth: tuple[Cells, Cells],
    handed_in: tuple[Cells, Cells],
    everybody: tuple[Cells, Cells],
) -> dict[str, Any] | None:
    """Returns the shares of cells and of whole rows that are right; None: no table.

    `everybody` is the whole set that victims are from. The label is the last column.
    Right is the same value, or a number within `TOLERANCE` of the column's deviation.
    Guessing hands in one value per column, the one that is right for most of those who
    are no victims. Intervals count victims, whose cells are not independent.
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
    return np.clip(inputs, 0, 1), np.take_along_axis(handed_in[1], order, axis=1)


def _with_labels(
    columns: Sequence[Column], inputs: Cells, labels: Cells
) -> list[tuple[str, bool, Cells]]:
    """Returns (name, whether it is a number, cells) of every column."""
    table = [
        (c.name, not c.values, cells) for c, cells in cells_by_column(columns, inputs)
    ]
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
