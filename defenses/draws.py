"""Random numbers in the shape of a tree: one flat draw, cut into tensors."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import threefry_2x32

from gradaudit.types import Key

Sampler = Callable[[Key, tuple[int, ...]], jax.Array]

_ONE = np.float32(1.0).view(np.uint32)
_ABOVE_MINUS_ONE = np.nextafter(np.float32(-1), np.float32(0))


def standard_normal(key: Key, shape: tuple[int, ...]) -> jax.Array:
    """Returns independent N(0, 1) numbers, float32; equal keys give equal bytes.

    `jax.random.normal` hashes one counter per number and keeps half of the hash, so
    that the draw can be cut over devices; training draws whole trees on one device,
    where keeping both halves is three times faster.
    """
    if str(jax.random.key_impl(key)) != "threefry2x32":
        return jax.random.normal(key, shape)
    counters = jax.lax.iota(jnp.uint32, int(np.prod(shape)))
    bits = threefry_2x32(jax.random.key_data(key), counters)
    # 23 random bits as the mantissa of a number in [1, 2), then U[-1, 1).
    mantissa = jax.lax.shift_right_logical(bits, jnp.uint32(9)) | _ONE
    unit = 2 * jax.lax.bitcast_convert_type(mantissa, jnp.float32) - 3
    normal = jax.lax.erf_inv(jnp.maximum(unit, _ABOVE_MINUS_ONE)) * np.sqrt(2)
    return jnp.asarray(normal.reshape(shape), jnp.float32)


def draw_like(
    key: Key, leaves: list[jax.Array], sampler: Sampler, units: int | None = None
) -> list[jax.Array]:
    """Returns standard noise in the shapes of one unit of the leaves (units, ...).

    With `units` there is a leading axis of that many independent draws.
    """
    sizes = [int(np.prod(leaf.shape[1:])) for leaf in leaves]
    lead = () if units is None else (units,)
    flat = sampler(key, (*lead, sum(sizes)))
    parts = jnp.split(flat, np.cumsum(sizes)[:-1], axis=-1)
    return [
        part.reshape(lead + leaf.shape[1:])
        for part, leaf in zip(parts, leaves, strict=True)
    ]
