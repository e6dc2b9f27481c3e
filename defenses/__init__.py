"""Defenses: what is done to a gradient before anybody else can read it."""

if __name__ != "gradaudit.defenses":
    raise ImportError(
        "this folder is the package gradaudit.defenses: "
        "write `import gradaudit.defenses`, not `import defenses`"
    )

from gradaudit.defenses.base import Defense, Transform, init_states, run
from gradaudit.defenses.claims import compose, defend
from gradaudit.defenses.finite import check_finite
from gradaudit.defenses.fused import mean_of_units
from gradaudit.defenses.presets import (
    fed_alpha_cdp,
    fed_alpha_cdp_sigma,
    fed_cdp,
    fed_cdp_decay,
    fed_sdp,
    fed_sdp_client,
    gaussian_noise,
    laplace_noise,
    none,
    prune,
)
from gradaudit.defenses.registry import PRESETS, Preset

__all__ = [
    "PRESETS",
    "Defense",
    "Preset",
    "Transform",
    "check_finite",
    "compose",
    "defend",
    "fed_alpha_cdp",
    "fed_alpha_cdp_sigma",
    "fed_cdp",
    "fed_cdp_decay",
    "fed_sdp",
    "fed_sdp_client",
    "gaussian_noise",
    "init_states",
    "laplace_noise",
    "mean_of_units",
    "none",
    "prune",
    "run",
]
