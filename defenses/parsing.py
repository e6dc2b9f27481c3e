"""Defenses by name: the table of presets, and the words of the command line.

fed-cdp                                a preset with its defaults
fed-cdp:clip=4,sigma=6                 with parameters
fed-cdp:sigma=linear/15/4.85/100       a schedule: policy/start/end/rounds
fed-cdp:sigma=@sigmas.txt              a schedule from a file, a value per round
prune:ratio=0.3 + fed-cdp              one after the other
path/to/file.py:name                   your own, see docs/defenses.md
"""

import dataclasses
import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec

from gradaudit.defenses.schedules import Schedule, Table, decay
from gradaudit.defenses.transforms import Defense, compose, defend
from gradaudit.errors import InputError, named
from gradaudit.spec import rebuilds
from gradaudit.text import (
    call_with_text,
    load_user_object,
    read_number,
    read_value,
    users_code,
)

P = ParamSpec("P")


@dataclasses.dataclass(frozen=True)
class Preset:
    """A named defense. `off` are parameters under which it is the identity.

    `alias_of` names the preset that is the same thing under another paper's name.
    """

    name: str
    make: Callable[..., Defense]
    paper: str
    summary: str
    off: Mapping[str, Any] | None  # None = it can't be switched off
    alias_of: str | None = None

    @property
    def defaults(self) -> dict[str, Any]:
        """Returns the parameters and their default values."""
        parameters = inspect.signature(self.make).parameters.values()
        return {parameter.name: parameter.default for parameter in parameters}


PRESETS: dict[str, Preset] = {}


def preset(
    name: str, paper: str, off: Mapping[str, Any] | None = None
) -> Callable[[Callable[P, Defense]], Callable[P, Defense]]:
    """Registers a constructor; its docstring's first line is the summary.

    The defenses it makes carry name, paper, summary and parameters.
    """

    def register(construct: Callable[P, Defense]) -> Callable[P, Defense]:
        summary = (construct.__doc__ or "").partition("\n")[0]
        return _register(Preset(name, construct, paper, summary, off))

    return register


def alias(
    name: str, of: str, paper: str, summary: str, without: str = "", **defaults: Any
) -> Callable[..., Defense]:
    """Registers another paper's name for a preset, with that paper's defaults.

    `without` is a parameter that keeps its default.
    """
    known = PRESETS[of]
    parameters = [
        parameter.replace(default=defaults.get(parameter.name, parameter.default))
        for parameter in inspect.signature(known.make).parameters.values()
        if parameter.name != without
    ]
    construct = functools.wraps(known.make)(lambda **named: known.make(**named))
    construct.__name__ = construct.__qualname__ = name.replace("-", "_")
    construct.__doc__ = f"{summary}\n\nThe same as `{of}`."
    vars(construct)["__signature__"] = inspect.Signature(parameters)
    return _register(Preset(name, construct, paper, summary, known.off, of))


def _register(entry: Preset) -> Callable[..., Defense]:
    """Puts a preset into the table and returns its constructor."""
    signature = inspect.signature(entry.make)

    @rebuilds
    @functools.wraps(entry.make)
    def make(*args: Any, **kwargs: Any) -> Defense:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return dataclasses.replace(
            entry.make(**bound.arguments),
            name=entry.name,
            paper=entry.paper,
            summary=entry.summary,
            parameters=tuple(bound.arguments.items()),
            made_by=make,
        )

    PRESETS[entry.name] = dataclasses.replace(entry, make=make)
    return make


def parse(text: str | Defense) -> Defense:
    """Returns the defense that the text describes (see the module's docstring).

    What is a defense already is returned as it is.
    """
    if isinstance(text, Defense):
        return text
    parts = [part.strip() for part in text.split(" + ")]
    if not all(parts):
        raise InputError(f"a defense is missing beside a '+' in {text!r}")
    defenses = [_parse_one(part) for part in parts]
    return defenses[0] if len(defenses) == 1 else compose(*defenses)


def _parse_one(text: str) -> Defense:
    name, _, rest = text.partition(":")
    if name.endswith(".py"):
        return _load(name, *rest.partition(":")[::2])
    make = named("defense", name, PRESETS).make
    defense: Defense = call_with_text(name, make, rest, _read)
    return defense


def _read(what: str, text: str, kind: Any) -> Any:
    if isinstance(kind, types.UnionType) and Schedule in typing.get_args(kind):
        return _read_schedule(what, text)
    return read_value(what, text, kind)


def _read_schedule(what: str, text: str) -> float | Schedule:
    if text.startswith("@"):
        return Table.read(text[1:])
    if "/" not in text:
        number: float = read_number(what, text, float, "a number or a schedule")
        return number
    words = text.split("/")
    if len(words) != 4:
        raise InputError(f"{what}: write policy/start/end/rounds, got {text!r}")
    start, end = (read_number(what, word, float, "a number") for word in words[1:3])
    rounds = read_number(what, words[3], int, "a whole number of rounds")
    return decay(words[0], start, end, rounds)


def _load(path: str, name: str, arguments: str) -> Defense:
    """Returns `name` of a user's file: a defense, a constructor, or a transform."""
    found = load_user_object(path, name)
    shown = f"{path}:{name}"
    if callable(found):
        with users_code():
            found = call_with_text(shown, found, arguments, _read)
    elif arguments != "":
        raise InputError(f"{shown} takes no parameters, got {arguments!r}")
    if isinstance(found, Defense):
        return found
    if hasattr(found, "apply") and hasattr(found, "init"):
        return defend(name, per_example=(found,))
    raise InputError(
        f"{shown} must be a Defense, a Transform or a function that returns one, "
        f"got {'None' if found is None else type(found).__name__}"
    )
