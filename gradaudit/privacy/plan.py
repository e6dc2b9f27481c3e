"""The plan: a defense in a setting. What is sampled is what is accounted.

Per example, a client releases L times in a round, from batches of B out of its n
examples; every client that holds the example and takes part releases it as well. Per
client there is one release per round, from the K clients out of N.
"""

import dataclasses
import enum
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from gradaudit.data.partition import Indices, shared_copies
from gradaudit.errors import InputError, at_least
from gradaudit.federation.setting import Batches, Selection, Setting
from gradaudit.mechanism import Mechanism, NoiseKind, Point
from gradaudit.privacy.events import (
    Events,
    FloatArray,
    IntArray,
    Unit,
    gaussian,
    in_turn,
    pure,
)

if TYPE_CHECKING:  # defenses import jax
    from gradaudit.defenses.transforms import Defense

TENSORS = 6  # two convolutions and a dense layer, weights and biases
_NEGLIGIBLE = 1e-12  # chance that more holders than counted take part, far below delta
HIGH = 0.95  # of the clients take part at most as often as the one that is shown


class Sampling(enum.Enum):
    """How a claim counts the sampling rate of an example.

    LOCAL: B / n, the papers' 0.01: the client's own draw, whoever knows that the
    client takes part. GLOBAL: B * K / (N * n), which also counts the draw of clients
    (Wei et al. 2021, section V). A client that is drawn stays for all local steps and
    brings all of its examples, so that draw hides no single one: what is accounted for
    a run is LOCAL.
    """

    LOCAL = "local"
    GLOBAL = "global"


@dataclasses.dataclass(frozen=True)
class Draw:
    """How one unit comes to take part in a release.

    `fixed`: one of a fixed number, drawn without replacement; else on its own coin.
    """

    rate: float
    fixed: bool = False


@dataclasses.dataclass(frozen=True)
class PrivacyPlan:
    """A defense in a setting: all that accounting reads.

    `copies` is how many clients hold one example at most, None where nobody knows;
    `participations` the most rounds that a client really took part in, None before
    there is a run; `tensors` how many the model has, since some clips are per tensor.
    """

    defense: "Defense"
    setting: Setting
    copies: int | None = None
    tensors: int = TENSORS
    sampling: Sampling = Sampling.LOCAL
    participations: int | None = None

    def __post_init__(self) -> None:
        at_least(1, tensors=self.tensors)
        clients, rounds = self.setting.clients, self.setting.rounds
        if not (self.copies is None or 1 <= self.copies <= clients):
            raise InputError(
                f"copies must lie in 1..{clients} (clients), got {self.copies}"
            )
        taken = self.participations
        if not (taken is None or 0 <= taken <= rounds):
            raise InputError(
                f"participations must lie in 0..{rounds} (rounds), got {taken}"
            )

    @property
    def unit(self) -> Unit:
        """Whose presence the defense hides: an example's if any noise is for it."""
        units = [unit_of(mechanism) for mechanism in self.defense.mechanisms]
        return Unit.CLIENT if units and Unit.EXAMPLE not in units else Unit.EXAMPLE

    @property
    def mechanisms(self) -> tuple[Mechanism, ...]:
        """The defense's mechanisms that hide the unit."""
        found = self.defense.mechanisms
        return tuple(each for each in found if unit_of(each) is self.unit)

    @property
    def steps(self) -> int:
        """Releases of one unit through one client that always takes part."""
        return self.setting.rounds * self._steps_in_a_round

    @property
    def holders(self) -> int:
        """How many clients that hold one example can take part in one round."""
        if self.unit is Unit.CLIENT or self.copies is None:
            return 1
        most = self.setting.clients_per_round
        if self.setting.selection is Selection.POISSON:
            from scipy import stats

            unlikely = _NEGLIGIBLE / self.setting.rounds
            most = int(stats.binom.isf(unlikely, self.copies, self._clients))
        return max(1, min(self.copies, most))

    @property
    def claimed_rate(self) -> float:
        """The rate that the papers count, on independent coins however it is drawn."""
        if self.unit is Unit.CLIENT:
            return self._clients
        whole = self.sampling is Sampling.GLOBAL
        return self._examples * (self._clients if whole else 1.0)

    @property
    def draw(self) -> Draw:
        """How a unit is drawn in this run, by a reader who sees which clients are."""
        setting = self.setting
        if self.unit is Unit.EXAMPLE:
            fixed = setting.batches is Batches.FIXED
            return Draw(self._examples, fixed and self._examples < 1)
        if setting.selection is Selection.ACTIVE:
            return Draw(1.0)
        fixed = setting.selection is Selection.FIXED
        return Draw(self._clients, fixed and self._clients < 1)

    def claimed(self) -> Events | None:
        """Returns the events as the papers count them; None if something is exact."""
        return self._events(self.stated_noise, Draw(self.claimed_rate))

    def shared(self) -> Events | None:
        """Returns the claim's events, from every holder that can take part."""
        coins = Draw(self.draw.rate)
        return self._events(self.stated_noise, coins, self.holders)

    def accounted(self) -> Events | None:
        """Returns the events of this run, with the noise taken at its word."""
        return self._events(self.stated_noise, self.draw, self.holders)

    def effective(self) -> Events | None:
        """Returns the events of this run, relative to what a unit really changes."""
        return self._events(self.effective_noise, self.draw, self.holders)

    def has_noise(self) -> bool:
        """Returns whether some noise scale holds for every batch in every round."""
        moving = any(mechanism.data_dependent for mechanism in self.mechanisms)
        noises = map(self.effective_noise, self.mechanisms)
        return not moving and all(map(is_noise, noises))

    def stated_noise(self, mechanism: Mechanism) -> FloatArray:
        """Returns sigma_t (or epsilon_t) as the mechanism states it, (rounds,)."""
        rounds = range(self.setting.rounds)
        return np.asarray([mechanism.multiplier(t) for t in rounds], float)

    def effective_noise(self, mechanism: Mechanism) -> FloatArray:
        """Returns the noise relative to what one unit can really change, (rounds,).

        That is C jointly, or C for each of the M tensors, so C * sqrt(M) in the 2-norm
        and C * M in the 1-norm. The answer for no bound at all is no noise at all.
        """
        share = 1 / mechanism.norm if mechanism.per_tensor else 0.0
        spread = self.tensors**share
        power = -1 if is_pure(mechanism) else 1
        stated, ratios = self.stated_noise(mechanism), []
        for t in range(self.setting.rounds):
            clip = mechanism.clip(t)
            bound = math.inf if clip is None else clip * spread
            ratios.append(mechanism.sensitivity(t) / bound)
        with np.errstate(divide="ignore"):
            effective: FloatArray = stated * np.asarray(ratios) ** power
        return effective

    def rounds_taken(self, *, high: bool) -> int:
        """Returns the rounds of a client: as expected, or that 95 % don't exceed."""
        if self.participations is not None:
            return self.participations
        active = self.setting.selection is Selection.ACTIVE
        return _how_often(self.setting.rounds, 1.0 if active else self._clients, high)

    def seen(self, rounds: int, *, uses: bool, high: bool) -> Events | None:
        """Returns the events that a reader of one client sees of one unit.

        The reader knows in which `rounds` the client takes part: those with the least
        noise. A reader of updates does not know which examples were drawn; a reader of
        `uses` (type 2, of an example) sees each of them, as often as expected or, if
        `high`, as 95 % of the examples don't exceed. None if nothing is seen.
        """
        if not rounds:
            return None
        draw = Draw(1.0)
        if self.unit is Unit.CLIENT:
            counts = np.ones(rounds, np.int64)
        elif uses:
            drawn = rounds * self.setting.local_steps
            counts = _spread(_how_often(drawn, self._examples, high), rounds)
        else:
            counts, draw = np.full(rounds, self.setting.local_steps), self.draw
        if not counts.any():
            return None
        parts = []
        noises = [self.effective_noise(mechanism) for mechanism in self.mechanisms]
        for mechanism, noise in combined(self.mechanisms, noises):
            weakest_first = np.sort(noise)
            if is_pure(mechanism):
                weakest_first = weakest_first[::-1]
            events = events_of(mechanism, weakest_first[:rounds], draw)
            parts.append(dataclasses.replace(events, count=counts))
        return in_turn(parts).first(int(counts.sum()) * len(parts))

    @property
    def _clients(self) -> float:
        return self.setting.clients_per_round / self.setting.clients

    @property
    def _examples(self) -> float:
        return self.setting.batch_size / self.setting.examples

    @property
    def _steps_in_a_round(self) -> int:
        return self.setting.local_steps if self.unit is Unit.EXAMPLE else 1

    def _events(
        self, noise: Callable[[Mechanism], FloatArray], draw: Draw, holders: int = 1
    ) -> Events | None:
        """Returns the events of all rounds in the order of time; None if exact."""
        noises = list(map(noise, self.mechanisms))
        bounded = all(mechanism.clip(0) is not None for mechanism in self.mechanisms)
        if not noises or not bounded or not all(map(is_noise, noises)):
            return None
        parts = [events_of(m, n, draw) for m, n in combined(self.mechanisms, noises)]
        return in_turn(parts).repeated(self._steps_in_a_round * holders)


def _how_often(trials: int, chance: float, high: bool) -> int:
    """Returns the expected number (rounded up), or the one that 95 % don't exceed."""
    usual = math.ceil(trials * chance - 1e-9)
    if not high:
        return usual
    from scipy import stats

    return max(usual, int(stats.binom.ppf(HIGH, trials, chance)))


def copies_in(
    setting: Setting, class_sizes: Sequence[int] = (), held: Indices | None = None
) -> int | None:
    """Returns how many clients hold one example at most; None if nobody knows.

    Args:
      setting: its partition says who holds what.
      class_sizes: how many examples each class of the data has, where that is known.
      held: who really holds what, (clients, examples), where there is a run.
    """
    if held is not None:
        return shared_copies(held)
    if setting.clients == 1:
        return 1
    if setting.partition is None:
        return None
    clients, examples = setting.clients, setting.examples
    if class_sizes:
        size = sum(class_sizes)
        return setting.partition.copies(size, clients, examples, class_sizes)
    # Without the data's size, only what holds from the smallest data to the largest.
    least, most = (
        setting.partition.copies(size, clients, examples, (size,))
        for size in (clients * examples, examples)
    )
    return most if least == most else None


def unit_of(mechanism: Mechanism) -> Unit:
    """Returns whose contribution the mechanism's noise hides."""
    per_example = mechanism.point is Point.PER_EXAMPLE
    return Unit.EXAMPLE if per_example else Unit.CLIENT


def is_pure(mechanism: Mechanism) -> bool:
    """Returns whether the mechanism is epsilon-DP on its own."""
    return mechanism.kind is not NoiseKind.GAUSSIAN


def is_noise(noise: FloatArray) -> bool:
    """Returns whether there is noise in every round."""
    return bool(np.all(np.isfinite(noise) & (noise > 0)))


def events_of(mechanism: Mechanism, noise: FloatArray, draw: Draw) -> Events:
    """Returns one event per entry of `noise`.

    A draw of a fixed size is accounted for replacing one unit by another, which
    changes the release by twice what one unit contributes. A randomizer's epsilon is
    that of replacing already.
    """
    doubled = draw.fixed and mechanism.kind is not NoiseKind.RANDOMIZER
    factor = 2.0 if doubled else 1.0
    if is_pure(mechanism):
        return pure(noise * factor, draw.rate, fixed=draw.fixed)
    return gaussian(noise / factor, draw.rate, fixed=draw.fixed)


def combined(
    mechanisms: tuple[Mechanism, ...], noises: list[FloatArray]
) -> list[tuple[Mechanism, FloatArray]]:
    """Returns the releases about one unit as one, of the same kind each.

    Gaussian multipliers add as 1 / sigma^2 and pure epsilons add. (Counting them as
    separately sampled would be too optimistic: the draw is shared.)
    """
    together: dict[bool, tuple[Mechanism, FloatArray]] = {}
    for mechanism, noise in zip(mechanisms, noises, strict=True):
        key = is_pure(mechanism)
        if key not in together:
            together[key] = mechanism, noise
        elif key:
            together[key] = mechanism, together[key][1] + noise
        else:
            joint = np.square(1 / together[key][1]) + np.square(1 / noise)
            together[key] = mechanism, 1 / np.sqrt(joint)
    return list(together.values())


def _spread(uses: int, rounds: int) -> IntArray:
    """Returns the uses per round, the most where the noise is least."""
    counts = np.full(rounds, uses // rounds, np.int64)
    counts[: uses % rounds] += 1
    return counts
