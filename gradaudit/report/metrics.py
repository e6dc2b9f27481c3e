"""How good a reconstruction is. Only evaluators call this: it sees the truth."""

import dataclasses
import functools
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import special
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist

Floats = NDArray[np.floating]

_CONFIDENCE = 0.95
_TOGETHER = 256  # victims whose guesses are made at a time: memory stays flat
_MEANS = 400  # cells of the grid over the mean rate
_CORRELATIONS = 25  # points of the grid over how much a draw decides
_PLAUSIBLE = 0.5  # of the likeliest correlation's evidence


def match(truth: Floats, guess: Floats) -> NDArray[np.intp]:
    """Returns the order of `guess` (batch, ...) that fits `truth` best (Hungarian)."""
    if len(truth) == 1:
        return np.zeros(1, np.intp)
    flat_truth, flat_guess = (x.reshape(len(x), -1) for x in (truth, guess))
    return assign(cdist(flat_truth, flat_guess, "sqeuclidean"))


def assign(cost: Floats) -> NDArray[np.intp]:
    """Returns for each row of a cost matrix its column in the cheapest assignment."""
    if not np.isfinite(cost).all():
        return np.arange(len(cost), dtype=np.intp)
    return np.asarray(linear_sum_assignment(cost)[1])


def assigned_rmse(squares: NDArray[np.float32]) -> NDArray[np.float64]:
    """Returns the RMSE under the best assignment, (iterations, slots).

    `squares` are mean squared distances, (iterations, slots, true, guessed).
    """
    if squares.shape[-1] == 1:
        errors = np.sqrt(squares[..., 0, 0].astype(np.float64))
    else:
        cost = squares.reshape(-1, *squares.shape[-2:])
        rows = np.arange(cost.shape[-1])
        best = [matrix[rows, assign(matrix)].mean() for matrix in cost]
        errors = np.sqrt(np.asarray(best)).reshape(squares.shape[:2])
    return np.where(np.isfinite(errors), errors, np.inf)


def matched(truth: Floats, guess: Floats) -> Floats:
    """Returns the guesses (victims, batch, ...) in the order of their truths."""
    if truth.shape[1] == 1:
        return guess
    return np.stack([g[match(t, g)] for t, g in zip(truth, guess, strict=True)])


def rmse(truth: Floats, guess: Floats) -> Floats:
    """Returns sqrt(mean((x - x^)^2)) over the last `features` of matched guesses.

    Both are (..., features); infinite where the guess is not finite.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        errors = np.sqrt(np.mean(np.square(truth - guess), axis=-1))
    return np.where(np.isfinite(errors), errors, np.inf)


def psnr(errors: Floats) -> Floats:
    """Returns the peak signal-to-noise ratios in dB of RMSEs, for a peak of 1."""
    with np.errstate(divide="ignore"):
        return -20.0 * np.log10(errors.astype(np.float64))


def ssim(truth: Floats, guess: Floats) -> list[float | None]:
    """Returns each victim's mean structural similarity; None for what is no image.

    Both are (victims, batch, height, width, channels), matched.
    """
    from skimage.metrics import structural_similarity

    side = min(7, *truth.shape[2:4]) if truth.ndim == 5 else 0
    window = side if side % 2 else side - 1
    if window < 3:
        return [None] * len(truth)

    def one(images: Floats, others: Floats) -> float | None:
        if not np.isfinite(others).all():
            return None
        pairs = zip(images, others.astype(images.dtype), strict=True)
        options = {"data_range": 1.0, "channel_axis": -1, "win_size": window}
        return float(np.mean([structural_similarity(*p, **options) for p in pairs]))

    return [one(a, b) for a, b in zip(truth, guess, strict=True)]


@dataclasses.dataclass(frozen=True)
class Rate:
    """A share of successes with its 95 % interval, and which interval it is."""

    value: float
    low: float
    high: float
    interval: str = "wilson"


def rate(successes: int, trials: int) -> Rate:
    """Returns successes / trials of independent trials with the Wilson interval."""
    if trials == 0:
        return Rate(math.nan, 0.0, 1.0)
    # scipy.stats has it too, and takes half a second to be imported.
    z = float(special.ndtri(0.5 + 0.5 * _CONFIDENCE))
    middle = (successes + z * z / 2) / (trials + z * z)
    spread = math.sqrt(successes * (trials - successes) / trials + z * z / 4)
    half = z * spread / (trials + z * z)
    # At 0 and at all the interval's end is exact; rounding must not move it.
    low = 0.0 if successes == 0 else middle - half
    high = 1.0 if successes == trials else middle + half
    return Rate(successes / trials, low, high)


def rate_over_draws(successes: Sequence[int], trials: Sequence[int]) -> Rate:
    """Returns the rate over several draws of the network, with an interval for it.

    Victims of one draw share its fate, so that they are not independent. Each draw's
    rate is taken from a beta distribution whose mean and correlation are unknown; the
    interval is the widest that holds 95 % of what is likely for the mean, under
    Jeffreys' prior or a flat one, at any correlation that is at least half as likely as
    the likeliest. A test checks how often it covers: where draws are all or nothing it
    must not be narrower than so few coins allow.
    """
    if len(trials) == 1:
        return rate(successes[0], trials[0])
    total, asked = sum(successes), sum(trials)
    # Equal draws give equal terms: count them instead of computing them again.
    draws, repeats = np.unique(
        np.stack([successes, trials], axis=1), axis=0, return_counts=True
    )
    each = np.stack([_log_likelihood(*map(int, draw)) for draw in draws], axis=-1)
    logs = (each * repeats).sum(axis=-1)
    means = (np.arange(_MEANS) + 0.5) / _MEANS
    priors = np.stack([np.zeros(_MEANS), -0.5 * np.log(means * (1 - means))], axis=-1)
    logs = logs[:, :, None] + priors[:, None, :]  # (means, correlations, priors)
    likely = np.exp(logs - logs.max(axis=(0, 1)))
    evidence = likely.sum(axis=0)
    plausible = evidence >= _PLAUSIBLE * evidence.max(axis=0)
    cumulative = np.cumsum(likely, axis=0) / evidence
    tail = (1 - _CONFIDENCE) / 2
    low = (cumulative < tail).sum(axis=0)[plausible].min() / _MEANS
    high = ((cumulative < 1 - tail).sum(axis=0)[plausible].max() + 1) / _MEANS
    return Rate(
        total / asked,
        0.0 if total == 0 else float(min(low, total / asked)),
        1.0 if total == asked else float(max(high, total / asked)),
        "over draws",
    )


@functools.lru_cache(maxsize=128)  # 80 kB each; an audit asks for the same again
def _log_likelihood(hits: int, trials: int) -> Floats:
    """Returns how likely a draw's hits are, over (means, correlations), in nats."""
    means = (np.arange(_MEANS) + 0.5) / _MEANS
    correlations = np.linspace(0.001, 0.999, _CORRELATIONS)
    strength = (1 - correlations) / correlations
    yes, no = (share[:, None] * strength for share in (means, 1 - means))
    return np.asarray(
        special.betaln(hits + yes, trials - hits + no) - special.betaln(yes, no)
    )


def labels_recovered(
    truth: NDArray[np.integer], guess: NDArray[np.integer]
) -> NDArray[np.float64]:
    """Returns the share of each batch's labels (as a multiset) that were recovered.

    Both are (victims, batch); a guess of -1 says nothing.
    """
    classes = np.arange(int(max(truth.max(initial=0), guess.max(initial=0))) + 1)
    counts = [np.sum(x[:, :, None] == classes, axis=1) for x in (truth, guess)]
    return np.asarray(np.minimum(*counts).sum(axis=1) / truth.shape[1])


def guessing_rmse(
    truth: Floats,
    labels: NDArray[np.integer],
    inputs: Floats,
    classes: NDArray[np.integer],
) -> dict[str, Floats]:
    """Returns each victim's RMSE under guesses that never saw a gradient.

    `truth` is (victims, batch, ...), examples of the set `inputs` with `classes`. The
    guesses are mid-grey, the mean of the set, and the mean of the victim's true class,
    each without the victim itself.
    """
    total = _Totals.of(inputs, classes, 1 + int(labels.max(initial=0)))
    parts = [
        _guessed(
            truth[start : start + _TOGETHER], labels[start : start + _TOGETHER], total
        )
        for start in range(0, max(len(truth), 1), _TOGETHER)
    ]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


@dataclasses.dataclass(frozen=True)
class _Totals:
    """What guesses are made of: the sum of a set's examples, and of each class."""

    count: int
    whole: Floats  # (d,)
    counts: NDArray[np.integer]  # (classes,)
    sums: Floats  # (classes, d)

    @classmethod
    def of(cls, inputs: Floats, classes: NDArray[np.integer], least: int) -> "_Totals":
        """Returns those of a set, of so many classes at least."""
        flat = inputs.reshape(len(inputs), -1)
        counts = np.bincount(classes, minlength=least)
        sums = [
            flat[classes == index].sum(axis=0, dtype=np.float64)
            for index in range(len(counts))
        ]
        whole = flat.sum(axis=0, dtype=np.float64)
        return cls(len(flat), whole, counts, np.stack(sums))


def _guessed(
    truth: Floats, labels: NDArray[np.integer], total: _Totals
) -> dict[str, Floats]:
    """Returns the RMSE of each guess about some victims."""
    count, batch = truth.shape[:2]
    flat = truth.reshape(count, batch, -1).astype(np.float64)
    mean = (total.whole - flat.sum(axis=1)) / max(total.count - batch, 1)
    if total.count == batch:
        mean = np.full_like(mean, 0.5)
    guesses = {
        "grey": np.full_like(flat, 0.5),
        "mean": np.broadcast_to(mean[:, None], flat.shape),
        "class mean": _class_means(flat, labels, total, mean),
    }
    return {
        name: rmse(flat.reshape(count, -1), matched(flat, guess).reshape(count, -1))
        for name, guess in guesses.items()
    }


def _class_means(
    truth: Floats, labels: NDArray[np.integer], total: _Totals, fallback: Floats
) -> Floats:
    """Returns the class means without a victim's own examples, (victims, batch, d)."""
    same = labels[:, :, None] == labels[:, None, :]  # (victims, batch, batch)
    own_sums = np.einsum("vij,vjd->vid", same.astype(float), truth)
    left = total.counts[labels] - same.sum(axis=2)
    means = (total.sums[labels] - own_sums) / np.maximum(left, 1)[:, :, None]
    return np.where(left[:, :, None] > 0, means, fallback[:, None])
