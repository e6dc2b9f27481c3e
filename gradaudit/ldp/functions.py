"""A mechanism from the user's own file: a function (key, vector) -> vector."""

import importlib.util
import inspect
from pathlib import Path

from gradaudit.errors import InputError, require, unknown_name
from gradaudit.ldp.release_game import Release


def load_function(text: str) -> Release | None:
    """Returns the function of `path.py:name` if it takes (key, vector), else None."""
    path_text, _, name = text.partition(":")
    if not path_text.endswith(".py") or not name.isidentifier():
        return None
    path = Path(path_text)
    require(path.is_file(), f"there is no file {path}")
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
    found = getattr(module, name, None)
    if found is None:
        known = [word for word in vars(module) if not word.startswith("_")]
        raise unknown_name(f"name in {path}", name, known)
    return found if _takes_two(found) else None


def _takes_two(found: object) -> bool:
    if not callable(found) or isinstance(found, type):
        return False
    required = [
        parameter
        for parameter in inspect.signature(found).parameters.values()
        if parameter.default is inspect.Parameter.empty
        and parameter.kind
        in (
            inspect.Parameter.POSITIONAL_ONLY,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
        )
    ]
    return len(required) == 2
