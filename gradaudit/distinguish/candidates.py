"""Who stands in a line-up, and who is picked out of it."""

import numpy as np
from numpy.typing import NDArray

from gradaudit.errors import InputError

Ids = NDArray[np.int64]
Scores = NDArray[np.float32]  # (victims, pool)


def draw_groups(
    rng: np.random.Generator,
    labels: NDArray[np.integer],
    batch: int,
    candidates: int,
    line_ups: int,
    groups: int,
    same_label: bool,
) -> tuple[list[NDArray[np.int64]], list[Ids]]:
    """Draws pools of batches (pool, batch) and who in each pool is a victim.

    With `same_label` all batches of a pool have the same labels, those of a batch
    drawn at random. A pool has at least so many candidates, and a batch for every
    victim if the data suffices; candidates of a pool share no example if it does.
    """
    counts = np.bincount(labels)
    pools, victims = [], []
    for size in _even(line_ups, groups):
        wanted = max(candidates, size)
        pattern = None
        if same_label:
            pattern = _pattern(rng, labels, counts, batch, candidates)
        pool = _pool(rng, labels, batch, wanted, pattern)
        pools.append(pool)
        rounds = -(-size // len(pool))
        order = [rng.permutation(len(pool)) for _ in range(rounds)]
        victims.append(np.concatenate(order)[:size])
    return pools, victims


def _even(total: int, parts: int) -> list[int]:
    return [len(part) for part in np.array_split(np.arange(total), min(parts, total))]


def _pattern(
    rng: np.random.Generator,
    labels: NDArray[np.integer],
    counts: NDArray[np.integer],
    batch: int,
    candidates: int,
) -> NDArray[np.integer]:
    """Returns the labels of a random batch that enough others can share."""
    needed = candidates if batch == 1 else batch
    enough = np.flatnonzero(counts[labels] >= needed)
    if not len(enough):
        raise InputError(
            f"no label has {needed:,} examples (the most is {counts.max():,}), so that "
            f"{candidates:,} candidates can't share the victim's: ask for fewer, or "
            "for candidates of any label"
        )
    return np.sort(labels[rng.choice(enough, size=batch)])


def _pool(
    rng: np.random.Generator,
    labels: NDArray[np.integer],
    batch: int,
    wanted: int,
    pattern: NDArray[np.integer] | None,
) -> NDArray[np.int64]:
    """Returns batches of these labels, disjoint where the data suffices."""
    kinds = np.zeros_like(labels) if pattern is None else labels
    asked = np.zeros(batch, labels.dtype) if pattern is None else pattern
    columns = []
    for label, copies in zip(*np.unique(asked, return_counts=True), strict=True):
        own = rng.permutation(np.flatnonzero(kinds == label))
        rows = min(wanted, len(own)) if batch == 1 else wanted
        if rows * copies <= len(own):
            columns.append(own[: rows * copies].reshape(rows, copies))
        else:
            drawn = [rng.choice(own, copies, replace=False) for _ in range(rows)]
            columns.append(np.stack(drawn))
    return np.concatenate(columns, axis=1)


def picks(
    rng: np.random.Generator, scores: Scores, victims: Ids, candidates: int
) -> NDArray[np.bool_]:
    """Returns whether each victim is picked out of so many candidates, (victims,).

    The others are drawn at random from the pool, without a look at the scores; the
    victim stands at a random place among them, and ties are broken at random.
    """
    rows = np.arange(len(victims))
    order = rng.random(scores.shape)
    order[rows, victims] = -1.0  # the victim is always among them
    chosen = np.argpartition(order, candidates - 1, axis=1)[:, :candidates]
    chosen = rng.permuted(chosen, axis=1)
    told = np.nan_to_num(
        np.take_along_axis(scores, chosen, axis=1), nan=-np.inf, posinf=np.inf
    )
    best = told == told.max(axis=1, keepdims=True)
    picked = np.argmax(np.where(best, rng.random(best.shape), -1.0), axis=1)
    hits: NDArray[np.bool_] = chosen[rows, picked] == victims
    return hits
