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

__all__ = [
    "CONVENTIONS",
    "METHODS",
    "Account",
    "Events",
    "Spent",
    "Unit",
    "account",
    "from_sensitivity_trace",
    "gaussian",
    "pure",
    "spend",
]
