"""Words of the command line: `name:key=value,...` and a user's `path/to/file.py:name`.

What a user wrote is run with care. Its prints go to stderr, so that stdout stays
clean, and whatever it raises, sys.exit() included, becomes an `InputError` that names
its file and line.
"""

import contextlib
import contextvars
import enum
import importlib.util
import inspect
import pathlib
import sys
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any

from gradaudit import files
from gradaudit.errors import InputError, unknown_name

Reader = Callable[[str, str, Any], Any]  # (what, text, annotation) -> value
_NUMBER = int | float


def call_with_text(
    name: str, make: Callable[..., Any], text: str, read: Reader | None = None
) -> Any:
    """Calls `make` with `key=value,...`, each value read as its annotation says.

    `read(what, text, annotation)` may replace `read_value` for richer types. Without
    an annotation the default says the kind; without either, what reads as a number is
    one, and the rest is text.
    """
    signature, hints = _signature(name, make)
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    known = {key: p for key, p in signature.parameters.items() if p.kind in named}
    arguments: dict[str, Any] = {}
    for item in filter(None, text.split(",")):
        key, equals, value = item.partition("=")
        key = key.strip().replace("-", "_")
        if equals == "":
            raise InputError(f"{name}: write key=value, got {item!r}")
        if key not in known:
            raise unknown_name(f"parameter of {name}", key, known)
        if key in arguments:
            raise InputError(f"{name}: {key} is given twice")
        kind = hints.get(key, _kind_of_default(known[key].default))
        arguments[key] = (read or read_value)(f"{name}: {key}", value.strip(), kind)
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise InputError(
            f"{name}: {error}; write {name}:key=value, or give it a default"
        ) from None
    return make(**arguments)


def _signature(
    name: str, make: Callable[..., Any]
) -> tuple[inspect.Signature, dict[str, Any]]:
    """Returns what `make` takes; annotations that can't be resolved count as none."""
    try:
        signature = inspect.signature(make)
    except (TypeError, ValueError):
        raise InputError(f"{name} does not say which parameters it takes") from None
    inner = inspect.unwrap(make)
    called = vars(inner).get("__init__") if isinstance(inner, type) else inner
    try:
        hints = typing.get_type_hints(called)
    except Exception:  # any name that the user's annotation may hold
        hints = {}
    return signature, hints


def _kind_of_default(default: Any) -> Any:
    if isinstance(default, (bool, str, enum.Enum)):
        return type(default)
    return _NUMBER if isinstance(default, (int, float)) else None


def read_value(what: str, text: str, kind: Any) -> Any:
    """Reads a word, a number, true/false, a choice, or a tuple of words or pairs."""
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        choices = {str(member.value): member for member in kind}
        return read_word(what, text.replace("-", "_"), choices)
    if typing.get_origin(kind) is tuple:
        return _read_tuple(what, text, typing.get_args(kind)[0])
    if kind is str:
        return text
    if kind is bool:
        return read_word(what, text, {"true": True, "false": False})
    if kind is int:
        return read_number(what, text, int, "a whole number")
    if kind is float:
        return read_number(what, text, float, "a number")
    if kind == _NUMBER:
        return read_number(what, text, _number, "a number")
    if kind is None:
        with contextlib.suppress(ValueError):
            return _number(text)
        return text
    raise InputError(f"{what} can't be given as text; use Python")


def _number(text: str) -> int | float:
    try:
        return int(text)
    except ValueError:
        return float(text)


def _read_tuple(what: str, text: str, item: Any) -> tuple[Any, ...]:
    """Reads `conv1/output` as names, `conv1*0.5/output*0.2` as (name, number)."""
    words = text.split("/")
    if typing.get_origin(item) is not tuple:
        return tuple(read_value(what, word, item) for word in words)
    pairs = [word.partition("*") for word in words]
    return tuple(
        (name, read_number(what, share, float, "name*share/name*share"))
        for name, _, share in pairs
    )


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


# (file, content) -> module: the same content gives the same objects, which are equal
_LOADED: dict[tuple[pathlib.Path, str], types.ModuleType] = {}
_SHOWN: dict[str, str] = {}  # the name of a file in tracebacks -> as the user wrote it


_trusted = contextvars.ContextVar("trusted", default=True)


@contextlib.contextmanager
def without_plug_ins(unless: bool = False) -> Iterator[None]:
    """Around what a file asks for: a Python file that it names is not run.

    `unless` whoever runs us says that it may be.
    """
    before = _trusted.set(unless and _trusted.get())
    try:
        yield
    finally:
        _trusted.reset(before)


def load_user_object(path: str | pathlib.Path, name: str) -> Any:
    """Returns what a user's Python file calls `name`.

    Raises `InputError` if there is no such file or name, or if the file can't be
    imported, with the line, and inside `without_plug_ins`. Call what is found
    inside `users_code`.
    """
    path = pathlib.Path(path)
    if not _trusted.get():
        raise InputError(
            f"the saved run names {path}, which would be run as code: read it, and "
            "then say --trust"
        )
    if not path.is_file():
        raise InputError(f"there is no file {path}")
    if name == "":
        raise InputError(f"say which name of {path} to use: {path}:name")
    module = _import(path)
    if not hasattr(module, name):
        public = [word for word in vars(module) if not word.startswith("_")]
        raise unknown_name(f"name in {path}", name, public)
    return getattr(module, name)


def _import(path: pathlib.Path) -> types.ModuleType:
    try:
        known = (path.resolve(), files.digest(path))
    except OSError as error:
        raise InputError(f"can't read {path}: {error.strerror}") from None
    if known in _LOADED:
        return _LOADED[known]
    name = f"_file_{len(_LOADED)}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path} can't be imported as Python")
    module = importlib.util.module_from_spec(spec)
    _SHOWN[str(module.__file__)] = str(path)
    sys.modules[name] = module  # dataclasses look their module up there
    try:
        with users_code("can't be imported"):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    _LOADED[known] = module
    return module


@contextlib.contextmanager
def users_code(failed: str = "failed") -> Iterator[None]:
    """Around calls of what a user wrote: prints go to stderr, errors become words.

    An error that did not pass through a user's file is raised as it is.
    """
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        where = _users_line(error)
        if where is None:
            raise
        said = next(iter(str(error).strip().splitlines()), "")
        if isinstance(error, SystemExit):
            said = f"it ends the program, sys.exit({said})"
        elif not isinstance(error, InputError):
            said = f"{type(error).__name__}: {said}".removesuffix(": ")
        raise InputError(f"{where} {failed}: {said}") from error


def _users_line(error: BaseException) -> str | None:
    """Returns the last line of a user's file that the error passed through."""
    if isinstance(error, SyntaxError) and error.filename in _SHOWN:
        return f"{_SHOWN[error.filename]}:{error.lineno}"
    found, step = None, error.__traceback__
    while step is not None:
        file = step.tb_frame.f_code.co_filename
        if file in _SHOWN:
            found = f"{_SHOWN[file]}:{step.tb_lineno}"
        step = step.tb_next
    return found


def takes(function: Any, count: int) -> bool:
    """Returns whether something can be called with this many positional arguments."""
    try:
        inspect.signature(function).bind(*[None] * count)
    except (TypeError, ValueError):
        return False
    return True


def written_at(function: Any) -> str | None:
    """Returns `file:line` of a function of a user's file, else None."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None or code.co_filename not in _SHOWN:
        return None
    return f"{_SHOWN[code.co_filename]}:{code.co_firstlineno}"
