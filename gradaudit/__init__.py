"""gradaudit: do your federated gradients leak, and does your defense stop it?

Everything public is reachable from here and loaded on first use, so that
`import gradaudit` (and the command line's `--help`) never waits for jax.
"""

import importlib
from typing import Any

__version__ = "0.1.0"  # packaging reads it without importing

# public name -> module that holds it
_EXPORTS = {
    "Dataset": "gradaudit.data",
    "InputError": "gradaudit.errors",
    "attack": "gradaudit.audit.attack",
    "attack_captured": "gradaudit.audit.captured_attack",
    "certificate": "gradaudit.privacy.certificate",
    "enough_noise": "gradaudit.audit.least_noise",
    "epsilon": "gradaudit.privacy",
    "identify": "gradaudit.audit.captured_line_up",
    "ldp_audit": "gradaudit.distinguish",
    "line_up": "gradaudit.audit.informed",
    "load": "gradaudit.report.result",
    "load_dataset": "gradaudit.data",
    "mechanism_check": "gradaudit.audit.mechanism_check",
    "train": "gradaudit.audit.train",
}
_MODULES = {
    "attacks",
    "audit",  # also a function: see gradaudit/audit/__init__.py
    "defenses",
    "models",
    "distinguish",
    "data",
    "errors",
    "federation",
    "privacy",
    "record",  # a module that can be called
}

__all__ = ["__version__", "plot", *sorted(_EXPORTS), *sorted(_MODULES)]


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(importlib.import_module(_EXPORTS[name]), name)
    if name in _MODULES:
        return importlib.import_module(f"gradaudit.{name}")
    if name == "plot":
        return importlib.import_module("gradaudit.report.figures")
    raise AttributeError(f"module 'gradaudit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
