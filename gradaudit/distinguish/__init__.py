"""Empirical local privacy: what adversaries can tell about a randomized gradient.

Six adversaries against LDP-SGD (Matsumoto, Liew, Takahashi, Oguchi 2022, "Measuring
Lower Bounds of Local Differential Privacy via Adversary Instantiations in Federated
Learning"), and the same game on any mechanism.
"""

from gradaudit.distinguish.any_mechanism import (
    MechanismReport,
    ReleaseResult,
    audit_release,
    mechanism_audit,
)
from gradaudit.distinguish.blackbox import Server
from gradaudit.distinguish.bounds import (
    Cell,
    Family,
    Verdict,
    ceiling,
    empirical_epsilon,
    lower_bound,
    trials_needed,
)
from gradaudit.distinguish.crafters import ADVERSARIES, Adversary
from gradaudit.distinguish.game import Box
from gradaudit.distinguish.ldp_sgd import LdpConfig, LdpReport, ldp_audit, play_cells
from gradaudit.distinguish.subjects import Claim, Neighbours, of_defense, of_function
from gradaudit.distinguish.whitebox import norm_sweep

__all__ = [
    "ADVERSARIES",
    "Adversary",
    "Box",
    "Cell",
    "Claim",
    "Family",
    "LdpConfig",
    "LdpReport",
    "MechanismReport",
    "Neighbours",
    "ReleaseResult",
    "Server",
    "Verdict",
    "audit_release",
    "ceiling",
    "empirical_epsilon",
    "ldp_audit",
    "lower_bound",
    "mechanism_audit",
    "norm_sweep",
    "of_defense",
    "of_function",
    "play_cells",
    "trials_needed",
]
