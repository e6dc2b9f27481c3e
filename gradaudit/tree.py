"""Arithmetic on trees of arrays: norms, names, flattening. A "tensor" is one leaf."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from numpy.typing import NDArray

from gradaudit.types import PyTree


def names(tree: PyTree) -> tuple[str, ...]:
    """Returns the path of every tensor, e.g. `conv1/kernel`, in leaf order."""
    paths, _ = jax.tree_util.tree_flatten_with_path(tree)
    return tuple(
        "/".join(str(getattr(key, "key", getattr(key, "idx", key))) for key in path)
        for path, _ in paths
    )


def named(tree: PyTree) -> dict[str, NDArray[Any]]:
    """Returns every tensor by its path, as files hold them."""
    leaves = (np.asarray(leaf, order="C") for leaf in jax.tree.leaves(tree))
    return dict(zip(names(tree), leaves, strict=True))


def size(tree: PyTree) -> int:
    """Returns the number of coordinates."""
    return sum(int(leaf.size) for leaf in jax.tree.leaves(tree))


def flatten(tree: PyTree) -> tuple[jax.Array, Callable[[jax.Array], PyTree]]:
    """Returns the tree as one vector, and the function that undoes it."""
    vector, unflatten = ravel_pytree(tree)
    return vector, unflatten


def subtract(left: PyTree, right: PyTree) -> PyTree:
    """Returns left - right."""
    return jax.tree.map(jnp.subtract, left, right)


def scale(factor: jax.Array | float, tree: PyTree) -> PyTree:
    """Returns factor * tree."""
    return jax.tree.map(lambda leaf: factor * leaf, tree)


def dot(left: PyTree, right: PyTree) -> jax.Array:
    """Returns the inner product over all tensors."""
    products = jax.tree.map(lambda a, b: jnp.sum(a * b), left, right)
    return jnp.sum(jnp.stack(jax.tree.leaves(products)))


def tensor_norms(tree: PyTree) -> PyTree:
    """Returns the L2 norm of each tensor."""
    return jax.tree.map(lambda leaf: jnp.sqrt(jnp.sum(jnp.square(leaf))), tree)


def global_norm(tree: PyTree) -> jax.Array:
    """Returns the L2 norm of all tensors together."""
    return jnp.sqrt(dot(tree, tree))


def is_finite(tree: PyTree) -> jax.Array:
    """Returns whether every coordinate is finite."""
    finite = [jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)]
    return jnp.all(jnp.stack(finite))
