"""Models: the papers' networks, your own, and their gradients."""

from gradaudit.models.adapters import from_flax
from gradaudit.models.adapters_torch import from_torch
from gradaudit.models.model import Model, from_function
from gradaudit.models.networks import MODELS, build_model

__all__ = [
    "MODELS",
    "Model",
    "build_model",
    "from_flax",
    "from_function",
    "from_torch",
]
