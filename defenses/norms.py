"""Norms of each unit of a tree, safe for huge values, loud for broken ones."""

import enum
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from gradaudit.factored import Outer, Units

# Scaling by a power of two before squaring moves the range of float32 norms from
# 1e-19..1e19 to 1e-13..1e25 at the price of one multiplication.
_SCALE = 2.0**-20
# Few units are summed term by term: one pass over memory instead of a small matmul.
_MOST_UNROLLED = 16
_SMALLEST_NORMAL = float(np.finfo(np.float32).tiny)


class Norm(enum.Enum):
    """The norm that a clip bounds."""

    L1 = 1
    L2 = 2


class Scope(enum.Enum):
    """What a clip bounds: each tensor on its own, or a unit's whole tree."""

    TENSOR = "tensor"
    GLOBAL = "global"


def unit_norms(leaf: Units, norm: Norm = Norm.L2) -> jax.Array:
    """Returns the norm of each unit, (units,), of a tensor (units, ...).

    NaN and infinity in a unit, and an L2 norm beyond 1e25, give a norm that is NaN or
    infinite.
    """
    if isinstance(leaf, Outer):  # either norm of an outer product is a product
        return unit_norms(leaf.left, norm) * unit_norms(leaf.right, norm)
    # On CPU a reduction of a matrix over its rows is twice as fast as one over axes.
    rows = leaf.reshape(leaf.shape[0], -1).astype(jnp.float32)
    if norm is Norm.L1:
        return jnp.sum(jnp.abs(rows), axis=1)
    scaled = rows * _SCALE
    # A dot product: on CPU several times faster than a sum of squares.
    return jnp.sqrt(jnp.einsum("ui,ui->u", scaled, scaled)) / _SCALE


def joint_norms(norms: list[jax.Array], norm: Norm = Norm.L2) -> jax.Array:
    """Returns each unit's norm over all tensors from the norms of the tensors."""
    return unit_norms(jnp.stack(norms, axis=1), norm)


def clip_factors(norms: jax.Array, bound: jax.Array | float) -> jax.Array:
    """Returns min(1, bound / norm) per unit.

    A norm that is NaN, infinite, or so large that the factor is not a normal number
    gives NaN: a broken gradient stays visible and is never clipped to zero.
    """
    above = norms > bound
    factors = bound / jnp.where(above, norms, bound)
    lost = above & (factors < _SMALLEST_NORMAL)
    return jnp.where(lost | jnp.isnan(norms), jnp.nan, factors)


def scale_units(leaf: jax.Array, factors: jax.Array) -> jax.Array:
    """Returns each unit of a tensor (units, ...) times its factor, (units,)."""
    shape = (-1,) + (1,) * (leaf.ndim - 1)
    return (leaf * factors.reshape(shape)).astype(leaf.dtype)


def weighted_means(
    leaves: Sequence[Units], factors: Sequence[jax.Array]
) -> list[jax.Array]:
    """Returns sum_u factor[u] * leaf[u] / units for each tensor (units, ...)."""

    def mean(leaf: Units, factor: jax.Array) -> jax.Array:
        units = leaf.shape[0]
        if isinstance(leaf, Outer):
            return leaf.left.T @ (leaf.right * (factor / units)[:, None])
        if units > _MOST_UNROLLED:
            total = jnp.tensordot(factor, leaf, axes=1)
        else:
            total = factor[0] * leaf[0]
            for unit in range(1, units):
                total += factor[unit] * leaf[unit]
        return (total / units).astype(leaf.dtype)

    return [mean(leaf, factor) for leaf, factor in zip(leaves, factors, strict=True)]
