"""Reconstruction attacks: what an adversary rebuilds from what leaked."""

if __name__ != "gradaudit.attacks":
    raise ImportError(
        "this folder is the package gradaudit.attacks: "
        "write `import gradaudit.attacks`, not `import attacks`"
    )

from gradaudit.attacks.analytic import Analytic
from gradaudit.attacks.base import Attack, Member, Victims
from gradaudit.attacks.ensembles import Together
from gradaudit.attacks.gauss_newton import GaussNewton
from gradaudit.attacks.lanes import Problem, Reading
from gradaudit.attacks.lbfgs import LBFGS
from gradaudit.attacks.matching import Matching, Stop
from gradaudit.attacks.optimizers import Adam, LineSearchLBFGS
from gradaudit.attacks.portfolio import Portfolio
from gradaudit.attacks.presets import (
    PRESETS,
    Preset,
    analytic,
    cpl,
    dlg,
    gradinv,
    idlg,
    strongest,
)
from gradaudit.attacks.search import Snapshot

__all__ = [
    "LBFGS",
    "PRESETS",
    "Adam",
    "Analytic",
    "Attack",
    "GaussNewton",
    "LineSearchLBFGS",
    "Matching",
    "Member",
    "Portfolio",
    "Preset",
    "Problem",
    "Reading",
    "Snapshot",
    "Stop",
    "Together",
    "Victims",
    "analytic",
    "cpl",
    "dlg",
    "gradinv",
    "idlg",
    "strongest",
]
