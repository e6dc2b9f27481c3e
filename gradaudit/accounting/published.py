"""The conventions behind the printed numbers of Wei & Liu 2022 and Wei et al. 2021.

Digit-level agreement needs three habits of those papers. Each is a translation of
the question, so that the methods themselves stay as they are.
"""

import dataclasses

import numpy as np

from gradaudit.accounting.events import Events
from gradaudit.accounting.loss import LossDistribution
from gradaudit.accounting.methods import (
    ADVANCED,
    ADVANCED_AS_PRINTED,
    BASE,
    MOMENTS,
    OPTIMAL,
    ZCDP,
    Additive,
    gaussian_epsilon_scale,
)

Method = Additive | LossDistribution
Question = tuple[Method, Events]

_PUBLISHED = (BASE, ADVANCED, OPTIMAL, ZCDP, MOMENTS)
_EXACT_STEPS = 10_000  # the one horizon that is counted as it is


def clean(method: Method, events: Events, delta: float) -> Question:
    """Returns the question unchanged."""
    return method, events


def as_published(method: Method, events: Events, delta: float) -> Question:
    """Returns the question that the papers' printed number answers.

    One noise scale for all steps: T steps are counted as T + 1 (10,000 as 10,000),
    and base and advanced composition round the Gaussian mechanism's epsilon to three
    digits (0.807 for sigma = 6). A schedule of noise scales: advanced composition is
    equation 3 as printed, and the moments accountant counts one step more.
    """
    if method not in _PUBLISHED:
        return method, events
    if events.is_constant:
        if method in (BASE, ADVANCED) and not events.pure.any():
            events = _rounded(events, delta)
        return method, events.extended(int(events.steps != _EXACT_STEPS))
    if method == ADVANCED:
        return ADVANCED_AS_PRINTED, events
    return method, events.extended(int(method == MOMENTS))


def _rounded(events: Events, delta: float) -> Events:
    scale = gaussian_epsilon_scale(delta)
    epsilon = round(scale / float(events.noise[0]), 3)
    if epsilon == 0:
        return events
    return dataclasses.replace(
        events, noise=np.full_like(events.noise, scale / epsilon)
    )
