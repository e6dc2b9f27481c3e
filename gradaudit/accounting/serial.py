"""Answers as plain values, for JSON and the report. Infinity is the word `inf`."""

import math
from typing import Any

from gradaudit.accounting.account import Account
from gradaudit.accounting.privacy import Privacy, View

Plain = dict[str, Any]


def number(value: float) -> float | str:
    """Returns the number, or a word where JSON has none."""
    return value if math.isfinite(value) else "inf"


def account_as_plain(account: Account) -> Plain:
    """Returns all methods and what the question was."""
    methods = account.methods.items()
    return {
        "methods": {name: number(spent.epsilon) for name, spent in methods},
        "delta": account.delta,
        "delta_spent": {name: spent.delta for name, spent in methods},
        "infinite_because": {
            name: spent.reason for name, spent in methods if spent.reason
        },
        "steps": account.steps,
        "unit": account.unit.value,
        "neighbouring": account.unit.relation,
        "convention": account.convention,
        "notes": list(account.notes),
    }


def privacy_as_plain(privacy: Privacy) -> Plain:
    """Returns claimed, accounted and effective epsilon, the views and the verdict."""
    verdict = privacy.guarantee
    common = account_as_plain(privacy.claimed) if privacy.claimed else {"methods": {}}
    effective = privacy.effective
    return common | {
        "defense": privacy.defense,
        "unit": privacy.unit.value,
        "neighbouring": privacy.unit.relation,
        "delta": privacy.delta,
        "steps": privacy.steps,
        "q": privacy.q,
        "sampling": privacy.sampling.value,
        "tensors": privacy.tensors,
        "epsilon": {
            "claimed": number(privacy.claimed_epsilon),
            "accounted": number(privacy.accounted_epsilon),
            "effective": number(privacy.effective_epsilon),
            "effective_at_best": number(privacy.at_best),
        },
        "effective_methods": (
            account_as_plain(effective)["methods"] if effective else {}
        ),
        "views": [_view_as_plain(view) for view in privacy.views],
        "guarantee": {
            "verdict": verdict.verdict,
            "valid": verdict.valid,
            "reasons": list(verdict.reasons),
            "notes": list(verdict.notes),
            "claimed_multiplier": verdict.claimed_multiplier,
            "effective_multiplier": verdict.effective_multiplier,
        },
    }


def _view_as_plain(view: View) -> Plain:
    return {
        "type": view.leakage,
        "epsilon": number(view.epsilon),
        "releases": view.releases,
        "q": view.q,
        "reason": view.reason,
    }
