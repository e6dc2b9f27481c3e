"""The defenses of the papers by name: each is a choice of parts."""

from gradaudit.defenses.base import Defense, Transform
from gradaudit.defenses.claims import defend
from gradaudit.defenses.clipping import Clip
from gradaudit.defenses.compression import Prune
from gradaudit.defenses.noise import (
    GaussianNoise,
    NoiseAt,
    plain_gaussian,
    plain_laplace,
)
from gradaudit.defenses.norms import Scope
from gradaudit.defenses.registry import preset
from gradaudit.defenses.schedules import Schedule, as_schedule, decay
from gradaudit.defenses.sensitivity import FixedSensitivity, LargestNorm
from gradaudit.errors import require
from gradaudit.mechanism import Point

FED_CDP = "Wei et al. 2021 (Fed-CDP)"
FED_ALPHA_CDP = "Wei et al. 2023 (Fed-alphaCDP)"
DYNAMIC_DP = "Wei & Liu 2022 (dynamic DP)"

_NO_CLIP = 1e30  # a bound that no gradient reaches
_OFF = {"clip": _NO_CLIP, "sigma": 0.0}


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
    sensitivity = LargestNorm(bound) if l2_max else FixedSensitivity(bound)
    return Clip(bound, scope), GaussianNoise(multiplier, sensitivity, noise_at)


def at_point(point: Point, *transforms: Transform) -> Defense:
    """Returns the defense with these transforms at one point of the round."""
    return defend(
        "",
        per_example=transforms if point is Point.PER_EXAMPLE else (),
        update=transforms if point is Point.UPDATE else (),
        server=transforms if point is Point.SERVER else (),
    )


@preset("none", "", "Sends the gradients as they are.", off={})
def none() -> Defense:
    """Returns the defense that does nothing."""
    return defend("none")


@preset(
    "gaussian-noise",
    FED_ALPHA_CDP + ", section 4.2",
    "Adds plain Gaussian noise to what a client sends, without a clip.",
    off={"std": 0.0},
)
def gaussian_noise(std: float = 0.1, at: Point = Point.UPDATE) -> Defense:
    """Returns additive Gaussian noise; the default is the papers' variance 0.01."""
    require(std >= 0, f"std must not be negative, got {std}")
    return at_point(at, plain_gaussian(std))


@preset(
    "laplace-noise",
    FED_ALPHA_CDP + ", section 4.2",
    "Adds plain Laplace noise to what a client sends, without a clip.",
    off={"scale": 0.0},
)
def laplace_noise(scale: float = 0.07, at: Point = Point.UPDATE) -> Defense:
    """Returns additive Laplace noise of scale b; its variance is 2 * b^2."""
    require(scale >= 0, f"scale must not be negative, got {scale}")
    return at_point(at, plain_laplace(scale))


@preset(
    "prune",
    FED_ALPHA_CDP + ", section 4.1",
    "Drops the smallest share of the coordinates of what a client sends.",
    off={"ratio": 0.0},
)
def prune(
    ratio: float = 0.3, scope: Scope = Scope.GLOBAL, at: Point = Point.UPDATE
) -> Defense:
    """Returns threshold pruning; `ratio` is the share that is set to zero."""
    return at_point(at, Prune(ratio, scope))


@preset(
    "fed-sdp",
    FED_CDP + ", Algorithm 1",
    "Clips and noises each client's update at the server.",
    off=_OFF,
)
def fed_sdp(
    clip: float | Schedule = 4.0,
    sigma: float | Schedule = 6.0,
    scope: Scope = Scope.TENSOR,
) -> Defense:
    """Returns client-level DP by the server: type 0 only."""
    return defend("", server=sanitize(clip, sigma, scope=scope))


@preset(
    "fed-sdp-client",
    FED_ALPHA_CDP + ", Table 3",
    "Clips and noises each client's update at the client.",
    off=_OFF,
)
def fed_sdp_client(
    clip: float | Schedule = 4.0,
    sigma: float | Schedule = 6.0,
    scope: Scope = Scope.TENSOR,
) -> Defense:
    """Returns client-level DP by the client itself: types 0 and 1."""
    return defend("", update=sanitize(clip, sigma, scope=scope))


@preset(
    "fed-cdp",
    FED_CDP + ", Algorithm 2",
    "Clips and noises every example's gradient in every local step.",
    off=_OFF,
)
def fed_cdp(
    clip: float | Schedule = 4.0,
    sigma: float | Schedule = 6.0,
    noise_at: NoiseAt = NoiseAt.UNIT,
    scope: Scope = Scope.TENSOR,
) -> Defense:
    """Returns example-level DP inside the client: all three types."""
    parts = sanitize(clip, sigma, noise_at=noise_at, scope=scope)
    return defend("", per_example=parts)


@preset(
    "fed-cdp-decay",
    FED_CDP + ", section VI",
    "Fed-CDP with a clipping bound that decays linearly.",
    off={"start": _NO_CLIP, "end": _NO_CLIP / 2, "sigma": 0.0},
)
def fed_cdp_decay(
    start: float = 6.0,
    end: float = 2.0,
    rounds: int = 100,
    sigma: float | Schedule = 6.0,
    policy: str = "linear",
    noise_at: NoiseAt = NoiseAt.UNIT,
) -> Defense:
    """Returns Fed-CDP with C decaying from `start` to `end` over `rounds`."""
    clip = decay(policy, start, end, rounds)
    return defend("", per_example=sanitize(clip, sigma, noise_at=noise_at))


@preset(
    "fed-alpha-cdp",
    FED_ALPHA_CDP + ", section 5.2",
    "Fed-CDP with noise scaled to the largest norm of the batch (l2-max).",
    off=_OFF,
)
def fed_alpha_cdp(
    clip: float | Schedule = 4.0,
    sigma: float | Schedule = 6.0,
    noise_at: NoiseAt = NoiseAt.UNIT,
) -> Defense:
    """Returns Fed-CDP with l2-max sensitivity."""
    parts = sanitize(clip, sigma, l2_max=True, noise_at=noise_at)
    return defend("", per_example=parts)


@preset(
    "fed-alpha-cdp-sigma",
    FED_ALPHA_CDP + ", section 5.3",
    "Fed-alphaCDP with a decaying noise scale (policy linear, staircase, "
    "exponential or cyclic).",
)
def fed_alpha_cdp_sigma(
    clip: float | Schedule = 4.0,
    start: float = 15.0,
    end: float = 4.85,
    rounds: int = 100,
    policy: str = "exponential",
    noise_at: NoiseAt = NoiseAt.UNIT,
) -> Defense:
    """Returns Fed-alphaCDP with sigma decaying from `start` to `end`."""
    sigma = decay(policy, start, end, rounds)
    parts = sanitize(clip, sigma, l2_max=True, noise_at=noise_at)
    return defend("", per_example=parts)
