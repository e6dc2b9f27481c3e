"""The table of adversaries, and the settings of an audit of LDP-SGD."""

import dataclasses
import math

from gradaudit.distinguish.blackbox import (
    BlackRule,
    LargerChange,
    LossFell,
    Server,
    SignsOfStep,
)
from gradaudit.distinguish.bounds import SIGNIFICANCE, check_epsilon
from gradaudit.distinguish.crafters import (
    Benign,
    Collusion,
    Crafter,
    DummyGradient,
    GradientFlip,
    InputPerturbation,
    ParameterRetrogression,
)
from gradaudit.distinguish.game import Box, check_significance, check_trials
from gradaudit.distinguish.whitebox import Cosine, WhiteRule
from gradaudit.errors import require


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


@dataclasses.dataclass(frozen=True)
class LdpConfig:
    """Six adversaries, two boxes, four epsilons, 10 measurements of 10,000 trials.

    The defaults are Matsumoto et al. 2022, section 4.1. `clients` is the number of
    clients whose answers one update averages (Table 3); only the black box sees it.
    """

    epsilons: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0)
    adversaries: tuple[Adversary, ...] = tuple(ADVERSARIES.values())
    boxes: tuple[Box, ...] = (Box.WHITE, Box.BLACK)
    trials: int = 10_000
    measurements: int = 10
    clip: float = 1.0
    clients: int = 1
    server: Server = Server()
    white_rule: WhiteRule = Cosine()
    significance: float = SIGNIFICANCE
    seed: int = 0

    def __post_init__(self) -> None:
        require(len(self.epsilons) > 0, "name at least one epsilon")
        for epsilon in self.epsilons:
            check_epsilon(epsilon)
        object.__setattr__(self, "epsilons", tuple(map(float, self.epsilons)))
        require(len(self.adversaries) > 0, "name at least one adversary")
        require(len(self.boxes) > 0, "name at least one box: white or black")
        check_trials(self.trials)
        require(
            self.measurements >= 1,
            f"measurements must be at least 1, got {self.measurements}",
        )
        require(
            math.isfinite(self.clip) and self.clip > 0,
            f"clip must be positive and finite, got {self.clip}",
        )
        require(self.clients >= 1, f"clients must be at least 1, got {self.clients}")
        check_significance(self.significance)
