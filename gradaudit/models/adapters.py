"""Your own model: from a function, from flax, from torch, or from a Python file."""

from gradaudit.errors import InputError, require
from gradaudit.models.adapters_flax import from_flax
from gradaudit.models.adapters_torch import from_torch
from gradaudit.models.model import Model, from_function
from gradaudit.models.networks import MODELS, build_model
from gradaudit.text import load_user_object, takes, users_code

__all__ = ["from_flax", "from_function", "from_torch", "is_file", "model_for"]

_FILE = ".py:"


def is_file(text: str) -> bool:
    """Whether a text names a Python file and something in it."""
    return _FILE in text or text.endswith(".py")


def model_for(
    text: str, input_shape: tuple[int, ...] | None = None, classes: int | None = None
) -> Model:
    """Returns the model of a text: a name of the table, or `path/to/file.py:build`.

    `build()` or `build(input_shape, classes)` returns a Model. A name needs the shape
    and the number of classes of the data.
    """
    if is_file(text):
        return _built(text, input_shape, classes)
    if input_shape is None or classes is None:
        known = f", one of {', '.join(MODELS)}," if text in MODELS else ""
        raise InputError(
            f"model {text!r}{known} is built for data of a shape, and there is none to "
            "ask: say --model path/to/file.py:build, whose build() returns a model"
        )
    return build_model(text, input_shape, classes)


def _built(
    text: str, input_shape: tuple[int, ...] | None, classes: int | None
) -> Model:
    path, _, name = text.rpartition(":") if _FILE in text else (text, "", "build")
    build = load_user_object(path, name or "build")
    with users_code():
        if isinstance(build, Model):
            made = build
        elif takes(build, 0):
            made = build()
        else:
            require(
                takes(build, 2),
                f"{text} must be a function build() or build(input_shape, classes)",
            )
            require(
                input_shape is not None,
                f"{text} asks for (input_shape, classes), and there is no data to take "
                "them from: make it build()",
            )
            made = build(input_shape, classes)
    require(
        isinstance(made, Model),
        f"{text} must return a gradaudit model, as gradaudit.models.from_torch, "
        f"from_flax or from_function make one; got {type(made).__name__}",
    )
    require(
        input_shape is None or made.input_shape == tuple(input_shape),
        f"{text} reads inputs of shape {made.input_shape}, the data has {input_shape}",
    )
    require(
        classes is None or made.classes >= classes,
        f"{text} has {made.classes} classes, the data {classes}",
    )
    return made
