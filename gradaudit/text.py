"""Parameters in the words of the command line: `name:key=value,key=value`."""

import inspect
import typing
from collections.abc import Callable
from typing import Any

from gradaudit.errors import InputError, unknown_name


def call_with_text(
    name: str,
    make: Callable[..., Any],
    text: str,
    read: Callable[[str, str, Any], Any] | None = None,
) -> Any:
    """Calls `make` with `key=value,...`, each value read as its annotation says.

    `read(what, text, annotation)` may replace `read_scalar` for richer types.
    """
    hints = typing.get_type_hints(inspect.unwrap(make))
    known = inspect.signature(make).parameters
    arguments = {}
    for item in filter(None, text.split(",")):
        key, equals, value = item.partition("=")
        key = key.strip().replace("-", "_")
        if not equals:
            raise InputError(f"{name}: write key=value, got {item!r}")
        if key not in known:
            raise unknown_name(f"parameter of {name}", key, known)
        reader = read or read_scalar
        arguments[key] = reader(f"{name}: {key}", value.strip(), hints[key])
    return make(**arguments)


def read_scalar(what: str, text: str, kind: Any) -> Any:
    """Reads a word, a number or true/false."""
    if kind is str:
        return text
    if kind is bool:
        return read_word(what, text, {"true": True, "false": False})
    if kind is int:
        return read_number(what, text, int, "a whole number")
    if kind is float:
        return read_number(what, text, float, "a number")
    raise InputError(f"{what} can't be given as text; use Python")


def read_number(what: str, text: str, kind: Callable[[str], Any], words: str) -> Any:
    """Reads a number, or says what was expected."""
    try:
        return kind(text)
    except ValueError:
        raise InputError(f"{what} must be {words}, got {text!r}") from None


def read_word(what: str, text: str, words: dict[str, Any]) -> Any:
    """Reads one of a few words."""
    if text.lower() not in words:
        raise InputError(f"{what} must be {' or '.join(words)}, got {text!r}")
    return words[text.lower()]
