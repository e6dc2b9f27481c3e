"""What every game shares: the box, the trials and errors, progress and interrupts."""

import contextlib
import dataclasses
import enum
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from gradaudit import machine
from gradaudit.errors import InputError
from gradaudit.types import Key, PyTree

MINIMUM_TRIALS, MAXIMUM_TRIALS = 100, 10**8

Tell = Callable[[str, int, int], None]  # what is running, trials done, of how many
Report = Callable[[str, int], None]  # what is running, and the trials just played
Advance = Callable[[int], None]  # told about the trials just played
# (key, size) -> which gradient was randomized, (size,), and its scores, (size, ...)
PlayChunk = Callable[[Key, int], tuple[jax.Array, jax.Array]]


class Box(enum.Enum):
    """What the distinguisher sees."""

    WHITE = "white"  # the randomized gradient
    BLACK = "black"  # the global model before and after the update


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Crafted:
    """The two gradients, the model the server sent, and what the distinguisher knows.

    `inputs` and `targets` are those that g1 and g2 stand for, or x1 twice.
    """

    params: PyTree
    inputs: jax.Array  # (2, *input_shape)
    targets: jax.Array  # (2, classes)
    gradients: jax.Array  # (2, d): g1 and g2


@dataclasses.dataclass(frozen=True)
class Errors:
    """Counts of a hypothesis test whose null hypothesis is g1.

    A false positive is g1 taken for g2, a false negative g2 taken for g1 (Matsumoto et
    al. 2022, section 3.1).
    """

    first: int  # trials that randomized g1
    false_positives: int
    second: int  # trials that randomized g2
    false_negatives: int

    @property
    def fp(self) -> float:
        """The false positive rate."""
        return self.false_positives / self.first

    @property
    def fn(self) -> float:
        """The false negative rate."""
        return self.false_negatives / self.second


@dataclasses.dataclass(frozen=True, eq=False)
class Trials:
    """Trials of one game. The distinguisher guesses g1 when score >= threshold.

    Guarantee: every score is a number (infinite scores are certain guesses), and both
    gradients were randomized at least once.
    """

    first: NDArray[np.bool_]  # (n,) True where g1 was randomized, False for g2
    scores: NDArray[np.float32]  # (n,)

    def __post_init__(self) -> None:
        bad = int(np.isnan(self.scores).sum())
        if bad:
            raise InputError(
                f"{bad} of {len(self.scores)} trials gave a score that is NaN; "
                "the mechanism must return finite values for finite gradients"
            )
        if not self.first.any() or self.first.all():
            raise InputError(
                f"{len(self.first)} trials never randomized one of the two gradients; "
                "run more trials"
            )

    def errors(self, threshold: float = 0.0) -> Errors:
        """Returns how often the guess was wrong, for each gradient."""
        guesses_first = self.scores >= threshold
        return Errors(
            first=int(self.first.sum()),
            false_positives=int((self.first & ~guesses_first).sum()),
            second=int((~self.first).sum()),
            false_negatives=int((~self.first & guesses_first).sum()),
        )


def ignore(trials: int) -> None:
    """Ignores progress."""


def play_in_chunks(
    key: Key, trials: int, largest: int, play: PlayChunk, advance: Advance = ignore
) -> tuple[Trials, ...]:
    """Returns the trials, for each score, of a game that is played some at a time.

    Chunks have one size, so that one program serves all of them; what the last one
    plays too much is dropped. Chunk i has the key fold_in(key, i).
    """
    size = min(trials, largest)
    firsts, scores = [], []
    for index, start in enumerate(range(0, trials, size)):
        first, score = play(jax.random.fold_in(key, index), size)
        count = min(size, trials - start)
        firsts.append(np.asarray(first)[:count])
        scores.append(np.asarray(score)[:count])
        advance(count)
    table = np.concatenate(scores).reshape(trials, -1)
    return tuple(Trials(np.concatenate(firsts), column) for column in table.T)


def keys_over_devices(key: Key, count: int) -> jax.Array:
    """Returns a key per trial, and some more if the devices don't divide the trials.

    The first `count` keys are the same on every machine.
    """
    devices = machine.device_count()
    return jax.random.split(key, -(-count // devices) * devices)


@contextlib.contextmanager
def reporting(total: int, tell: Tell | None) -> Iterator[Report]:
    """Yields what a game calls between its steps, with the trials it just played.

    It tells `tell` how far the game is, and raises KeyboardInterrupt once SIGINT or
    SIGTERM has come.

    jax compiles on a thread of its own. An exception that breaks off the wait leaves
    that thread behind, and it crashes the process when the process ends: so a first
    signal only takes effect between steps. A second one takes it at once.
    Outside the main thread, which gets the signals, there is nothing to hold back.
    """
    received: list[int] = []
    done = 0

    def note(number: int, frame: FrameType | None) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(number)

    def report(label: str, trials: int) -> None:
        nonlocal done
        done += trials
        if tell is not None:
            tell(label, done, total)
        if received:
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield report
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before: dict[int, Any] = {number: signal.getsignal(number) for number in numbers}
    for number, handler in before.items():
        if handler is not None and handler is not signal.SIG_IGN:
            signal.signal(number, note)
    try:
        yield report
    finally:
        for number, handler in before.items():
            if handler is not None:
                signal.signal(number, handler)


def check_trials(trials: int) -> None:
    """Raises unless there are enough trials for a rate to mean anything."""
    if not trials >= MINIMUM_TRIALS:
        raise InputError(
            f"a measurement needs at least {MINIMUM_TRIALS} trials, got {trials}"
        )
    if not trials <= MAXIMUM_TRIALS:
        raise InputError(
            f"a measurement holds at most {MAXIMUM_TRIALS:,} trials, got {trials:,}"
        )
