"""Named defenses: the table, and the DP-SGD family of the papers."""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec

from gradaudit.defenses.base import Defense, defend
from gradaudit.defenses.clipping import Scope
from gradaudit.defenses.noise import NO_CLIP, OFF, NoiseAt, sanitize
from gradaudit.defenses.schedules import Schedule, decay

P = ParamSpec("P")


@dataclasses.dataclass(frozen=True)
class Preset:
    """A named defense. `off` are parameters under which it is the identity."""

    name: str
    make: Callable[..., Defense]
    paper: str
    summary: str
    off: Mapping[str, Any] | None

    @property
    def defaults(self) -> dict[str, Any]:
        """Returns the parameters and their default values."""
        parameters = inspect.signature(self.make).parameters.values()
        return {parameter.name: parameter.default for parameter in parameters}


PRESETS: dict[str, Preset] = {}


def preset(
    name: str, paper: str, summary: str, off: Mapping[str, Any] | None = None
) -> Callable[[Callable[P, Defense]], Callable[P, Defense]]:
    """Registers a constructor; the defenses it makes carry name, paper and parameters.

    `off` is None for a defense that can't be switched off by its parameters.
    """

    def register(construct: Callable[P, Defense]) -> Callable[P, Defense]:
        signature = inspect.signature(construct)

        @functools.wraps(construct)
        def make(*args: P.args, **kwargs: P.kwargs) -> Defense:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            return dataclasses.replace(
                construct(*args, **kwargs),
                name=name,
                paper=paper,
                summary=summary,
                parameters=tuple(bound.arguments.items()),
            )

        PRESETS[name] = Preset(name, make, paper, summary, off)
        return make

    return register


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
