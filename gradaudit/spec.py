"""Spec: plain data that rebuilds every part of a run, objects included.

`describe` turns a part into JSON and `rebuild` turns it back. Names of classes are
resolved inside gradaudit only, functions only if they are marked with `rebuilds` or
are activations of jax: a result file is data, it can't name code to run. What can't
be described is kept as the sentence why, and `rebuild` raises it.
"""

import base64
import dataclasses
import enum
import math
import os
import pathlib
import pkgutil
from collections.abc import Callable, Mapping
from typing import Any, Self, TypeVar

from gradaudit import files
from gradaudit.errors import InputError

F = TypeVar("F", bound=Callable[..., Any])

_ROOMS = "gradaudit."
_ACTIVATIONS = ("jax.nn:", "jax._src.nn.")
_MARK = "__gradaudit_rebuilds__"
# Where the parts of results that were saved earlier stand now.
_MOVED = {
    "gradaudit.attacks.relaxations": "gradaudit.attacks.starts",
    "gradaudit.columns": "gradaudit.data.dataset",
    "gradaudit.defenses.base": "gradaudit.defenses.transforms",
    "gradaudit.defenses.presets": "gradaudit.defenses.published",
    "gradaudit.models.adapters_flax": "gradaudit.models.adapters",
    "gradaudit.models.blocks": "gradaudit.models.convolution",
    "gradaudit.models.losses": "gradaudit.models.model",
    "gradaudit.models.residual": "gradaudit.models.deep_networks",
    "gradaudit.models.transformer": "gradaudit.models.deep_networks",
}
_TAGS = {"part", "enum", "call", "function", "tuple", "bytes", "float", "undescribed"}


def rebuilds(function: F) -> F:
    """Marks a function that a saved spec may call to make a part again."""
    setattr(function, _MARK, True)
    return function


@dataclasses.dataclass(frozen=True)
class Spec:
    """A command and its arguments, as plain data, and the user's files they name."""

    command: str
    arguments: Mapping[str, Any]  # described
    sources: Mapping[str, str] = dataclasses.field(default_factory=dict)  # path: digest

    @classmethod
    def of(cls, command: str, **arguments: Any) -> Self:
        """Describes a call; files that its texts name are kept with their digest."""
        found = {
            str(path): files.digest(path)
            for value in arguments.values()
            for path in _files_in(value)
        }
        return cls(command, {k: describe(v) for k, v in arguments.items()}, found)

    def plain(self) -> dict[str, Any]:
        """Returns what result.json holds."""
        return dataclasses.asdict(self)

    @classmethod
    def read(cls, path: pathlib.Path) -> Self:
        """Reads the spec of a result or audit file, of its folder, or a bare spec."""
        file = path
        if os.path.isdir(path):
            audit = path / "audit.json"
            file = audit if audit.exists() else path / "result.json"
        value = files.read_json(file, "result")
        value = value.get("spec", value) if isinstance(value, dict) else value
        if (
            not isinstance(value, dict)
            or not isinstance(value.get("command"), str)
            or not isinstance(value.get("arguments"), dict)
            or not isinstance(value.get("sources", {}), dict)
        ):
            raise InputError(
                f"{file} holds no spec (command and arguments): it is not a result of "
                "this version, so it can't be run again"
            )
        return cls(value["command"], value["arguments"], value.get("sources", {}))

    def call(self) -> dict[str, Any]:
        """Returns the arguments as objects; raises in words if they can't be had."""
        for name, known in self.sources.items():
            path = pathlib.Path(name)
            if not path.exists():
                raise InputError(
                    f"the run used {name}, which is not there: bring it back"
                )
            if files.digest(path) != known:
                raise InputError(
                    f"{name} has changed since the run: its result can't be repeated"
                )
        return {name: rebuild(value) for name, value in self.arguments.items()}


def _files_in(value: Any) -> list[pathlib.Path]:
    """Returns the user's files that a text names: data, or `file.py:name`."""
    if not isinstance(value, str):
        return []
    found = []
    for part in value.split(" + "):
        name = part.strip().partition(".py:")
        path = pathlib.Path(name[0] + ".py" if name[1] else name[0])
        looks = bool(path.suffix) or len(path.parts) > 1
        try:
            if looks and path.exists():
                found.append(path)
        except OSError:  # a text that is no path at all
            continue
    for word in value.replace(",", "=").split("="):
        if word.startswith("@") and pathlib.Path(word[1:]).is_file():
            found.append(pathlib.Path(word[1:]))
    return found


def describe(value: Any) -> Any:
    """Returns plain data that `rebuild` makes an equal value of."""
    if isinstance(value, enum.Enum):
        return {"enum": _name(type(value)), "member": value.name}
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, pathlib.Path):
        return str(value)
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, tuple):
        return {"tuple": [describe(entry) for entry in value]}
    if isinstance(value, list):
        return [describe(entry) for entry in value]
    if isinstance(value, Mapping):
        named = all(isinstance(key, str) for key in value)
        if named and not set(value) & _TAGS:
            return {key: describe(entry) for key, entry in value.items()}
    return _describe_object(value)


def _describe_object(value: Any) -> Any:
    made = getattr(value, "rebuilt_by", None)
    if made is not None and not isinstance(value, type):
        origin = made()
        if origin is not None:
            function, arguments = origin
            described = {name: describe(entry) for name, entry in arguments.items()}
            return {"call": _name(function), "arguments": described}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        kind = type(value)
        if kind.__module__.startswith(_ROOMS) and _found(_name(kind)) is kind:
            fields = [f for f in dataclasses.fields(value) if f.init]
            parts = {f.name: describe(getattr(value, f.name)) for f in fields}
            return {"part": _name(kind), "fields": parts}
    if callable(value) and hasattr(value, "__qualname__"):
        name = _name(value)
        if _found(name) is value and _may_be_named(name, value):
            return {"function": name}
    return {
        "undescribed": f"a {type(value).__module__}.{type(value).__qualname__} was "
        "given as an object that plain data can't rebuild: give it by name, or as "
        "path/to/file.py:name"
    }


def rebuild(value: Any) -> Any:
    """Returns the value that was described."""
    if isinstance(value, list):
        return [rebuild(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    tag = next(iter(set(value) & _TAGS), None)
    if tag is None:
        return {key: rebuild(entry) for key, entry in value.items()}
    try:
        return _REBUILDERS[tag](value)
    except InputError:
        raise
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise InputError(f"the spec's {tag} can't be rebuilt: {error}") from None


def _rebuild_part(value: dict[str, Any]) -> Any:
    kind = _resolved(value["part"])
    if not (isinstance(kind, type) and dataclasses.is_dataclass(kind)):
        raise InputError(
            f"the spec names {value['part']!r}, which is no part of gradaudit"
        )
    return kind(**{name: rebuild(entry) for name, entry in value["fields"].items()})


def _rebuild_enum(value: dict[str, Any]) -> Any:
    kind = _resolved(value["enum"])
    if not (isinstance(kind, type) and issubclass(kind, enum.Enum)):
        raise InputError(
            f"the spec names {value['enum']!r}, which is no choice of gradaudit"
        )
    return kind[value["member"]]


def _rebuild_call(value: dict[str, Any]) -> Any:
    function = _resolved(value["call"])
    if getattr(function, _MARK, False) is not True:
        raise InputError(
            f"the spec calls {value['call']!r}, which makes no part of a run"
        )
    arguments = value["arguments"].items()
    return function(**{name: rebuild(entry) for name, entry in arguments})


def _rebuild_function(value: dict[str, Any]) -> Any:
    name = value["function"]
    found = _found(name) if name.startswith((*_ACTIVATIONS, _ROOMS)) else None
    if found is None or not _may_be_named(name, found):
        raise InputError(f"the spec names the function {name!r}, which it may not")
    return found


def _may_be_named(name: str, function: Any) -> bool:
    """Activations of jax, and what gradaudit marks: nothing that does anything."""
    marked = name.startswith(_ROOMS) and getattr(function, _MARK, False) is True
    return marked or name.startswith(_ACTIVATIONS)


def _raise_undescribed(value: dict[str, Any]) -> Any:
    raise InputError(f"this result can't be run again: {value['undescribed']}")


_REBUILDERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "part": _rebuild_part,
    "enum": _rebuild_enum,
    "call": _rebuild_call,
    "function": _rebuild_function,
    "tuple": lambda value: tuple(rebuild(entry) for entry in value["tuple"]),
    "bytes": lambda value: base64.b64decode(value["bytes"]),
    "float": lambda value: float(value["float"]),
    "undescribed": _raise_undescribed,
}


def _name(value: Any) -> str:
    return f"{value.__module__}:{value.__qualname__}"


def _resolved(name: str) -> Any:
    if not name.startswith(_ROOMS):
        raise InputError(f"the spec names {name!r}, which is not inside gradaudit")
    return _found(name)


def _found(name: str) -> Any:
    """Returns what calls itself by this name, or None.

    There is no way through a module into what that module imports.
    """
    module, _, path = name.partition(":")
    name = f"{_MOVED.get(module, module)}:{path}"
    try:
        found = pkgutil.resolve_name(name)
        return found if _name(found) == name else None
    except (ImportError, AttributeError, ValueError):
        return None
