"""How good a reconstruction is. Only evaluators call this: it sees the truth."""

import dataclasses
import math

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

Floats = NDArray[np.floating]


def match(truth: Floats, guess: Floats) -> NDArray[np.intp]:
    """Returns the order of `guess` (batch, ...) that fits `truth` best (Hungarian)."""
    if len(truth) == 1:
        return np.zeros(1, np.intp)
    flat_truth, flat_guess = (x.reshape(len(x), -1) for x in (truth, guess))
    cost = np.square(flat_truth[:, None] - flat_guess[None]).sum(axis=-1)
    return np.asarray(linear_sum_assignment(cost)[1])


def rmse(truth: Floats, guess: Floats) -> float:
    """Returns sqrt(mean((x - x^)^2)) under the best assignment; inf if not finite."""
    if not np.isfinite(guess).all():
        return math.inf
    ordered = guess[match(truth, guess)]
    return float(np.sqrt(np.mean(np.square(truth - ordered))))


def clipped(guess: Floats) -> Floats:
    """Returns the guess in the valid range [0, 1]."""
    return np.clip(guess, 0.0, 1.0)


def psnr(error: float) -> float:
    """Returns the peak signal-to-noise ratio in dB of an RMSE, for a peak of 1."""
    return math.inf if error == 0 else -20.0 * math.log10(error)


def ssim(truth: Floats, guess: Floats) -> float | None:
    """Returns the mean structural similarity of images; None for anything else."""
    from skimage.metrics import structural_similarity

    if truth.ndim != 4 or not np.isfinite(guess).all():
        return None
    side = min(7, *truth.shape[1:3])
    window = side if side % 2 else side - 1
    if window < 3:
        return None
    ordered = guess[match(truth, guess)]
    values = [
        structural_similarity(a, b, data_range=1.0, channel_axis=-1, win_size=window)
        for a, b in zip(truth, ordered.astype(truth.dtype), strict=True)
    ]
    return float(np.mean(values))


@dataclasses.dataclass(frozen=True)
class Rate:
    """A share of successes with its Wilson 95 % interval."""

    value: float
    low: float
    high: float


def rate(successes: int, trials: int, z: float = 1.959963984540054) -> Rate:
    """Returns successes / trials with the Wilson interval."""
    if trials == 0:
        return Rate(math.nan, 0.0, 1.0)
    share = successes / trials
    centre = share + z * z / (2 * trials)
    spread = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    scale = 1 + z * z / trials
    low, high = (centre - spread) / scale, (centre + spread) / scale
    # At 0 and at all the interval's end is exact; rounding must not move it.
    return Rate(
        share,
        0.0 if successes == 0 else max(0.0, low),
        1.0 if successes == trials else min(1.0, high),
    )


def labels_recovered(truth: NDArray[np.integer], guess: NDArray[np.integer]) -> float:
    """Returns the share of a batch's labels (as a multiset) that were recovered."""
    size = int(max(truth.max(initial=0), guess.max(initial=0))) + 1
    counts = [np.bincount(np.maximum(x, 0), minlength=size) for x in (truth, guess)]
    return float(np.minimum(*counts).sum() / len(truth))


def guessing_rmse(
    truth: Floats,
    labels: NDArray[np.integer],
    public: Floats,
    public_labels: NDArray[np.integer],
) -> dict[str, list[float]]:
    """Returns each victim's RMSE under guesses that never saw a gradient.

    `truth` is (victims, batch, ...). The guesses are mid-grey, the mean of the public
    examples, and the mean of the public examples of the true class.
    """
    overall = public.mean(axis=0) if len(public) else np.full(truth.shape[2:], 0.5)
    by_class = {
        int(c): public[public_labels == c].mean(axis=0)
        for c in np.unique(public_labels)
    }
    guesses: dict[str, list[float]] = {"grey": [], "mean": [], "class mean": []}
    for inputs, classes in zip(truth, labels, strict=True):
        means = np.stack([by_class.get(int(c), overall) for c in classes])
        guesses["grey"].append(rmse(inputs, np.full_like(inputs, 0.5)))
        guesses["mean"].append(rmse(inputs, np.stack([overall] * len(inputs))))
        guesses["class mean"].append(rmse(inputs, means))
    return guesses
