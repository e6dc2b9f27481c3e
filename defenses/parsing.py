"""Defenses in the words of the command line.

fed-cdp                                a preset with its defaults
fed-cdp:clip=4,sigma=6                 with parameters
fed-cdp:sigma=linear/15/4.85/100       a schedule: policy/start/end/rounds
fed-cdp:sigma=@sigmas.txt              a schedule from a file, a value per round
prune:ratio=0.3 + fed-cdp              one after the other
path/to/file.py:name                   your own, see docs/defenses.md
"""

import types
import typing
from typing import Any

from gradaudit.defenses.base import Defense, compose, defend
from gradaudit.defenses.presets import PRESETS
from gradaudit.defenses.schedules import Schedule, Table, decay
from gradaudit.errors import InputError, require, unknown_name
from gradaudit.text import (
    call_with_text,
    load_user_object,
    read_number,
    read_value,
    users_code,
)


def parse(text: str) -> Defense:
    """Returns the defense that the text describes (see the module's docstring)."""
    parts = [part.strip() for part in text.split(" + ")]
    require(all(parts), f"a defense is missing beside a '+' in {text!r}")
    defenses = [_parse_one(part) for part in parts]
    return defenses[0] if len(defenses) == 1 else compose(*defenses)


def _parse_one(text: str) -> Defense:
    name, _, rest = text.partition(":")
    if name.endswith(".py"):
        return _load(name, *rest.partition(":")[::2])
    if name not in PRESETS:
        raise unknown_name("defense", name, PRESETS)
    defense: Defense = call_with_text(name, PRESETS[name].make, rest, _read)
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
    require(len(words) == 4, f"{what}: write policy/start/end/rounds, got {text!r}")
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
    else:
        require(arguments == "", f"{shown} takes no parameters, got {arguments!r}")
    if isinstance(found, Defense):
        return found
    if hasattr(found, "apply") and hasattr(found, "init"):
        return defend(name, per_example=(found,))
    raise InputError(
        f"{shown} must be a Defense, a Transform or a function that returns one, "
        f"got {'None' if found is None else type(found).__name__}"
    )
