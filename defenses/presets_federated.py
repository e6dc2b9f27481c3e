"""The federated DP family by name: Fed-SDP, Fed-CDP, Fed-alphaCDP."""

from gradaudit.defenses.base import Defense
from gradaudit.defenses.claims import defend
from gradaudit.defenses.noise import (
    NoiseAt,
)
from gradaudit.defenses.norms import Scope
from gradaudit.defenses.registry import preset
from gradaudit.defenses.sanitize import NO_CLIP, OFF, sanitize
from gradaudit.defenses.schedules import Schedule, decay

FED_CDP = "Wei et al. 2021 (Fed-CDP)"
FED_ALPHA_CDP = "Wei et al. 2023 (Fed-alphaCDP)"


@preset(
    "fed-sdp",
    FED_CDP + ", Algorithm 1",
    "Clips and noises each client's update at the server.",
    off=OFF,
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
    off=OFF,
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
    off=OFF,
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
    off={"start": NO_CLIP, "end": NO_CLIP / 2, "sigma": 0.0},
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
    off=OFF,
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
    off={"clip": NO_CLIP, "start": 1e-20, "end": 5e-21},
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
