"""What became of a malicious server's layer, and what a client could notice of it."""

from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from gradaudit.attacks.base import Attack
from gradaudit.attacks.imprint import BACK, LAYER, Imprint, Imprinted
from gradaudit.models.model import Model
from gradaudit.report import metrics
from gradaudit.types import PyTree

_ALIKE = 1e-5  # second over first singular value of a matrix of equal rows
_SORTED = 8  # numbers in order: by chance once in 20,000 networks


def imprint_scores(
    attack: Attack,
    model: Model,
    params: PyTree,
    truth: NDArray[np.float32],
    handed_in: NDArray[np.float32],
    threshold: float,
) -> dict[str, Any] | None:
    """Returns the share of examples alone in their bin: expected, true and rebuilt.

    `truth` and `handed_in` are (victims, batch, *shape). None unless the server was
    malicious.
    """
    network = model.network
    if not isinstance(network, Imprinted) or not isinstance(attack, Imprint):
        return None
    if not len(truth):
        return None
    rows = (*truth.shape[:2], -1)
    found = [_alone(network.bins_of(batch), batch) for batch in truth]
    alone = np.stack([own for own, _ in found])
    guess = metrics.clipped(metrics.matched(truth, handed_in)).reshape(rows)
    near = metrics.rmse(truth.reshape(rows), guess) <= threshold
    count, batch = truth.shape[:2]
    sizes = {name: _size(params[name]) for name in (LAYER, BACK)}
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
        "examples": count * batch,
        "added_parameters": sum(sizes.values()),
        "share_of_parameters": sum(sizes.values()) / _size(params),
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
