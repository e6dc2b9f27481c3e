"""Defenses: what is done to a gradient before anybody else can read it."""

if __name__ != "gradaudit.defenses":
    raise ImportError(
        "this folder is the package gradaudit.defenses: "
        "write `import gradaudit.defenses`, not `import defenses`"
    )

from gradaudit.defenses.clipping import Norm, Scope, mean_of_units
from gradaudit.defenses.layers import pogz
from gradaudit.defenses.local import randomize
from gradaudit.defenses.noise import NoiseAt
from gradaudit.defenses.parsing import PRESETS, Preset, parse
from gradaudit.defenses.published import (
    adaclip,
    dp_baseline,
    dp_dyn,
    dp_dyns,
    dp_dyns_cdecay,
    dp_dyns_l2max,
    dp_dynsigma,
    dpfl,
    dpfl_even,
    dssgd,
    dssgd_noise,
    fed_alpha_cdp,
    fed_alpha_cdp_sigma,
    fed_cdp,
    fed_cdp_decay,
    fed_sdp,
    fed_sdp_client,
    gaussian_noise,
    laplace_noise,
    ldp_sgd,
    lip,
    none,
    prune,
    quantile_clip,
)
from gradaudit.defenses.transforms import (
    Bound,
    Defense,
    FromFunction,
    Transform,
    check_state,
    compose,
    defend,
    init_states,
    is_independent,
    run,
)

__all__ = [
    "PRESETS",
    "Bound",
    "Defense",
    "FromFunction",
    "NoiseAt",
    "Norm",
    "Preset",
    "Scope",
    "Transform",
    "adaclip",
    "check_state",
    "compose",
    "defend",
    "dp_baseline",
    "dp_dyn",
    "dp_dyns",
    "dp_dyns_cdecay",
    "dp_dyns_l2max",
    "dp_dynsigma",
    "dpfl",
    "dpfl_even",
    "dssgd",
    "dssgd_noise",
    "fed_alpha_cdp",
    "fed_alpha_cdp_sigma",
    "fed_cdp",
    "fed_cdp_decay",
    "fed_sdp",
    "fed_sdp_client",
    "gaussian_noise",
    "init_states",
    "is_independent",
    "laplace_noise",
    "ldp_sgd",
    "lip",
    "mean_of_units",
    "none",
    "parse",
    "pogz",
    "prune",
    "quantile_clip",
    "randomize",
    "run",
]
