"""The verdict: is the claimed epsilon a guarantee, and if not, why not."""

import dataclasses
import math

from gradaudit.mechanism import Mechanism
from gradaudit.privacy.events import FloatArray
from gradaudit.privacy.plan import claimed_noise, effective_noise, is_noise, is_pure

NO_MECHANISM = "The defense adds no calibrated noise, so it has no epsilon at all."


NO_NOISE = "The noise multiplier is 0 in some round: what is released there is exact."


NO_BOUND = (
    "Nothing bounds what one unit can change, so the noise has no sensitivity and "
    "there is no differential privacy guarantee."
)


DATA_DEPENDENT = (
    "The noise scale is computed from the private batch (data-dependent sensitivity): "
    "it leaks by itself, and it can be zero."
)


PARTIAL = "Only {coordinates} get noise; the rest is released as it is."


@dataclasses.dataclass(frozen=True)
class Guarantee:
    """Whether the claim holds, with reasons as sentences.

    `claimed_multiplier` and `effective_multiplier` are the weakest over the rounds:
    sigma for Gaussian noise, 1 / epsilon of one release for pure mechanisms.
    """

    valid: bool
    reasons: tuple[str, ...]
    notes: tuple[str, ...]
    claimed_multiplier: float
    effective_multiplier: float

    @property
    def verdict(self) -> str:
        """Returns `valid` or `not valid`."""
        return "valid" if self.valid else "not valid"


def judge(mechanisms: tuple[Mechanism, ...], rounds: int, tensors: int) -> Guarantee:
    """Returns the verdict on mechanisms that hide the same unit."""
    if not mechanisms:
        return Guarantee(False, (NO_MECHANISM,), (), 0.0, 0.0)
    claimed = min(_weakest(m, claimed_noise(m, rounds)) for m in mechanisms)
    effective = min(
        0.0 if m.data_dependent else _weakest(m, effective_noise(m, rounds, tensors))
        for m in mechanisms
    )
    broken = [why for m in mechanisms for why in _broken(m, rounds, tensors)]
    if not any(m.coordinates.startswith("all") for m in mechanisms):
        broken.append(PARTIAL.format(coordinates=mechanisms[0].coordinates))
    said = [caveat for m in mechanisms for caveat in m.caveats]
    notes = [] if broken else said
    return Guarantee(
        valid=not broken,
        reasons=_distinct(broken),
        notes=_distinct(notes),
        claimed_multiplier=claimed,
        effective_multiplier=effective,
    )


def _broken(mechanism: Mechanism, rounds: int, tensors: int) -> list[str]:
    """Returns why one mechanism's claim does not hold, in numbers where there are."""
    claimed = claimed_noise(mechanism, rounds)
    if not is_noise(claimed):
        return [NO_NOISE]
    if any(mechanism.clip(t) is None for t in range(rounds)):
        return [NO_BOUND]
    found = [DATA_DEPENDENT] if mechanism.data_dependent else []
    effective = effective_noise(mechanism, rounds, tensors)
    before, after = _weakest(mechanism, claimed), _weakest(mechanism, effective)
    if after >= before * (1 - 1e-9):
        return found
    if mechanism.per_tensor and tensors > 1:
        root = "sqrt(M)" if mechanism.norm == 2 else "M"
        found.append(
            f"Each of the M = {tensors} tensors is clipped to C on its own, so one "
            f"unit can change the release by C * {root}; the claim counts C. The "
            f"noise multiplier that holds is {after:.4g}, not {before:.4g}."
        )
    else:
        found.append(
            f"The noise is scaled to {mechanism.sensitivity(0):.4g} while one unit "
            f"can change the release by {mechanism.clip(0):.4g}: the noise multiplier "
            f"that holds is {after:.4g}, not {before:.4g}."
        )
    return found


def _weakest(mechanism: Mechanism, noise: FloatArray) -> float:
    if not is_pure(mechanism):
        return float(noise.min())
    largest = float(noise.max())
    return 1 / largest if largest > 0 and not math.isinf(largest) else 0.0


def _distinct(sentences: list[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(sentences))
