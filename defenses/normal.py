"""Normal numbers for noise: the hash of jax and its formula, in one pass.

On CPU the pass is C (`normal_numbers.c`) that XLA calls; elsewhere, and where the
package was built without a C compiler, the same numbers up to rounding in jax.

Why it is here, although `jax.random.normal` exists: speed on CPU. 4 x 50,186 numbers,
one jitted call, fastest of 500, two cores with AVX-512, jax 0.10.2, twice: 0.50 ns a
number in C, 1.25 in jax's own operations as below, 2.67 by `jax.random.normal`. Without
AVX-512 (the same source compiled for AVX2, and for SSE4) a core takes 4.3 and 5.3 times
as long in C. `gradaudit bench run cost` measures a whole iteration of Fed-CDP.

What differs from `jax.random.normal`: both halves of a hash are kept, so that equal
keys give other numbers than jax's, and log(1 - u^2) is one log. What is the same, by
tests/defenses/test_normal.py: the hash, threefry 2x32, bit by bit on 1,000 counters;
normal numbers within 1e-6 of the exact ones for every pattern of bits but the lowest,
which is bounded, in C and in jax; moments, tails, and no correlation between the
halves. As in jax, 23 bits make a number, and this is no source for cryptography.
"""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from gradaudit import machine
from gradaudit.types import Key

TARGET = "gradaudit_normal_numbers"  # the names by which XLA knows the C
BITS_TARGET = "gradaudit_normal_of_bits"
SUMS_TARGET = "gradaudit_noisy_sums"

_PARITY = np.uint32(0x1BD11BDA)
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_ONE = np.float32(1.0).view(np.uint32)
# Giles 2010, Approximating the erfinv function, single precision: centre, tails.
_GILES = (
    (2.81022636e-08, -0.000200214257),
    (3.43273939e-07, 0.000100950558),
    (-3.5233877e-06, 0.00134934322),
    (-4.39150654e-06, -0.00367342844),
    (0.00021858087, 0.00573950773),
    (-0.00125372503, -0.0076224613),
    (-0.00417768164, 0.00943887047),
    (0.246640727, 1.00167406),
    (1.50140941, 2.83297682),
)

_ABOVE_MINUS_ONE = np.nextafter(np.float32(-1), np.float32(0))


def standard_normal(key: Key, shape: tuple[int, ...]) -> jax.Array:
    """Returns independent N(0, 1) numbers, float32; equal keys give equal bytes.

    `jax.random.normal` hashes one counter per number and keeps half of the hash, so
    that the draw can be cut over devices, and its hash is a loop on CPU. Training
    draws whole trees on one device: both halves kept and the loop unrolled into one
    fused pass is several times faster.
    """
    if str(jax.random.key_impl(key)) != "threefry2x32":
        return jax.random.normal(key, shape)
    count = int(np.prod(shape))
    words = jax.random.key_data(key)
    fused = functools.partial(normal_numbers, count=count)
    if not compiled():
        return fused(words).reshape(shape)
    return machine.in_c(TARGET, (count,), fused)(words).reshape(shape)


@functools.cache
def compiled() -> bool:
    """Returns whether the C was built with the package, and loads."""
    symbols = {
        TARGET: "normal_numbers",
        BITS_TARGET: "normal_of_bits",
        SUMS_TARGET: "noisy_sums",
    }
    return machine.offer_to_xla(machine.NORMAL_NUMBERS, symbols)


def noisy_sums(
    key: Key, std: jax.Array, pairs: Sequence[tuple[jax.Array, jax.Array]]
) -> jax.Array:
    """Returns sums over units of outer products, one behind the other, and noise.

    Of left (units, rows) and right (units, columns) each, float32. The noise is std
    times `standard_normal` of the key, up to rounding. In C what is summed stays in the
    cache until it is noisy.
    """
    count = sum(left.shape[1] * right.shape[1] for left, right in pairs)
    if str(jax.random.key_impl(key)) != "threefry2x32" or not compiled():
        sums = [(left.T @ right).reshape(-1) for left, right in pairs]
        return jnp.concatenate(sums) + std * standard_normal(key, (count,))

    def slowly(words: jax.Array, std: jax.Array, *flat: jax.Array) -> jax.Array:
        both = zip(flat[::2], flat[1::2], strict=True)
        sums = jnp.concatenate([(left.T @ right).reshape(-1) for left, right in both])
        return sums + std * normal_numbers(words, count)

    sides = [side for pair in pairs for side in pair]
    in_c = machine.in_c(SUMS_TARGET, (count,), slowly)
    return in_c(jax.random.key_data(key), std, *sides)


def normal_numbers(words: jax.Array, count: int) -> jax.Array:
    """Returns `count` numbers of a key's two words, in jax: where there is no C."""
    half = -(-count // 2)
    first = jax.lax.iota(jnp.uint32, half)
    halves = threefry(words, first, first + np.uint32(half))
    # Joined before they are used, or every use would hash the counters again.
    return _normal_from(jnp.concatenate(halves))[:count]


def threefry(
    key: jax.Array, left: jax.Array, right: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Returns the hash of pairs of counters: threefry 2x32, 20 rounds, unrolled.

    The same function as `jax.extend.random.threefry_2x32`.
    """
    keys = (key[0], key[1], key[0] ^ key[1] ^ _PARITY)
    left, right = left + keys[0], right + keys[1]
    for group in range(5):
        for distance in _ROTATIONS[group % 2]:
            left = left + right
            right = (right << np.uint32(distance)) | (right >> np.uint32(32 - distance))
            right = left ^ right
        left = left + keys[(group + 1) % 3]
        right = right + keys[(group + 2) % 3] + np.uint32(group + 1)
    return left, right


def _normal_from(bits: jax.Array) -> jax.Array:
    """Returns sqrt(2) erfinv(u) for u uniform in (-1, 1), in one pass.

    Giles's polynomials, as `jax.lax.erf_inv` has them, but log(1 - u^2) by one log:
    log1p would only sharpen it where the result no longer depends on it.
    """
    # 23 random bits as the mantissa of a number in [1, 2), then U[-1, 1).
    mantissa = jax.lax.shift_right_logical(bits, jnp.uint32(9)) | _ONE
    unit = 2 * jax.lax.bitcast_convert_type(mantissa, jnp.float32) - 3
    unit = jnp.maximum(unit, _ABOVE_MINUS_ONE)
    w = -jnp.log((1 - unit) * (1 + unit))
    central = w < 5
    x = jnp.where(central, w - 2.5, jnp.sqrt(w) - 3)
    total = jnp.zeros_like(x)
    for inner, outer in _GILES:
        total = total * x + jnp.where(central, np.float32(inner), np.float32(outer))
    return np.float32(2**0.5) * total * unit
