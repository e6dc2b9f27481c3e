"""Renyi divergences of the Poisson-subsampled Gaussian, for many noise scales."""

import functools

import numpy as np

from gradaudit.accounting.events import Events, FloatArray

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
    values = np.stack([_curve(float(node), rate) for node in nodes])
    # Which node lies below, and how far the value is on the way to the next one.
    left = np.clip(np.searchsorted(nodes, precision, "right") - 1, 0, len(nodes) - 1)
    right = np.minimum(left + 1, len(nodes) - 1)
    gap = np.where(right > left, nodes[right] - nodes[left], 1.0)
    weight = np.where(right > left, (precision - nodes[left]) / gap, 0.0)[:, None]
    weight = np.nan_to_num(weight)
    return np.where(
        weight > 0,
        (1 - weight) * values[left] + weight * values[right],
        values[left],
    )


@functools.lru_cache(maxsize=8192)
def _curve(precision: float, rate: float) -> FloatArray:
    """Returns the divergences at all orders for 1 / sigma^2 = precision."""
    if not np.isfinite(precision):
        return np.full(len(DENSE_ORDERS), np.inf)
    from dp_accounting import dp_event, rdp

    with np.errstate(all="ignore"):
        accountant = rdp.RdpAccountant(list(DENSE_ORDERS))
        gaussian = dp_event.GaussianDpEvent(precision**-0.5)
        accountant.compose(dp_event.PoissonSampledDpEvent(rate, gaussian))
        curve: FloatArray = accountant.rdp
    return np.nan_to_num(curve, nan=np.inf, posinf=np.inf)


def _pure_curves(epsilon: FloatArray) -> FloatArray:
    """Returns min(epsilon, order * epsilon^2 / 2) (Bun & Steinke 2016, Prop. 3.3)."""
    with np.errstate(over="ignore"):
        quadratic = np.outer(np.square(epsilon), np.asarray(DENSE_ORDERS)) / 2
    return np.minimum(epsilon[:, None], quadratic)
