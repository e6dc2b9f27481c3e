"""The table of adversaries: a crafter and the black-box rule that fits it."""

import dataclasses

from gradaudit.ldp.blackbox import BlackRule, LargerChange, LossFell, SignsOfStep
from gradaudit.ldp.crafters import (
    Benign,
    Collusion,
    Crafter,
    DummyGradient,
    GradientFlip,
    InputPerturbation,
    ParameterRetrogression,
)


@dataclasses.dataclass(frozen=True)
class Adversary:
    """One row of Matsumoto et al. 2022, Table 1."""

    name: str
    crafter: Crafter
    black_rule: BlackRule
    access: str  # what the crafter and the server manipulate


_TABLE = (
    Adversary("benign", Benign(), LargerChange(), "nothing"),
    Adversary("input-perturbation", InputPerturbation(), LossFell(), "images"),
    Adversary(
        "parameter-retrogression", ParameterRetrogression(), LossFell(), "parameters"
    ),
    Adversary("gradient-flip", GradientFlip(), LossFell(), "gradients"),
    Adversary("collusion", Collusion(), LossFell(), "gradients; server: parameters"),
    Adversary("dummy-gradient", DummyGradient(), SignsOfStep(), "gradients"),
)
ADVERSARIES: dict[str, Adversary] = {entry.name: entry for entry in _TABLE}
