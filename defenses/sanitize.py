"""A clip and the Gaussian noise that is tied to it: the core of every DP preset."""

from gradaudit.defenses.clipping import Clip
from gradaudit.defenses.noise import GaussianNoise, NoiseAt
from gradaudit.defenses.norms import Scope
from gradaudit.defenses.schedules import Schedule, as_schedule
from gradaudit.defenses.sensitivity import FixedSensitivity, LargestNorm, Sensitivity

NO_CLIP = 1e30  # a bound that no gradient reaches
OFF = {"clip": NO_CLIP, "sigma": 0.0}


def sanitize(
    clip: float | Schedule,
    sigma: float | Schedule,
    *,
    l2_max: bool = False,
    noise_at: NoiseAt = NoiseAt.UNIT,
    scope: Scope = Scope.TENSOR,
) -> tuple[Clip, GaussianNoise]:
    """Returns a clip and the Gaussian noise that is tied to it.

    The noise has std sigma * S, where S is the clip's own bound or, with `l2_max`, the
    largest norm of the batch after the clip.
    """
    bound = as_schedule("clip", clip)
    multiplier = as_schedule("sigma", sigma, zero=True)
    sensitivity: Sensitivity = FixedSensitivity(bound)
    if l2_max:
        sensitivity = LargestNorm(bound)
    return Clip(bound, scope), GaussianNoise(multiplier, sensitivity, noise_at)
