"""The table of named defenses: a constructor, a paper, one line for a person."""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec

from gradaudit.defenses.base import Defense

P = ParamSpec("P")


@dataclasses.dataclass(frozen=True)
class Preset:
    """A named defense. `off` are parameters under which it is the identity."""

    name: str
    make: Callable[..., Defense]
    paper: str
    summary: str
    off: Mapping[str, Any] | None

    @property
    def defaults(self) -> dict[str, Any]:
        """Returns the parameters and their default values."""
        parameters = inspect.signature(self.make).parameters.values()
        return {parameter.name: parameter.default for parameter in parameters}


PRESETS: dict[str, Preset] = {}


def preset(
    name: str, paper: str, summary: str, off: Mapping[str, Any] | None = None
) -> Callable[[Callable[P, Defense]], Callable[P, Defense]]:
    """Registers a constructor; the defenses it makes carry name, paper and parameters.

    `off` is None for a defense that can't be switched off by its parameters.
    """

    def register(construct: Callable[P, Defense]) -> Callable[P, Defense]:
        signature = inspect.signature(construct)

        @functools.wraps(construct)
        def make(*args: P.args, **kwargs: P.kwargs) -> Defense:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            return dataclasses.replace(
                construct(*args, **kwargs),
                name=name,
                paper=paper,
                summary=summary,
                parameters=tuple(bound.arguments.items()),
            )

        PRESETS[name] = Preset(name, make, paper, summary, off)
        return make

    return register
