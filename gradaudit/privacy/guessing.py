"""What is reached without reading: the prior side of a certificate."""

import dataclasses
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from gradaudit.errors import InputError

NO_PRIOR = (
    "Of {public:,} public examples up to {near:,} lie within twice the threshold "
    "(RMSE {radius:.3g}) of one of them: what a guess of {what} reaches without "
    "reading can't be bounded below 1."
)
_MOST_PUBLIC = 2_000  # examples of which the pairwise distances are taken


@dataclasses.dataclass(frozen=True)
class Prior:
    """What the adversary reaches without reading: at most `mass`.

    It holds with probability `confidence` over the draw of the public data, if it was
    learned from any. `reason` says why there is none, if `mass` is 1.
    """

    mass: float
    says: str
    confidence: float = 1.0
    reason: str = ""


def among(candidates: int) -> Prior:
    """Returns the prior of a line-up: one of n, equally likely."""
    if not candidates >= 2:
        raise InputError(f"candidates must be at least 2, got {candidates}")
    return Prior(1 / candidates, f"one of {candidates:,} candidates, equally likely")


def near(
    public: NDArray[Any], success_rmse: float, batch: int = 1, confidence: float = 0.95
) -> Prior:
    """Returns the prior of a reconstruction at an RMSE, learned from public data.

    The largest mass of a ball of radius r: the N' public examples inside it lie within
    2r of each other, so N' is at most the largest count m of examples within 2r of one
    of them, and Clopper-Pearson for m of N bounds the mass, whichever ball it is.
    For a batch of B, the j best matched of the B errors are at most
    r * sqrt(B / (B - j + 1)): each j gives a bound, the least is taken, and the
    failure probability is split over them.

    Args:
      public: examples, drawn like the victims and independently of them, (N, ...).
      success_rmse: the RMSE of a success, over all features of the batch.
      batch: how many examples are rebuilt together, in any order.
      confidence: that the bound holds, over the draw of the public examples.
    """
    if len(public) < 2:
        raise InputError("the prior needs at least two public examples")
    if not 0 < confidence < 1:
        raise InputError(f"confidence must lie in (0, 1), got {confidence}")
    if not batch >= 1:
        raise InputError(f"batch must be at least 1, got {batch}")
    kept = np.random.default_rng(0).permutation(len(public))[:_MOST_PUBLIC]
    rows = np.asarray(public, np.float32)[np.sort(kept)].reshape(len(kept), -1)
    count, failure = len(rows), (1 - confidence) / batch
    radii = [success_rmse * math.sqrt(batch / (batch - j)) for j in range(batch)]
    crowds = _largest_crowds(rows, [2 * radius for radius in radii])
    masses = []
    for j, crowd in enumerate(crowds, start=1):
        upper = special.betaincinv(crowd + 1, count - crowd, 1 - failure)
        mass = float(upper) if crowd < count else 1.0
        masses.append(math.comb(batch, j) * math.perm(batch, j) * mass**j)
    mass = min(1.0, *masses)
    what = "one example" if batch == 1 else f"a batch of {batch}, in any order"
    reason = ""
    if mass >= 1:
        crowd, radius = crowds[0], 2 * radii[0]
        reason = NO_PRIOR.format(public=count, near=crowd, radius=radius, what=what)
    return Prior(
        mass,
        f"{what} drawn like {count:,} public examples, of which at most {crowds[0]:,} "
        f"lie within RMSE {2 * success_rmse:g} of one of them",
        confidence,
        reason,
    )


def _largest_crowds(rows: NDArray[np.float32], radii: list[float]) -> list[int]:
    """Returns for each RMSE the most rows within it of one row, itself included."""
    squares = np.einsum("nd,nd->n", rows, rows)
    limits = [rows.shape[1] * radius**2 * (1 + 1e-5) for radius in radii]
    most = [1] * len(radii)
    for start in range(0, len(rows), 512):
        part = slice(start, start + 512)
        apart = squares[part, None] + squares - 2 * rows[part] @ rows.T
        for index, limit in enumerate(limits):
            most[index] = max(most[index], int((apart <= limit).sum(axis=1).max()))
    return most
