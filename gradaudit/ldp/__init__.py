"""Empirical local privacy: what adversaries can tell about a randomized gradient.

Six adversaries against LDP-SGD (Matsumoto, Liew, Takahashi, Oguchi 2022, "Measuring
Lower Bounds of Local Differential Privacy via Adversary Instantiations in Federated
Learning"), and the same game on any mechanism.
"""

from gradaudit.ldp.adversaries import ADVERSARIES, Adversary
from gradaudit.ldp.audit import LdpResult, audit
from gradaudit.ldp.bounds import (
    Verdict,
    ceiling,
    empirical_epsilon,
    lower_bound,
    trials_needed,
)
from gradaudit.ldp.claims import Claim
from gradaudit.ldp.config import Box, LdpConfig
from gradaudit.ldp.mechanism_report import MechanismReport, mechanism_audit
from gradaudit.ldp.pairs import Neighbours
from gradaudit.ldp.release import ReleaseResult, audit_release
from gradaudit.ldp.report import LdpReport, ldp_audit
from gradaudit.ldp.server import Server
from gradaudit.ldp.subjects import of_defense, of_function
from gradaudit.ldp.sweep import norm_sweep

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
