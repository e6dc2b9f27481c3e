"""Norms of each unit of a tree, safe for huge values, loud for broken ones."""

import enum

import jax
import jax.numpy as jnp
import numpy as np

# Squares of float32 overflow beyond 1.8e19; this power of two keeps them finite.
_TINY_SCALE = 2.0**-80
_SMALLEST_NORMAL = float(np.finfo(np.float32).tiny)


class Norm(enum.Enum):
    """The norm that a clip bounds."""

    L1 = 1
    L2 = 2


class Scope(enum.Enum):
    """What a clip bounds: each tensor on its own, or a unit's whole tree."""

    TENSOR = "tensor"
    GLOBAL = "global"


def unit_norms(leaf: jax.Array, norm: Norm = Norm.L2) -> jax.Array:
    """Returns the norm of each unit, (units,), of a tensor (units, ...).

    NaN and infinity in a unit give a norm that is NaN or infinite.
    """
    axes = tuple(range(1, leaf.ndim))
    values = leaf.astype(jnp.float32)
    if norm is Norm.L1:
        return jnp.sum(jnp.abs(values), axes)
    plain = jnp.sum(jnp.square(values), axes)
    scaled = jnp.sum(jnp.square(values * _TINY_SCALE), axes)
    return jnp.where(
        jnp.isfinite(plain), jnp.sqrt(plain), jnp.sqrt(scaled) / _TINY_SCALE
    )


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
