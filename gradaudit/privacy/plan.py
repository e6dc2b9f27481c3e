"""From a defense's mechanisms to events: what is claimed, and what is released.

Per example, a setting of N clients with K per round, L local steps and batches of
B out of the n examples of a client releases rounds * L times; per client it releases
once per round, with K / N of the clients.
"""

import enum
import math

import numpy as np

from gradaudit.errors import InputError
from gradaudit.federation.setting import Setting
from gradaudit.mechanism import Mechanism, NoiseKind, Point
from gradaudit.privacy.events import Events, FloatArray, Unit, gaussian, pure


class Sampling(enum.Enum):
    """How the sampling rate of an example is counted.

    LOCAL: B / n, the papers' 0.01: the client's own draw, whoever knows that the
    client takes part. GLOBAL: B * K / (N * n), which also counts the draw of clients
    as if it were made anew, and in secret, for every local step (Wei et al. 2021,
    section V).
    """

    LOCAL = "local"
    GLOBAL = "global"


def unit_of(mechanism: Mechanism) -> Unit:
    """Returns whose contribution the mechanism's noise hides."""
    per_example = mechanism.point is Point.PER_EXAMPLE
    return Unit.EXAMPLE if per_example else Unit.CLIENT


def rate_of(unit: Unit, setting: Setting, sampling: Sampling) -> float:
    """Returns the probability that a unit takes part in a step."""
    clients = setting.clients_per_round / setting.clients
    if unit is Unit.CLIENT:
        return clients
    local = setting.batch_size / setting.examples
    return local if sampling is Sampling.LOCAL else local * clients


def claimed_noise(mechanism: Mechanism, rounds: int) -> FloatArray:
    """Returns sigma_t (or epsilon_t) as the mechanism states it, (rounds,)."""
    return np.asarray([mechanism.multiplier(t) for t in range(rounds)], float)


def effective_noise(mechanism: Mechanism, rounds: int, tensors: int) -> FloatArray:
    """Returns the noise relative to what one unit can really change, (rounds,).

    That is C jointly, or C for each of the M tensors, so C * sqrt(M) in the 2-norm
    and C * M in the 1-norm. The answer for no bound at all is no noise at all.
    """
    share = 1 / mechanism.norm if mechanism.per_tensor else 0.0
    spread = tensors**share
    ratios = []
    for t in range(rounds):
        clip = mechanism.clip(t)
        bound = math.inf if clip is None else clip * spread
        ratios.append(mechanism.sensitivity(t) / bound)
    with np.errstate(divide="ignore"):
        scale = np.asarray(ratios) ** (-1 if is_pure(mechanism) else 1)
    effective: FloatArray = claimed_noise(mechanism, rounds) * scale
    return effective


def is_pure(mechanism: Mechanism) -> bool:
    """Returns whether the mechanism is epsilon-DP on its own."""
    return mechanism.kind is not NoiseKind.GAUSSIAN


def is_noise(noise: FloatArray) -> bool:
    """Returns whether there is noise in every round."""
    return bool(np.all(np.isfinite(noise) & (noise > 0)))


def events_of(mechanism: Mechanism, noise: FloatArray, rate: float) -> Events:
    """Returns one event per entry of `noise`."""
    return pure(noise, rate) if is_pure(mechanism) else gaussian(noise, rate)


def in_training(
    mechanism: Mechanism, noise: FloatArray, setting: Setting, rate: float
) -> Events:
    """Returns the events of the whole training, as the papers count them."""
    steps = setting.local_steps if unit_of(mechanism) is Unit.EXAMPLE else 1
    return events_of(mechanism, noise, rate).repeated(steps)


def in_view(
    mechanism: Mechanism, noise: FloatArray, setting: Setting, leakage: int
) -> Events:
    """Returns the events that a reader of one client sees of one unit.

    The reader knows in which rounds the client takes part: as many as expected, and
    those with the least noise. A reader of updates (types 0 and 1) does not know which
    examples were drawn; a reader of examples (type 2) sees each of them.
    """
    share = setting.clients_per_round / setting.clients
    rounds = math.ceil(setting.rounds * share - 1e-9)
    least = np.argsort(-noise if is_pure(mechanism) else noise)[:rounds]
    if unit_of(mechanism) is Unit.CLIENT:
        return events_of(mechanism, noise[least], 1.0)
    drawn = setting.batch_size / setting.examples
    if leakage == 2:
        uses = math.ceil(setting.local_steps * drawn - 1e-9)
        return events_of(mechanism, noise[least], 1.0).repeated(uses)
    return events_of(mechanism, noise[least], drawn).repeated(setting.local_steps)


def combined(
    mechanisms: tuple[Mechanism, ...], noises: list[FloatArray]
) -> list[tuple[Mechanism, FloatArray]]:
    """Returns releases on the same draw of units as one, of the same kind each.

    Gaussian multipliers add as 1 / sigma^2 and pure epsilons add. (Counting them as
    separately sampled would be too optimistic: the draw is shared.)
    """
    together: dict[tuple[Point, bool], tuple[Mechanism, FloatArray]] = {}
    for mechanism, noise in zip(mechanisms, noises, strict=True):
        key = mechanism.point, is_pure(mechanism)
        if key not in together:
            together[key] = mechanism, noise
        elif is_pure(mechanism):
            together[key] = mechanism, together[key][1] + noise
        else:
            joint = np.square(1 / together[key][1]) + np.square(1 / noise)
            together[key] = mechanism, 1 / np.sqrt(joint)
    return list(together.values())


def joined(parts: list[Events]) -> Events:
    """Returns all events, one mechanism after the other."""
    if not parts:
        raise InputError("there is nothing to account: no mechanism adds noise")
    return sum(parts[1:], parts[0])
