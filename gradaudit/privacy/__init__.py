"""Privacy accounting: five published methods, the tight truth, what is guaranteed."""

from gradaudit.privacy.account import (
    CONVENTIONS,
    METHODS,
    Account,
    Spent,
    account,
    spend,
)
from gradaudit.privacy.calibrate import Stop, calibrate, exhausted_at, first_reaching
from gradaudit.privacy.events import (
    Events,
    Unit,
    from_sensitivity_trace,
    gaussian,
    pure,
)
from gradaudit.privacy.guarantee import Guarantee
from gradaudit.privacy.plan import Sampling
from gradaudit.privacy.statement import Privacy, View, epsilon

__all__ = [
    "CONVENTIONS",
    "METHODS",
    "Account",
    "Events",
    "Guarantee",
    "Privacy",
    "Sampling",
    "Spent",
    "Stop",
    "Unit",
    "View",
    "account",
    "calibrate",
    "epsilon",
    "exhausted_at",
    "first_reaching",
    "from_sensitivity_trace",
    "gaussian",
    "pure",
    "spend",
]
