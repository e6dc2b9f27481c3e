"""Defenses in the words of the command line.

fed-cdp                                a preset with its defaults
fed-cdp:clip=4,sigma=6                 with parameters
fed-cdp:sigma=linear/15/4.85/100       a schedule: policy/start/end/rounds
fed-cdp:sigma=@sigmas.txt              a schedule from a file, a value per round
prune:ratio=0.3 + fed-cdp              one after the other
path/to/file.py:name                   your own, see docs/defenses.md
"""

import enum
import importlib.util
import pathlib
import types
import typing
from collections.abc import Callable
from typing import Any

from gradaudit.defenses.base import Defense
from gradaudit.defenses.claims import compose, defend
from gradaudit.defenses.presets import PRESETS
from gradaudit.defenses.schedules import Schedule, Table, decay
from gradaudit.errors import InputError, require, unknown_name
from gradaudit.text import call_with_text, read_number, read_scalar, read_word


def parse(text: str) -> Defense:
    """Returns the defense that the text describes (see the module's docstring)."""
    parts = [part.strip() for part in text.split(" + ")]
    require(all(parts), f"a defense is missing beside a '+' in {text!r}")
    defenses = [_parse_one(part) for part in parts]
    return defenses[0] if len(defenses) == 1 else compose(*defenses)


def _parse_one(text: str) -> Defense:
    name, _, rest = text.partition(":")
    if name.endswith(".py"):
        return _load(pathlib.Path(name), rest)
    if name not in PRESETS:
        raise unknown_name("defense", name, PRESETS)
    defense: Defense = _call(name, PRESETS[name].make, rest)
    return defense


def _call(name: str, make: Callable[..., Any], text: str) -> Any:
    return call_with_text(name, make, text, _read)


def _read(what: str, text: str, kind: Any) -> Any:
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return _read_enum(what, text, kind)
    if isinstance(kind, types.UnionType) and Schedule in typing.get_args(kind):
        return _read_schedule(what, text)
    if typing.get_origin(kind) is tuple:
        return _read_tuple(what, text, typing.get_args(kind)[0])
    return read_scalar(what, text, kind)


def _read_enum(what: str, text: str, kind: type[enum.Enum]) -> enum.Enum:
    words = {str(member.value): member for member in kind}
    member: enum.Enum = read_word(what, text.replace("-", "_"), words)
    return member


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


def _read_tuple(what: str, text: str, item: Any) -> tuple[Any, ...]:
    """Reads `conv1/output` as names, `conv1*0.5/output*0.2` as (name, number)."""
    words = text.split("/")
    if item is str:
        return tuple(words)
    pairs = [word.partition("*") for word in words]
    return tuple(
        (name, read_number(what, share, float, "name*share/name*share"))
        for name, _, share in pairs
    )


def _load(path: pathlib.Path, name: str) -> Defense:
    """Returns `name` of a user's file: a defense, a constructor, or a transform."""
    require(path.is_file(), f"there is no file {path}")
    name, _, arguments = name.partition(":")
    require(name != "", f"say which name of {path} to use: {path}:name")
    module = _import(path)
    if not hasattr(module, name):
        public = [word for word in vars(module) if not word.startswith("_")]
        raise unknown_name(f"name in {path}", name, public)
    found = getattr(module, name)
    if isinstance(found, Defense):
        return found
    if callable(found):
        found = _call(name, found, arguments)
        if isinstance(found, Defense):
            return found
    if hasattr(found, "apply") and hasattr(found, "init"):
        return defend(name, per_example=(found,))
    raise InputError(
        f"{path}:{name} must be a Defense, a Transform or a function that returns one, "
        f"got {type(found).__name__}"
    )


def _import(path: pathlib.Path) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path} can't be imported as Python")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise InputError(
            f"{path} can't be imported: {type(error).__name__}: {error}"
        ) from error
    return module
