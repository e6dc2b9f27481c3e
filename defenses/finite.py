"""Refusing trees that hold NaN or infinity, at the edge and in words."""

import jax
import numpy as np

from gradaudit.errors import InputError
from gradaudit.types import PyTree


def check_finite(tree: PyTree, what: str) -> None:
    """Raises `InputError` that names the first tensor of `tree` that is not finite.

    For concrete arrays, outside jit: inside, transforms let NaN and infinity through
    so that whoever reads the result can report a status.
    """
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        values = np.asarray(leaf)
        if np.issubdtype(values.dtype, np.number) and not np.all(np.isfinite(values)):
            bad = int(np.size(values) - np.sum(np.isfinite(values)))
            name = jax.tree_util.keystr(path) or "the array"
            raise InputError(
                f"{what}: {name} holds {bad} of {values.size} values that are not "
                "finite; lower the learning rate or look at the data"
            )
