"""What a defense claims for one release, and what its own parts say in closed form."""

import dataclasses
import math

import dp_accounting

from gradaudit.errors import InputError, require
from gradaudit.ldp.bounds import check_epsilon
from gradaudit.ldp.pairs import Neighbours
from gradaudit.mechanism import Mechanism, NoiseKind

DELTA = 1e-5


@dataclasses.dataclass(frozen=True)
class Claim:
    """(epsilon, delta) for a pair of neighbours."""

    epsilon: float
    delta: float = 0.0

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        require(0 <= self.delta < 1, f"delta must lie in [0, 1), got {self.delta}")


def claimed_by(
    mechanisms: tuple[Mechanism, ...], neighbours: Neighbours, delta: float = DELTA
) -> Claim:
    """Returns what the noise claims in round 0: that a change of norm S is hidden.

    Two inputs (local neighbours) differ by up to 2 S. Pure mechanisms claim delta = 0.
    """
    times = _distance(mechanisms, neighbours)
    kinds = {mechanism.kind for mechanism in mechanisms}
    scales = [mechanism.multiplier(0) for mechanism in mechanisms]
    if not kinds or min(scales) <= 0:
        raise InputError(
            "the mechanism claims no privacy of its own; say which epsilon to test it "
            "against (epsilon)"
        )
    if kinds == {NoiseKind.GAUSSIAN}:
        sigma = sum(scale**-2 for scale in scales) ** -0.5
        return Claim(_gaussian(sigma / times, delta), delta)
    if NoiseKind.GAUSSIAN in kinds:
        raise InputError(
            "the mechanism mixes Gaussian and pure noise; say which epsilon to test it "
            "against (epsilon)"
        )
    return Claim(times * sum(scales))


def closed_form(
    mechanisms: tuple[Mechanism, ...],
    neighbours: Neighbours,
    tensors: int,
    size: int,
    delta: float = DELTA,
) -> float | None:
    """Returns the exact epsilon of one release at the worst pair, or None if unknown.

    It counts what the clip really allows: C * sqrt(tensors) when every tensor is
    clipped on its own. Unknown: several mechanisms, no clip, data-dependent noise.
    """
    if len(mechanisms) != 1:
        return None
    mechanism, times = mechanisms[0], _distance(mechanisms, neighbours)
    clip, scale = mechanism.clip(0), mechanism.multiplier(0)
    if clip is None or mechanism.data_dependent or mechanism.on_batch_sum:
        return None
    if mechanism.kind is NoiseKind.RANDOMIZER:
        return scale
    change = times * clip / mechanism.sensitivity(0)
    blocks = tensors if mechanism.per_tensor else 1
    if mechanism.kind is NoiseKind.LAPLACE:
        # Blocks add up in L1; an L2 ball reaches sqrt(d) times its radius in L1.
        widest = blocks if mechanism.norm == 1 else math.sqrt(blocks * size)
        return scale * change * widest
    if mechanism.norm == 1:
        blocks = 1  # an L1 ball lies in the L2 ball of its radius
    return _gaussian(scale / (change * math.sqrt(blocks)), delta) if scale else math.inf


def _distance(mechanisms: tuple[Mechanism, ...], neighbours: Neighbours) -> int:
    """How many times S neighbours differ by; a randomizer has no S to multiply."""
    randomizer = all(entry.kind is NoiseKind.RANDOMIZER for entry in mechanisms)
    return 2 if neighbours is Neighbours.LOCAL and not randomizer else 1


def _gaussian(sigma: float, delta: float) -> float:
    """Returns the exact epsilon of the Gaussian mechanism of sensitivity 1."""
    require(delta > 0, f"Gaussian noise needs a positive delta, got {delta}")
    return float(dp_accounting.get_epsilon_gaussian(sigma, delta))
