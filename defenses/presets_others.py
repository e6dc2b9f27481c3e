"""Named defenses beside DP-SGD: compression, plain noise, adaptive, local."""

from gradaudit.defenses.adaptive import AdaClip, QuantileClip
from gradaudit.defenses.base import Defense, Transform, defend
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
    NO_CLIP,
    OFF,
    LaplaceNoise,
    plain_gaussian,
    plain_laplace,
)
from gradaudit.defenses.presets import preset
from gradaudit.defenses.schedules import as_schedule
from gradaudit.errors import require
from gradaudit.mechanism import Point

FED_ALPHA_CDP = "Wei et al. 2023 (Fed-alphaCDP)"


DPFL = "Zhu et al. 2021 (DPFL)"


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
def laplace_noise(scale: float = 0.0707, at: Point = Point.UPDATE) -> Defense:
    """Returns additive Laplace noise of scale b; the default has variance 0.01."""
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
    "dssgd",
    "Shokri & Shmatikov 2015",
    "Sends a random share of the coordinates above a threshold.",
    off={"share": 1.0, "threshold": 0.0},
)
def dssgd(
    share: float = 0.1, threshold: float = 0.0001, at: Point = Point.UPDATE
) -> Defense:
    """Returns distributed selective SGD without noise."""
    return at_point(at, RandomSelection(share, threshold))


@preset(
    "dssgd-noise",
    "Shokri & Shmatikov 2015",
    "Sends a random share of the coordinates, bounded and with Laplace noise.",
    off={"share": 1.0, "threshold": 0.0, "bound": 1e6, "epsilon": NO_CLIP},
)
def dssgd_noise(
    share: float = 0.1,
    threshold: float = 0.0001,
    bound: float = 0.001,
    epsilon: float = 1.0,
    at: Point = Point.UPDATE,
) -> Defense:
    """Returns distributed selective SGD; `epsilon` is that of one coordinate."""
    noise = SharedNoise(epsilon, bound)
    return at_point(at, RandomSelection(share, threshold, noise))


@preset(
    "quantile-clip",
    "Andrew et al. 2021",
    "Clips to a tracked quantile of the norms; noise follows the bound.",
    off=OFF,
)
def quantile_clip(
    clip: float = 4.0,
    sigma: float = 6.0,
    quantile: float = 0.5,
    rate: float = 0.2,
    count_sigma: float = 5.0,
    at: Point = Point.PER_EXAMPLE,
) -> Defense:
    """Returns quantile clipping from the first bound `clip`."""
    return at_point(at, QuantileClip(clip, sigma, quantile, rate, count_sigma))


@preset(
    "adaclip",
    "Pichapati et al. 2019",
    "Clips and noises each coordinate on a learned scale.",
    off={"clip": 1e6, "sigma": 0.0},
)
def adaclip(
    clip: float = 4.0,
    sigma: float = 6.0,
    mean_decay: float = 0.99,
    variance_decay: float = 0.9,
    at: Point = Point.PER_EXAMPLE,
) -> Defense:
    """Returns coordinate-wise AdaClip from the first bound `clip`."""
    return at_point(at, AdaClip(clip, sigma, mean_decay, variance_decay))


def _l1_clip(alpha: float) -> Clip:
    return Clip(as_schedule("alpha", alpha), Scope.GLOBAL, Norm.L1)


def _check_learning_rate(learning_rate: float) -> None:
    require(learning_rate > 0, f"learning_rate must be positive, got {learning_rate}")


@preset(
    "dpfl",
    DPFL + ", Algorithm 2",
    "Laplace noise on the update, budget split by the layers' importance (PoGZ).",
    off={"epsilon": NO_CLIP, "alpha": 1e6},
)
def dpfl(
    epsilon: float = 1.0,
    alpha: float = 1.0,
    learning_rate: float = 0.01,
    importance: Importance = (),
) -> Defense:
    """Returns DPFL; `importance` comes from `pogz`, without it the split is even."""
    _check_learning_rate(learning_rate)
    noise = LayerwiseLaplace(epsilon, 2 * learning_rate * alpha, importance)
    return defend("", update=(_l1_clip(alpha), noise))


@preset(
    "dpfl-even",
    DPFL + ", Table II",
    "Laplace noise on the update, budget split evenly over the layers.",
    off={"epsilon": NO_CLIP, "alpha": 1e6},
)
def dpfl_even(
    epsilon: float = 1.0, alpha: float = 1.0, learning_rate: float = 0.01
) -> Defense:
    """Returns DPFL's noise with an even split."""
    return dpfl(epsilon, alpha, learning_rate)


@preset(
    "lip",
    DPFL + ", section V (LIP)",
    "Laplace noise on the dense layers only; the convolutions are sent as they are.",
    off={"epsilon": NO_CLIP, "alpha": 1e6},
)
def lip(
    epsilon: float = 1.0,
    alpha: float = 1.0,
    learning_rate: float = 0.01,
    layers: tuple[str, ...] = (),
) -> Defense:
    """Returns noise on some layers: the dense ones, or those that are named."""
    _check_learning_rate(learning_rate)
    chosen: Selection = NamedLayers(layers) if layers else DenseLayers()
    scale = FixedSensitivity(as_schedule("alpha", 2 * learning_rate * alpha))
    noise = LaplaceNoise(as_schedule("epsilon", epsilon), scale)
    return defend("", update=(_l1_clip(alpha), OnLayers(noise, chosen)))


@preset(
    "ldp-sgd",
    "Matsumoto et al. 2022, Algorithms 1 and 2",
    "Each client sends a random direction that hides its gradient (epsilon-LDP).",
)
def ldp_sgd(
    epsilon: float = 1.0, clip: float = 1.0, as_printed: bool = False
) -> Defense:
    """Returns LDP-SGD; `as_printed` takes the server's factor as the paper has it."""
    return defend(
        "",
        update=(LdpRandomizer(epsilon, clip),),
        server=(Debias(epsilon, clip, as_printed),),
    )
