"""The JSON Schemas of result.json and audit.json, and the one check against them."""

import functools
import importlib.resources
import json
from collections.abc import Mapping
from typing import Any

from gradaudit.errors import InputError

RESULT, AUDIT = "result", "audit"


def schema(name: str) -> dict[str, Any]:
    """Returns the schema of `RESULT` or `AUDIT`."""
    folder = importlib.resources.files("gradaudit.report") / "schemas"
    text = (folder / f"{name}.schema.json").read_text(encoding="utf-8")
    value: dict[str, Any] = json.loads(text)
    return value


@functools.cache
def _validator(name: str) -> Any:
    from jsonschema import Draft202012Validator
    from referencing import Registry, Resource

    known = [schema(each) for each in (RESULT, AUDIT)]
    pairs = [(each["$id"], Resource.from_contents(each)) for each in known]
    return Draft202012Validator(schema(name), registry=Registry().with_resources(pairs))


def validate(value: Any, name: str, where: str = "the result") -> None:
    """Raises in words, with the place, if a document is not of its schema."""
    errors = sorted(_validator(name).iter_errors(value), key=lambda e: len(e.path))
    if not errors:
        return
    first = errors[0]
    place = "/".join(map(str, first.absolute_path)) or "its top"
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    raise InputError(
        f"{where} is no {name}.json of this version: at {place}: "
        f"{first.message[:300]}{more}"
    )


def kind_of(value: Any) -> str:
    """Returns whether a document says that it is an audit or a result."""
    audit = isinstance(value, Mapping) and value.get("kind") == AUDIT
    return AUDIT if audit else RESULT
