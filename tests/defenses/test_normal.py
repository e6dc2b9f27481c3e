"""The generator of normal numbers: its hash, its formula, its law."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.random import threefry_2x32
from scipy import special, stats

from gradaudit.defenses import normal
from gradaudit.defenses.normal import (
    BITS_TARGET,
    TARGET,
    _normal_from,
    compiled,
    noisy_sums,
    standard_normal,
    threefry,
)

WITH_C = pytest.mark.skipif(not compiled(), reason="there was no C compiler")


def normal_in_c(bits):
    numbers = jax.ShapeDtypeStruct(bits.shape, jnp.float32)
    return jax.ffi.ffi_call(BITS_TARGET, numbers)(bits)


def test_threefry_is_that_of_jax():
    key = jax.random.key_data(jax.random.key(3))
    counters = jnp.arange(1000, dtype=jnp.uint32)
    ours = jnp.concatenate(threefry(key, counters[:500], counters[500:]))
    np.testing.assert_array_equal(ours, threefry_2x32(key, counters))


@pytest.mark.parametrize(
    "formula",
    [_normal_from, pytest.param(normal_in_c, marks=WITH_C)],
    ids=["jax", "C"],
)
@pytest.mark.parametrize(
    "every", [31, pytest.param(1, marks=pytest.mark.slow)], ids=["one of 31", "all"]
)
def test_normal_numbers_are_exact_to_float32_for_every_pattern_of_bits(every, formula):
    bits = np.arange(2**9, 2**32, 2**9, dtype=np.uint32)[::every]  # all but u = -1
    unit = 2.0 * (bits >> 9 | 0x3F800000).astype(np.uint32).view(np.float32) - 3
    exact = np.sqrt(2) * special.erfinv(unit.astype(np.float64))
    ours = np.asarray(formula(jnp.asarray(bits)), np.float64)
    np.testing.assert_allclose(ours, exact, rtol=1e-6, atol=1e-12)
    smallest = float(formula(jnp.zeros(1, jnp.uint32))[0])
    assert -6 < smallest < exact.min()


@WITH_C
@pytest.mark.parametrize("count", [0, 1, 2, 15, 31, 32, 33, 63, 65, 50_186, 50_187])
def test_compiled_or_not_the_numbers_are_the_same(count, monkeypatch):
    """One by one and side by side, whatever is left of a vector."""
    keys = jax.random.split(jax.random.key(count), (2, 3))
    draw = jax.vmap(jax.vmap(lambda key: standard_normal(key, (count,))))
    in_c = np.asarray(jax.jit(draw)(keys))
    alone = np.asarray(standard_normal(keys[1, 2], (count,)))
    np.testing.assert_array_equal(in_c[1, 2], alone)
    monkeypatch.setattr(normal, "compiled", lambda: False)
    np.testing.assert_allclose(in_c, jax.jit(draw)(keys), rtol=1e-6, atol=1e-12)


@WITH_C
@pytest.mark.parametrize("platform", ["cpu", "cuda"])
def test_other_platforms_run_what_jax_compiles(platform):
    draw = jax.jit(jax.vmap(lambda key: standard_normal(key, (5,))))
    ours = jax.export.DisabledSafetyCheck.custom_call(TARGET)
    keys = jax.random.split(jax.random.key(0), 2)
    export = jax.export.export(draw, platforms=[platform], disabled_checks=[ours])
    assert (TARGET in export(keys).mlir_module()) == (platform == "cpu")


@pytest.mark.parametrize("compiles", [pytest.param(True, marks=WITH_C), False])
@pytest.mark.parametrize("units", [1, 5])
def test_noisy_sums_are_the_sums_and_the_noise(units, compiles, monkeypatch):
    """Tensors whose rows end within a vector, at its end, and beyond it."""
    if not compiles:
        monkeypatch.setattr(normal, "compiled", lambda: False)
    shapes = [(1, 1), (1, 33), (7, 10), (3, 16), (2, 40), (1, 5)]
    random = np.random.default_rng(units)
    pairs = [
        tuple(random.normal(size=(3, units, n)).astype(np.float32) for n in shape)
        for shape in shapes
    ]
    keys, stds = jax.random.split(jax.random.key(units), 3), jnp.array([0.0, 1, 2])
    found = jax.jit(jax.vmap(noisy_sums))(keys, stds, pairs)
    sums = [np.einsum("bur,buc->brc", left, right) for left, right in pairs]
    flat = np.concatenate([one.reshape(3, -1) for one in sums], axis=1)
    noise = jax.vmap(lambda key: standard_normal(key, flat.shape[1:]))(keys)
    expected = flat + stds[:, None] * noise
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("count", [1, 2, 7, 100_001])
def test_any_number_of_them(count):
    draw = jax.jit(standard_normal, static_argnums=1)
    drawn = np.asarray(draw(jax.random.key(1), (count,)))
    assert drawn.shape == (count,)
    if count > 1000:
        assert stats.kstest(drawn, "norm").pvalue > 1e-3
        assert len(np.unique(drawn)) > 0.99 * count


def test_standard_normal_is_normal():
    draw = jax.jit(lambda key: standard_normal(key, (1_000_001,)))
    draws = np.asarray(draw(jax.random.key(0)), np.float64)
    assert draws.mean() == pytest.approx(0, abs=0.005)
    assert draws.std() == pytest.approx(1, abs=0.004)
    assert (draws**4).mean() == pytest.approx(3, abs=0.06)
    assert np.mean(np.abs(draws) > 3) == pytest.approx(0.0027, rel=0.1)
    halves = np.corrcoef(draws[:500_000], draws[500_000:1_000_000])[0, 1]
    assert abs(halves) < 0.01
    keys = jax.random.split(jax.random.key(1), 3)
    together = jax.vmap(lambda key: standard_normal(key, (7,)))(keys)
    np.testing.assert_array_equal(together[1], standard_normal(keys[1], (7,)))
    other = standard_normal(jax.random.key(0, impl="rbg"), (4,))
    assert other.shape == (4,)
