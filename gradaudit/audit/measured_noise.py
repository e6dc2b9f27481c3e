"""What a defense did to one update, measured: how far it shrank it, what it added.

From a pair (before, after): after = factor * before + noise, tensor by tensor. The part
of `after` along `before` gives the factor, and all the rest is noise: thousands of
coordinates make its standard deviation exact to a percent. From `after` alone an upper
bound of the noise is left: nothing that was added can be larger than what arrived.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Arrays = Mapping[str, NDArray[Any]]

CONFIDENCE = 0.95
_SURE = 1e-4  # of a wrong word about one of many tensors or pairs
_HALF = 0.5  # of the common noise: a tensor with less than this got another noise
_ROUNDING = 4.0  # times the rounding of float32 counts as no noise at all
_EPSILON = float(np.finfo(np.float32).eps)


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A value with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclasses.dataclass(frozen=True)
class Tensor:
    """One tensor of a pair."""

    name: str
    before: float  # its norm
    factor: float  # what is left of it; 0 where nothing was there
    squares: float  # of what was added
    freedom: int  # coordinates that say something about the noise


@dataclasses.dataclass(frozen=True)
class Pair:
    """One update before and after a defense."""

    label: str  # round and client, in words
    tensors: tuple[Tensor, ...]
    before: float  # norm of the whole
    along: float  # of what came after, the part along what was before
    noise: Estimate
    resolution: float  # the rounding of the numbers themselves
    tails: float  # excess kurtosis of what was added: 0 Gaussian, 3 Laplace
    added: NDArray[np.float32]  # (coordinates,)

    @property
    def has_noise(self) -> bool:
        """Whether anything was added beyond rounding."""
        return self.noise.value > _ROUNDING * self.resolution

    @property
    def kept(self) -> float:
        """The norm of what is left of it; noise blurs it by one deviation."""
        if not self.by_tensor:
            return abs(self.along)
        known = [t for t in self.tensors if t.before > 0]
        whole = sum((t.factor * t.before) ** 2 for t in known)
        return math.sqrt(max(whole - len(known) * self.noise.value**2, 0.0))

    def bound(self, doubt: float = 1 - CONFIDENCE) -> Estimate:
        """Returns the norm of what is left, but for this doubt."""
        blur = float(stats.norm.isf(doubt / 2)) * self.noise.value
        return Estimate(self.kept, max(self.kept - blur, 0.0), self.kept + blur)

    @property
    def shrunk(self) -> bool:
        """Whether it is surely smaller than it was."""
        return self.bound(_SURE).high < self.before * (1 - 1e-4)

    @property
    def by_tensor(self) -> bool:
        """Whether tensors were shrunk by different factors, beyond what noise does."""
        known = [t for t in self.tensors if t.before > 0]
        whole = self.along / self.before if self.before else 1.0
        sure = float(stats.norm.isf(_SURE / max(len(known), 1)))
        return any(
            abs(t.factor - whole) * t.before > sure * self.noise.value + 1e-3 * t.before
            for t in known
        )

    def without_noise(self) -> list[str]:
        """Returns the tensors that surely got less noise than the others."""
        if not self.has_noise:
            return []
        limit = (_HALF * self.noise.value) ** 2
        return [
            t.name
            for t in self.tensors
            if t.freedom
            and stats.chi2.cdf(t.squares / limit, t.freedom) < _SURE / len(self.tensors)
        ]


def measure(label: str, before: Arrays, after: Arrays, received: Arrays) -> Pair:
    """Measures one pair of updates; `received` are the parameters both started from."""
    tensors, added = [], []
    for name, array in before.items():
        one, noise = _tensor(name, array, after[name])
        tensors.append(one)
        added.append(noise)
    rest = np.concatenate(added)
    norm = math.sqrt(sum(t.before**2 for t in tensors))
    product = sum(t.factor * t.before**2 for t in tensors)
    return Pair(
        label=label,
        tensors=tuple(tensors),
        before=norm,
        along=product / norm if norm else 0.0,
        noise=_deviation(tensors),
        resolution=_resolution(received, after),
        tails=_tails(rest),
        added=rest.astype(np.float32),
    )


def _tensor(
    name: str, before: NDArray[Any], after: NDArray[Any]
) -> tuple[Tensor, NDArray[np.float64]]:
    x, y = before.astype(np.float64).ravel(), after.astype(np.float64).ravel()
    norm = float(np.linalg.norm(x))
    factor = float(x @ y / norm**2) if norm > 0 else 0.0
    rest = y - factor * x if norm > 0 else y
    freedom = x.size - (norm > 0)
    return Tensor(name, norm, factor, float(rest @ rest), freedom), rest


def _deviation(tensors: Sequence[Tensor]) -> Estimate:
    """Returns the standard deviation of noise that these share (chi-square)."""
    squares, freedom = sum(t.squares for t in tensors), sum(t.freedom for t in tensors)
    if freedom < 1:
        return Estimate(0.0, 0.0, math.inf)
    tail = (1 - CONFIDENCE) / 2
    low, high = stats.chi2.ppf([tail, 1 - tail], freedom)
    lower, upper = squares / high, squares / low if low > 0 else math.inf
    return Estimate(math.sqrt(squares / freedom), math.sqrt(lower), math.sqrt(upper))


def pooled(pairs: Sequence[Pair]) -> Estimate:
    """Returns one standard deviation for pairs that share it."""
    return _deviation([tensor for pair in pairs for tensor in pair.tensors])


def usual(pairs: Sequence[Pair], doubt: float = 1 - CONFIDENCE) -> Estimate:
    """Returns the mean norm of what is left: no bound of all of them is below it."""
    mean = float(np.mean([pair.kept for pair in pairs]))
    blur = math.sqrt(sum(pair.noise.value**2 for pair in pairs)) / len(pairs)
    width = float(stats.norm.isf(doubt / 2)) * blur
    return Estimate(mean, mean - width, mean + width)


def shrunk_to(pairs: Sequence[Pair]) -> Estimate | None:
    """Returns the norm that updates were shrunk to; None if none surely was.

    One that moves (adaptive clipping) is given by its largest: that gets through.
    """
    shrunk = [pair for pair in pairs if pair.shrunk and not pair.by_tensor]
    if not shrunk:
        return None
    norms = np.asarray([pair.kept for pair in shrunk])
    blur = np.asarray([pair.noise.value for pair in shrunk]) + 1e-6 * norms
    mean = float(np.average(norms, weights=blur**-2))
    unlike = float(np.square((norms - mean) / blur).sum())
    if stats.chi2.sf(unlike, max(len(norms) - 1, 1)) < _SURE:
        return max((p.bound(_SURE) for p in shrunk), key=lambda bound: bound.value)
    width = float(stats.norm.isf((1 - CONFIDENCE) / 2)) * (blur**-2).sum() ** -0.5
    return Estimate(mean, mean - width, mean + width)


def repeated(pairs: Sequence[Pair], most: int = 32) -> list[tuple[str, str, float]]:
    """Returns pairs that got the same noise: independent noises are uncorrelated."""
    noisy = [pair for pair in pairs if pair.has_noise][:most]
    units = [pair.added / np.linalg.norm(pair.added) for pair in noisy]
    found = []
    for i, first in enumerate(units):
        for j in range(i + 1, len(units)):
            if units[j].shape != first.shape:
                continue
            same = float(first @ units[j])
            if abs(same) > max(8 / math.sqrt(first.size), 0.1):
                found.append((noisy[i].label, noisy[j].label, same))
    return found


def most_noise(updates: Sequence[Arrays]) -> float:
    """Returns what the noise's deviation is surely below, from what arrived alone.

    Whatever the update was, the squares of what arrived are no smaller than those of
    the noise alone are likely to be (a noncentral chi-square against a central one).
    """
    arrays = [array for update in updates for array in update.values() if array.size]
    doubt = (1 - CONFIDENCE) / max(len(arrays), 1)
    bounds = [
        float(np.square(array.astype(np.float64)).sum())
        / float(stats.chi2.ppf(doubt, array.size))
        for array in arrays
    ]
    return math.sqrt(min(bounds, default=math.inf))


def _resolution(received: Arrays, after: Arrays) -> float:
    """Returns how exactly float32 holds the numbers, one deviation."""
    sizes = [np.square(received[name], dtype=np.float64).sum() for name in after]
    count = sum(array.size for array in after.values())
    return _EPSILON * math.sqrt(sum(sizes) / count / 12) if count else 0.0


def _tails(values: NDArray[np.float64]) -> float:
    """Returns the excess kurtosis about zero."""
    second = float(np.mean(np.square(values)))
    return float(np.mean(values**4)) / second**2 - 3 if second > 0 else 0.0
