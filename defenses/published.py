"""Named defenses: the published ones, each with its paper and its defaults."""

from typing import Any

from gradaudit.defenses.adaptive import AdaClip, QuantileClip
from gradaudit.defenses.clipping import Clip, FixedSensitivity, Norm, Scope
from gradaudit.defenses.compression import Prune, RandomSelection, SharedNoise
from gradaudit.defenses.layers import (
    DenseLayers,
    Importance,
    LayerwiseLaplace,
    NamedLayers,
    OnLayers,
    Selection,
)
from gradaudit.defenses.local import Debias, LdpRandomizer
from gradaudit.defenses.noise import (
    LaplaceNoise,
    NoiseAt,
    plain_gaussian,
    plain_laplace,
    sanitize,
)
from gradaudit.defenses.parsing import alias, preset
from gradaudit.defenses.schedules import Schedule, as_schedule, decay
from gradaudit.defenses.transforms import Defense, Transform, defend
from gradaudit.errors import InputError, not_negative
from gradaudit.mechanism import Point


def at_point(point: Point, *transforms: Transform) -> Defense:
    """Returns the defense with these transforms at one point of the round."""
    parts: Any = {point.value: transforms}
    return defend("", **parts)


def _at_examples(
    clip: float | Schedule,
    sigma: float | Schedule,
    noise_at: NoiseAt,
    scope: Scope = Scope.TENSOR,
    l2_max: bool = False,
) -> Defense:
    """Returns a clip and its noise on every example's gradient."""
    return defend("", per_example=sanitize(clip, sigma, l2_max, noise_at, scope))


FED_CDP = "Wei et al. 2021 (Fed-CDP)"
FED_ALPHA_CDP = "Wei et al. 2023 (Fed-alphaCDP)"
DYNAMIC = "Wei & Liu 2022, Table I"
DPFL = "Zhu et al. 2021 (DPFL)"
DSSGD = "Shokri & Shmatikov 2015"

NO_CLIP = 1e30  # a bound that no gradient reaches
OFF = {"clip": NO_CLIP, "sigma": 0.0}
OFF_DECAY = {"start": NO_CLIP, "end": NO_CLIP / 2, "sigma": 0.0}
OFF_SIGMA = {"sigma_start": 1e-20, "sigma_end": 5e-21}
OFF_LAPLACE = {"epsilon": NO_CLIP, "alpha": 1e6}

SIGMA_START, SIGMA_END = 15.757, 2.99  # what reproduces the stops of Table VIII


@preset("none", "", off={})
def none() -> Defense:
    """Sends the gradients as they are."""
    return defend("none")


@preset("fed-sdp", FED_CDP + ", Algorithm 1", off=OFF)
def fed_sdp(
    clip: float | Schedule = 4.0,
    sigma: float | Schedule = 6.0,
    scope: Scope = Scope.TENSOR,
) -> Defense:
    """Clips and noises each client's update at the server."""
    return defend("", server=sanitize(clip, sigma, scope=scope))


@preset("fed-sdp-client", FED_ALPHA_CDP + ", Table 3", off=OFF)
def fed_sdp_client(
    clip: float | Schedule = 4.0,
    sigma: float | Schedule = 6.0,
    scope: Scope = Scope.TENSOR,
) -> Defense:
    """Clips and noises each client's update at the client."""
    return defend("", update=sanitize(clip, sigma, scope=scope))


@preset("fed-cdp", FED_CDP + ", Algorithm 2", off=OFF)
def fed_cdp(
    clip: float | Schedule = 4.0,
    sigma: float | Schedule = 6.0,
    noise_at: NoiseAt = NoiseAt.UNIT,
    scope: Scope = Scope.TENSOR,
) -> Defense:
    """Clips and noises every example's gradient in every local step."""
    return _at_examples(clip, sigma, noise_at, scope)


@preset("fed-cdp-decay", FED_CDP + ", section VI", off=OFF_DECAY)
def fed_cdp_decay(
    start: float = 6.0,
    end: float = 2.0,
    rounds: int = 100,
    sigma: float | Schedule = 6.0,
    policy: str = "linear",
    noise_at: NoiseAt = NoiseAt.UNIT,
) -> Defense:
    """Fed-CDP with a clipping bound that decays linearly."""
    clip = decay(policy, start, end, rounds)
    return _at_examples(clip, sigma, noise_at)


@preset("fed-alpha-cdp", FED_ALPHA_CDP + ", section 5.2", off=OFF)
def fed_alpha_cdp(
    clip: float | Schedule = 4.0,
    sigma: float | Schedule = 6.0,
    noise_at: NoiseAt = NoiseAt.UNIT,
) -> Defense:
    """Fed-CDP with noise scaled to the largest norm of the batch (l2-max)."""
    return _at_examples(clip, sigma, noise_at, l2_max=True)


@preset(
    "fed-alpha-cdp-sigma",
    FED_ALPHA_CDP + ", section 5.3",
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
    """Fed-alphaCDP with a noise scale that decays by one of the policies."""
    sigma = decay(policy, start, end, rounds)
    return _at_examples(clip, sigma, noise_at, l2_max=True)


dp_baseline = alias(
    "dp-baseline", "fed-cdp", DYNAMIC, "DP-SGD with fixed C, S = C and sigma."
)
dp_dyns_cdecay = alias(
    "dp-dyns-cdecay",
    "fed-cdp-decay",
    DYNAMIC,
    "DP-SGD with a decaying C, S = C.",
    rounds=10_000,
)
dp_dyns_l2max = alias(
    "dp-dyns-l2max", "fed-alpha-cdp", DYNAMIC, "DP-SGD with S = l2-max of the batch."
)


@preset("dp-dyns", DYNAMIC, off=OFF_DECAY)
def dp_dyns(
    start: float = 6.0,
    end: float = 2.0,
    rounds: int = 10_000,
    policy: str = "linear",
    sigma: float | Schedule = 6.0,
    noise_at: NoiseAt = NoiseAt.UNIT,
) -> Defense:
    """DP-SGD with a decaying C and S = l2-max."""
    clip = decay(policy, start, end, rounds)
    return _at_examples(clip, sigma, noise_at, l2_max=True)


@preset("dp-dynsigma", DYNAMIC, off={"clip": 1e4, **OFF_SIGMA})
def dp_dynsigma(
    clip: float | Schedule = 4.0,
    sigma_start: float = SIGMA_START,
    sigma_end: float = SIGMA_END,
    rounds: int = 10_000,
    policy: str = "exponential",
    noise_at: NoiseAt = NoiseAt.UNIT,
) -> Defense:
    """DP-SGD with a decaying sigma, S = C."""
    sigma = decay(policy, sigma_start, sigma_end, rounds)
    return _at_examples(clip, sigma, noise_at)


@preset("dp-dyn", DYNAMIC, off={"start": NO_CLIP, "end": 1e29, **OFF_SIGMA})
def dp_dyn(
    start: float = 6.0,
    end: float = 2.0,
    sigma_start: float = SIGMA_START,
    sigma_end: float = SIGMA_END,
    rounds: int = 10_000,
    policy: str = "exponential",
    noise_at: NoiseAt = NoiseAt.UNIT,
) -> Defense:
    """DP-SGD with a decaying C, S = l2-max and a decaying sigma."""
    clip = decay(policy, start, end, rounds)
    sigma = decay(policy, sigma_start, sigma_end, rounds)
    return _at_examples(clip, sigma, noise_at, l2_max=True)


@preset("gaussian-noise", FED_ALPHA_CDP + ", section 4.2", off={"std": 0.0})
def gaussian_noise(std: float = 0.1, at: Point = Point.UPDATE) -> Defense:
    """Adds plain Gaussian noise to what a client sends, without a clip."""
    not_negative(std=std)
    return at_point(at, plain_gaussian(std))  # the papers' variance is 0.01


@preset("laplace-noise", FED_ALPHA_CDP + ", section 4.2", off={"scale": 0.0})
def laplace_noise(scale: float = 0.0707, at: Point = Point.UPDATE) -> Defense:
    """Adds plain Laplace noise to what a client sends, without a clip."""
    not_negative(scale=scale)
    return at_point(at, plain_laplace(scale))  # variance 2 scale^2 = 0.01


@preset("prune", FED_ALPHA_CDP + ", section 4.1", off={"ratio": 0.0})
def prune(
    ratio: float = 0.3, scope: Scope = Scope.GLOBAL, at: Point = Point.UPDATE
) -> Defense:
    """Drops the smallest share of the coordinates of what a client sends."""
    return at_point(at, Prune(ratio, scope))


@preset("dssgd", DSSGD, off={"share": 1.0, "threshold": 0.0})
def dssgd(
    share: float = 0.1, threshold: float = 0.0001, at: Point = Point.UPDATE
) -> Defense:
    """Sends a random share of the coordinates above a threshold."""
    return at_point(at, RandomSelection(share, threshold))


@preset(
    "dssgd-noise",
    DSSGD,
    off={"share": 1.0, "threshold": 0.0, "bound": 1e6, "epsilon": NO_CLIP},
)
def dssgd_noise(
    share: float = 0.1,
    threshold: float = 0.0001,
    bound: float = 0.001,
    epsilon: float = 1.0,  # of one coordinate
    at: Point = Point.UPDATE,
) -> Defense:
    """Sends a random share of the coordinates, bounded and with Laplace noise."""
    noise = SharedNoise(epsilon, bound)
    return at_point(at, RandomSelection(share, threshold, noise))


@preset("quantile-clip", "Andrew et al. 2021", off=OFF)
def quantile_clip(
    clip: float = 4.0,
    sigma: float = 6.0,
    quantile: float = 0.5,
    rate: float = 0.2,
    count_sigma: float = 5.0,
    at: Point = Point.PER_EXAMPLE,
) -> Defense:
    """Clips to a tracked quantile of the norms; noise follows the bound."""
    return at_point(at, QuantileClip(clip, sigma, quantile, rate, count_sigma))


@preset("adaclip", "Pichapati et al. 2019", off={"clip": 1e6, "sigma": 0.0})
def adaclip(
    clip: float = 4.0,
    sigma: float = 6.0,
    mean_decay: float = 0.99,
    variance_decay: float = 0.9,
    at: Point = Point.PER_EXAMPLE,
) -> Defense:
    """Clips and noises each coordinate on a learned scale."""
    return at_point(at, AdaClip(clip, sigma, mean_decay, variance_decay))


def _l1_clip(alpha: float, learning_rate: float) -> Clip:
    if not learning_rate > 0:
        raise InputError(f"learning_rate must be positive, got {learning_rate}")
    return Clip(as_schedule("alpha", alpha), Scope.GLOBAL, Norm.L1)


@preset("dpfl", DPFL + ", Algorithm 2", off=OFF_LAPLACE)
def dpfl(
    epsilon: float = 1.0,
    alpha: float = 1.0,
    learning_rate: float = 0.01,
    importance: Importance = (),  # from `pogz`; () = an even split
) -> Defense:
    """Laplace noise on the update, budget split by the layers' importance (PoGZ)."""
    clip = _l1_clip(alpha, learning_rate)
    noise = LayerwiseLaplace(epsilon, 2 * learning_rate * alpha, importance)
    return defend("", update=(clip, noise))


dpfl_even = alias(
    "dpfl-even",
    "dpfl",
    DPFL + ", Table II",
    "Laplace noise on the update, budget split evenly over the layers.",
    without="importance",
)


@preset("lip", DPFL + ", section V (LIP)", off=OFF_LAPLACE)
def lip(
    epsilon: float = 1.0,
    alpha: float = 1.0,
    learning_rate: float = 0.01,
    layers: tuple[str, ...] = (),  # () = the dense ones
) -> Defense:
    """Laplace noise on the dense layers only; the convolutions are sent as they are."""
    clip = _l1_clip(alpha, learning_rate)
    chosen: Selection = NamedLayers(layers) if layers else DenseLayers()
    scale = FixedSensitivity(as_schedule("alpha", 2 * learning_rate * alpha))
    noise = LaplaceNoise(as_schedule("epsilon", epsilon), scale)
    return defend("", update=(clip, OnLayers(noise, chosen)))


@preset("ldp-sgd", "Matsumoto et al. 2022, Algorithms 1 and 2")
def ldp_sgd(
    epsilon: float = 1.0,
    clip: float = 1.0,
    as_printed: bool = False,  # the server's factor as the paper has it
) -> Defense:
    """Each client sends a random direction that hides its gradient (epsilon-LDP)."""
    return defend(
        "",
        update=(LdpRandomizer(epsilon, clip),),
        server=(Debias(epsilon, clip, as_printed),),
    )
