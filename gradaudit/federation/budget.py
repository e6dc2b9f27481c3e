"""What a defense spends in a federated training, as its parts claim it."""

import functools
import math
import operator

from gradaudit.accounting import Events, gaussian, pure, spend
from gradaudit.config import Federation
from gradaudit.defenses.base import Defense
from gradaudit.errors import require
from gradaudit.mechanism import Mechanism, NoiseKind, Point


def claimed_events(
    defense: Defense, federation: Federation, rounds: int
) -> Events | None:
    """Returns the releases of the first rounds; None if nothing is bounded by noise.

    At the examples a release per local iteration, each example with probability
    B / (examples held); at the client or the server one per round, each client with
    probability K / N (Wei et al. 2021, section VI).
    """
    released = [
        _released(mechanism, federation, rounds)
        for mechanism in defense.mechanisms
        if mechanism.clip(0) is not None
    ]
    if not released:
        return None
    return functools.reduce(operator.add, released).merged()


def _released(mechanism: Mechanism, federation: Federation, rounds: int) -> Events:
    release = gaussian if mechanism.kind is NoiseKind.GAUSSIAN else pure
    noise = [mechanism.multiplier(t) for t in range(rounds)]
    if mechanism.point is Point.PER_EXAMPLE:
        rate = federation.batch_size / federation.examples
        return release(noise, rate).repeated(federation.local_steps)
    return release(noise, federation.clients_per_round / federation.clients)


def claimed_epsilon(
    defense: Defense, federation: Federation, rounds: int, delta: float = 1e-5
) -> float | None:
    """Returns the tight epsilon of what the defense claims; None without DP."""
    if rounds == 0:
        return 0.0
    events = claimed_events(defense, federation, rounds)
    return None if events is None else spend("pld", events, delta).epsilon


def affordable_rounds(
    target: float, defense: Defense, federation: Federation, delta: float = 1e-5
) -> int:
    """Returns how many of the federation's rounds stay within epsilon = target."""
    require(
        math.isfinite(target) and target > 0,
        f"the target epsilon must be positive, got {target}",
    )
    low, high = 0, federation.rounds
    require(
        claimed_events(defense, federation, 1) is not None,
        f"defense {defense.name!r} claims no epsilon, so it has no target epsilon; "
        "choose a defense that clips and adds noise",
    )
    while low < high:
        middle = (low + high + 1) // 2
        epsilon = claimed_epsilon(defense, federation, middle, delta)
        if epsilon is not None and epsilon <= target:
            low = middle
        else:
            high = middle - 1
    require(low > 0, f"not even one round of {defense.name!r} stays within {target:g}")
    return low
