"""What every game shares: which box, the trials, and the errors of a distinguisher."""

import dataclasses
import enum
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gradaudit.errors import InputError, require


class Box(enum.Enum):
    """What the distinguisher sees."""

    WHITE = "white"  # the randomized gradient
    BLACK = "black"  # the global model before and after the update


def check_significance(significance: float) -> None:
    """Raises unless 1 - significance is a confidence that a bound can have."""
    require(
        0 < significance < 0.5,
        f"significance must lie in (0, 0.5), got {significance}",
    )


MINIMUM_TRIALS = 100


@dataclasses.dataclass(frozen=True, eq=False)
class Trials:
    """Trials of one game. The distinguisher guesses g1 when score >= threshold.

    Guarantee: every score is a number (infinite scores are certain guesses), and both
    gradients were randomized at least once.
    """

    first: NDArray[np.bool_]  # (n,) True where g1 was randomized, False for g2
    scores: NDArray[np.float32]  # (n,)

    def __post_init__(self) -> None:
        require(
            self.first.shape == self.scores.shape and self.first.ndim == 1,
            f"{self.first.shape} choices don't fit {self.scores.shape} scores",
        )
        bad = int(np.isnan(self.scores).sum())
        if bad:
            raise InputError(
                f"{bad} of {len(self.scores)} trials gave a score that is NaN; "
                "the mechanism must return finite values for finite gradients"
            )
        require(
            bool(self.first.any() and not self.first.all()),
            f"{len(self.first)} trials never randomized one of the two gradients; "
            "run more trials",
        )

    def errors(self, threshold: float = 0.0) -> "Errors":
        """Returns how often the guess was wrong, for each gradient."""
        guesses_first = self.scores >= threshold
        return Errors(
            first=int(self.first.sum()),
            false_positives=int((self.first & ~guesses_first).sum()),
            second=int((~self.first).sum()),
            false_negatives=int((~self.first & guesses_first).sum()),
        )


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


def pool(parts: Sequence[Trials]) -> Trials:
    """Returns the trials of several measurements as one set."""
    return Trials(
        np.concatenate([part.first for part in parts]),
        np.concatenate([part.scores for part in parts]),
    )


def check_trials(trials: int) -> None:
    """Raises unless there are enough trials for a rate to mean anything."""
    require(
        trials >= MINIMUM_TRIALS,
        f"a measurement needs at least {MINIMUM_TRIALS} trials, got {trials}",
    )
