"""One run from its spec to its result; and `ga.audit(...)`, which runs them all."""

import sys
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradaudit.audit.audit import AuditResult


class _Audit(types.ModuleType):
    """This folder, which can be called: the function has the folder's name."""

    def __call__(self, *arguments: Any, **named: Any) -> "AuditResult":
        """Runs an audit: see `gradaudit.audit.audit.audit`."""
        from gradaudit.audit.audit import audit

        return audit(*arguments, **named)


sys.modules[__name__].__class__ = _Audit
