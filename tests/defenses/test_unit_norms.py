"""Norms of units in C are those of jax, for every shape, size and kind of number."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradaudit.defenses.clipping import TARGET, Norm, compiled, told_norms, unit_norms
from gradaudit.models.gradients import Outer

WITH_C = pytest.mark.skipif(not compiled(), reason="there was no C compiler")


@pytest.mark.parametrize("size", [0, 1, 15, 16, 63, 64, 65, 18_432])
@pytest.mark.parametrize("norm", Norm)
def test_told_norms_are_unit_norms(size, norm):
    rows = jax.random.normal(jax.random.key(size), (2, 3, size))
    told = jax.jit(jax.vmap(lambda leaf: told_norms(leaf, norm)))(rows)
    for client, units in enumerate(rows):
        expected = np.linalg.norm(np.asarray(units, np.float64), norm.value, axis=1)
        np.testing.assert_allclose(told[client], expected, rtol=1e-6)
        np.testing.assert_allclose(told_norms(units, norm), expected, rtol=1e-6)


@pytest.mark.parametrize("scale", [1e-10, 1.0, 1e24])
def test_tiny_and_huge_units_are_told(scale):
    rows = jnp.full((2, 100), scale, jnp.float32)
    np.testing.assert_allclose(told_norms(rows), 10 * scale, rtol=1e-5)


@pytest.mark.parametrize("broken", [np.nan, np.inf, 1e30])
@pytest.mark.parametrize("place", [0, 70])
def test_a_broken_unit_stays_visible_and_alone(broken, place):
    rows = jnp.ones((3, 71)).at[1, place].set(broken)
    told = np.asarray(told_norms(rows))
    assert not np.isfinite(told[1]) and np.isfinite(told[[0, 2]]).all()


def test_factors_need_not_be_written_out():
    left, right = jnp.arange(6.0).reshape(2, 3), jnp.ones((2, 4))
    outer = Outer(left, right)
    np.testing.assert_allclose(told_norms(outer), unit_norms(outer.written_out()))


@WITH_C
@pytest.mark.parametrize("platform", ["cpu", "cuda"])
def test_other_platforms_run_what_jax_compiles(platform):
    ours = jax.export.DisabledSafetyCheck.custom_call(TARGET)
    told = jax.jit(told_norms)
    export = jax.export.export(told, platforms=[platform], disabled_checks=[ours])
    assert (TARGET in export(jnp.ones((2, 3))).mlir_module()) == (platform == "cpu")
