"""Empirical local privacy: what adversaries can tell about a randomized gradient.

Six adversaries against LDP-SGD (Matsumoto, Liew, Takahashi, Oguchi 2022, "Measuring
Lower Bounds of Local Differential Privacy via Adversary Instantiations in Federated
Learning"), and the same game on any mechanism.
"""

from gradaudit.distinguish.adversaries import ADVERSARIES, Adversary, LdpConfig
from gradaudit.distinguish.any_mechanism import (
    MechanismReport,
    ReleaseResult,
    audit_release,
    mechanism_audit,
)
from gradaudit.distinguish.blackbox import Server
from gradaudit.distinguish.bounds import (
    Verdict,
    ceiling,
    empirical_epsilon,
    lower_bound,
    trials_needed,
)
from gradaudit.distinguish.game import Box
from gradaudit.distinguish.ldp_sgd import (
    LdpReport,
    LdpResult,
    audit,
    ldp_audit,
    norm_sweep,
)
from gradaudit.distinguish.subjects import Claim, Neighbours, of_defense, of_function

__all__ = [
    "ADVERSARIES",
    "Adversary",
    "Box",
    "Claim",
    "LdpConfig",
    "LdpReport",
    "LdpResult",
    "MechanismReport",
    "Neighbours",
    "ReleaseResult",
    "Server",
    "Verdict",
    "audit",
    "audit_release",
    "ceiling",
    "empirical_epsilon",
    "ldp_audit",
    "lower_bound",
    "mechanism_audit",
    "norm_sweep",
    "of_defense",
    "of_function",
    "trials_needed",
]
