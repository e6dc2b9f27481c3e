"""Privacy accounting: five published methods, the tight truth, what is guaranteed."""

from gradaudit.accounting.account import (
    CONVENTIONS,
    METHODS,
    Account,
    Spent,
    account,
    spend,
)
from gradaudit.accounting.events import (
    Events,
    Unit,
    from_sensitivity_trace,
    gaussian,
    pure,
)
from gradaudit.accounting.guarantee import Guarantee
from gradaudit.accounting.inverse import Stop, calibrate, exhausted_at, first_reaching
from gradaudit.accounting.privacy import Privacy, View, epsilon
from gradaudit.accounting.release import Sampling

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
