"""Renyi divergences of the Poisson-subsampled Gaussian, for many noise scales.

Ours is what dp-accounting's RdpAccountant lacks: whole orders vectorised over scales
and chords between nodes (10,000 scales in a second instead of minutes); fractional
orders are its own, bounded by the divergence without sampling, which it can exceed.
"""

import contextlib
import functools
import logging
import math
from collections.abc import Iterator

import numpy as np
from scipy import special

from gradaudit.privacy.events import Events, FloatArray

# The orders of the moments accountant's reference implementation.
CLASSIC_ORDERS = (
    *(1.25, 1.5, 1.75, 2.0, 2.25, 2.5, 3.0, 3.5, 4.0, 4.5),
    *map(float, range(5, 64)),
    *(128.0, 256.0, 512.0),
)
DENSE_ORDERS = tuple(
    sorted(
        {
            *CLASSIC_ORDERS,
            *(1.05, 1.1, 1.15, 1.2, 1.3, 1.4, 1.6, 1.9, 2.75, 3.25, 3.75, 4.25, 4.75),
            *(5.5, 6.5, 7.5, 8.5),
            *map(float, range(64, 128, 4)),
            *(144.0, 160.0, 192.0, 224.0, 320.0, 384.0, 768.0, 1024.0),
        }
    )
)
_CLASSIC_INDEX = tuple(DENSE_ORDERS.index(order) for order in CLASSIC_ORDERS)
_NODES = 48  # of each of the two grids over 1 / sigma^2


def dense_curves(events: Events) -> FloatArray:
    """Returns the Renyi divergence of each run's step at DENSE_ORDERS, (runs, orders).

    With more different noise scales than nodes, the values between nodes are chords
    in 1 / sigma^2. The log-moment of the subsampled Gaussian is a log-sum-exp of
    functions that are linear in 1 / sigma^2, so convex: a chord is an upper bound.
    """
    curves = np.empty((len(events.noise), len(DENSE_ORDERS)))
    for rate in np.unique(events.rate):
        here = (events.rate == rate) & ~events.pure
        if here.any():
            curves[here] = _gaussian_curves(events.noise[here], float(rate))
    if events.pure.any():
        epsilon = amplified(events.noise[events.pure], events.rate[events.pure])
        curves[events.pure] = _pure_curves(epsilon)
    return curves


def classic_curves(events: Events) -> FloatArray:
    """Returns the same at CLASSIC_ORDERS."""
    return dense_curves(events)[:, _CLASSIC_INDEX]


def amplified(epsilon: FloatArray, rate: FloatArray) -> FloatArray:
    """Returns log(1 + q (exp(epsilon) - 1)), without overflow."""
    with np.errstate(divide="ignore"):
        large = np.logaddexp(np.log1p(-rate), np.log(rate) + epsilon)
    small = np.log1p(rate * np.expm1(np.minimum(epsilon, 1.0)))
    return np.where(epsilon < 1.0, small, large)


def _gaussian_curves(sigmas: FloatArray, rate: float) -> FloatArray:
    with np.errstate(over="ignore", divide="ignore"):
        precision = 1 / np.square(sigmas)
    distinct = np.unique(precision)
    nodes = distinct
    if len(distinct) > 2 * _NODES:
        low, high = distinct[0], distinct[-1]
        grids = (np.geomspace(low, high, _NODES), np.linspace(low, high, _NODES))
        nodes = np.unique(np.clip(np.concatenate(grids), low, high))
    values = _divergences(nodes, rate)
    # Which node lies below, and how far the value is on the way to the next one.
    left = np.clip(np.searchsorted(nodes, precision, "right") - 1, 0, len(nodes) - 1)
    right = np.minimum(left + 1, len(nodes) - 1)
    with np.errstate(invalid="ignore"):
        gap = np.where(right > left, nodes[right] - nodes[left], 1.0)
        weight = np.nan_to_num((precision - nodes[left]) / gap)[:, None]
    with np.errstate(invalid="ignore"):
        chords = (1 - weight) * values[left] + weight * values[right]
    return np.where(weight > 0, np.nan_to_num(chords, nan=np.inf), values[left])


def _divergences(precision: FloatArray, rate: float) -> FloatArray:
    """Returns the divergences for each 1 / sigma^2, (precisions, orders)."""
    orders = np.asarray(DENSE_ORDERS)
    unsampled = np.outer(precision, orders) / 2
    if rate == 1:
        return unsampled
    values = np.empty((len(precision), len(orders)))
    with np.errstate(all="ignore"):
        for index in np.flatnonzero(orders % 1 == 0):
            moment = _whole_log_moment(precision, rate, int(orders[index]))
            values[:, index] = moment / (orders[index] - 1)
        values[:, orders % 1 != 0] = [
            _fractional(float(each), rate) for each in precision
        ]
    # Sampling never adds to a divergence; the fractional series may end above it.
    return np.fmin(np.nan_to_num(values, nan=np.inf, posinf=np.inf), unsampled)


def _whole_log_moment(precision: FloatArray, rate: float, order: int) -> FloatArray:
    """Returns log E[(P / Q)^order] under Q (Mironov, Talwar & Zhang 2019, section 3.3).

    The library computes the same with a Python loop over k.
    """
    k = np.arange(order + 1.0)
    choose = special.gammaln(order + 1) - special.gammaln(k + 1)
    choose -= special.gammaln(order - k + 1)
    weight = choose + k * math.log(rate) + (order - k) * math.log1p(-rate)
    exponent = weight + np.outer(precision, (k * k - k) / 2)
    moment: FloatArray = special.logsumexp(exponent, axis=1)
    return moment


@functools.lru_cache(maxsize=8192)
def _fractional(precision: float, rate: float) -> FloatArray:
    """Returns the divergences at the orders between whole numbers.

    An order whose series does not converge is infinite, so it is never chosen.
    """
    orders = [order for order in DENSE_ORDERS if order % 1 != 0]
    if not math.isfinite(precision):
        return np.full(len(orders), np.inf)
    from dp_accounting import dp_event, rdp

    accountant = rdp.RdpAccountant(orders)
    gaussian = dp_event.GaussianDpEvent(precision**-0.5)
    with _without_warnings():
        accountant.compose(dp_event.PoissonSampledDpEvent(rate, gaussian))
    divergences: FloatArray = accountant.rdp
    return divergences


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
    """Silences the library's log line for each order that does not converge."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _pure_curves(epsilon: FloatArray) -> FloatArray:
    """Returns min(epsilon, order * epsilon^2 / 2) (Bun & Steinke 2016, Prop. 3.3)."""
    with np.errstate(over="ignore"):
        quadratic = np.outer(np.square(epsilon), np.asarray(DENSE_ORDERS)) / 2
    return np.minimum(epsilon[:, None], quadratic)
