"""Privacy accounting: what a plan claims, the tight truth, what is guaranteed."""

from gradaudit.privacy.calibrate import (
    Stop,
    affordable_rounds,
    calibrate,
    exhausted_at,
    first_reaching,
)
from gradaudit.privacy.events import (
    Events,
    Unit,
    from_sensitivity_trace,
    gaussian,
    pure,
)
from gradaudit.privacy.guarantee import Guarantee, View
from gradaudit.privacy.methods import (
    CONVENTIONS,
    METHODS,
    Account,
    Spent,
    account,
    spend,
)
from gradaudit.privacy.plan import PrivacyPlan, Sampling, copies_in
from gradaudit.privacy.statement import Privacy, epsilon, privacy_of

__all__ = [
    "CONVENTIONS",
    "METHODS",
    "Account",
    "Events",
    "Guarantee",
    "Privacy",
    "PrivacyPlan",
    "Sampling",
    "Spent",
    "Stop",
    "Unit",
    "View",
    "account",
    "affordable_rounds",
    "calibrate",
    "copies_in",
    "epsilon",
    "exhausted_at",
    "first_reaching",
    "from_sensitivity_trace",
    "gaussian",
    "privacy_of",
    "pure",
    "spend",
]
