"""The centralized family with dynamic privacy parameters (Wei & Liu 2022, Table I).

Which of C, S and sigma is dynamic tells the six apart. The rounds are the paper's
iterations; its decay of C is not published, so the one of Fed-CDP is used.
"""

from gradaudit.defenses.base import Defense
from gradaudit.defenses.claims import defend
from gradaudit.defenses.noise import NoiseAt
from gradaudit.defenses.registry import preset
from gradaudit.defenses.sanitize import NO_CLIP, OFF, sanitize
from gradaudit.defenses.schedules import Schedule, decay

PAPER = "Wei & Liu 2022, Table I"

_OFF_DECAY = {"start": NO_CLIP, "end": NO_CLIP / 2, "sigma": 0.0}
_SIGMA_START, _SIGMA_END = 15.757, 2.99  # what reproduces the stops of Table VIII


@preset("dp-baseline", PAPER, "DP-SGD with fixed C, S = C and sigma.", off=OFF)
def dp_baseline(
    clip: float | Schedule = 4.0,
    sigma: float | Schedule = 6.0,
    noise_at: NoiseAt = NoiseAt.UNIT,
) -> Defense:
    """Returns the baseline: everything is fixed."""
    return defend("", per_example=sanitize(clip, sigma, noise_at=noise_at))


@preset("dp-dyns-cdecay", PAPER, "DP-SGD with a decaying C, S = C.", off=_OFF_DECAY)
def dp_dyns_cdecay(
    start: float = 6.0,
    end: float = 2.0,
    rounds: int = 10_000,
    policy: str = "linear",
    sigma: float | Schedule = 6.0,
    noise_at: NoiseAt = NoiseAt.UNIT,
) -> Defense:
    """Returns dynamic sensitivity by a decaying clip."""
    clip = decay(policy, start, end, rounds)
    return defend("", per_example=sanitize(clip, sigma, noise_at=noise_at))


@preset("dp-dyns-l2max", PAPER, "DP-SGD with S = l2-max of the batch.", off=OFF)
def dp_dyns_l2max(
    clip: float | Schedule = 4.0,
    sigma: float | Schedule = 6.0,
    noise_at: NoiseAt = NoiseAt.UNIT,
) -> Defense:
    """Returns dynamic sensitivity by l2-max."""
    parts = sanitize(clip, sigma, l2_max=True, noise_at=noise_at)
    return defend("", per_example=parts)


@preset("dp-dyns", PAPER, "DP-SGD with a decaying C and S = l2-max.", off=_OFF_DECAY)
def dp_dyns(
    start: float = 6.0,
    end: float = 2.0,
    rounds: int = 10_000,
    policy: str = "linear",
    sigma: float | Schedule = 6.0,
    noise_at: NoiseAt = NoiseAt.UNIT,
) -> Defense:
    """Returns dynamic sensitivity by both."""
    clip = decay(policy, start, end, rounds)
    parts = sanitize(clip, sigma, l2_max=True, noise_at=noise_at)
    return defend("", per_example=parts)


@preset(
    "dp-dynsigma",
    PAPER,
    "DP-SGD with a decaying sigma, S = C.",
    off={"clip": 1e4, "sigma_start": 1e-20, "sigma_end": 5e-21},
)
def dp_dynsigma(
    clip: float | Schedule = 4.0,
    sigma_start: float = _SIGMA_START,
    sigma_end: float = _SIGMA_END,
    rounds: int = 10_000,
    policy: str = "exponential",
    noise_at: NoiseAt = NoiseAt.UNIT,
) -> Defense:
    """Returns a dynamic noise scale over a fixed clip."""
    sigma = decay(policy, sigma_start, sigma_end, rounds)
    return defend("", per_example=sanitize(clip, sigma, noise_at=noise_at))


@preset(
    "dp-dyn",
    PAPER,
    "DP-SGD with a decaying C, S = l2-max and a decaying sigma.",
    off={"start": NO_CLIP, "end": 1e29, "sigma_start": 1e-20, "sigma_end": 5e-21},
)
def dp_dyn(
    start: float = 6.0,
    end: float = 2.0,
    sigma_start: float = _SIGMA_START,
    sigma_end: float = _SIGMA_END,
    rounds: int = 10_000,
    policy: str = "exponential",
    noise_at: NoiseAt = NoiseAt.UNIT,
) -> Defense:
    """Returns DP-dyn[S, sigma]: everything is dynamic, under one policy."""
    clip = decay(policy, start, end, rounds)
    sigma = decay(policy, sigma_start, sigma_end, rounds)
    parts = sanitize(clip, sigma, l2_max=True, noise_at=noise_at)
    return defend("", per_example=parts)
