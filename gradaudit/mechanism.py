"""What a defense releases, as its own parts declare it: all that accounting needs.

A privacy number is derived from these objects and never typed a second time.
"""

import dataclasses
import enum
from collections.abc import Callable


class Point(enum.Enum):
    """The three places of a round where a defense acts."""

    PER_EXAMPLE = "per_example"
    UPDATE = "update"
    SERVER = "server"


class NoiseKind(enum.Enum):
    """The law of the noise."""

    GAUSSIAN = "gaussian"
    LAPLACE = "laplace"
    RANDOMIZER = "randomizer"  # an epsilon-LDP randomizer (LDP-SGD)


@dataclasses.dataclass(frozen=True)
class Mechanism:
    """One noisy release of a defense. Schedules are functions of the round t.

    The noise that is really added has standard deviation
    `multiplier(t) * sensitivity(t)` per coordinate of each unit's tree (or of the
    batch sum, when `on_batch_sum`), where a unit is one example (PER_EXAMPLE) or one
    client (UPDATE, SERVER). The noise *claims* to hide a change of norm
    `sensitivity(t)`; what one unit can really change is `clip(t)` per tensor if
    `per_tensor` (so clip * sqrt(tensors) jointly), else jointly.
    """

    point: Point
    kind: NoiseKind
    multiplier: Callable[[int], float]  # sigma_t, or the epsilon for pure mechanisms
    sensitivity: Callable[[int], float]  # S_t; an upper bound when data-dependent
    clip: Callable[[int], float | None]  # C_t; None = nothing bounds the unit
    norm: int = 2  # the norm of the clip
    per_tensor: bool = True
    data_dependent: bool = False  # S_t is computed from the private batch (l2-max)
    on_batch_sum: bool = False  # one draw per batch, not one per example
    coordinates: str = "all"  # which tensors get noise: "all" or words for the report
    caveats: tuple[str, ...] = ()  # sentences: why the claim may not be a guarantee
