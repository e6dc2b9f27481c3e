"""Arithmetic on trees, against numpy on the flattened coordinates."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradaudit import tree


def trees() -> dict[str, object]:
    def draw(seed: int, *shape: int) -> jax.Array:
        drawn = np.random.default_rng(seed).standard_normal(shape, np.float32)
        return jnp.asarray(drawn)

    return {
        "nested": {"conv1": {"kernel": draw(0, 3, 3, 2), "bias": draw(1, 2)}},
        "scalars": {"a": jnp.float32(3.0), "b": jnp.float32(-4.0)},
        "sequence": [draw(2, 4), (draw(3, 2, 2), draw(4, 1))],
        "one tensor": draw(5, 7),
        "zeros": {"a": jnp.zeros((2, 3)), "b": jnp.zeros(4)},
    }


TREES = pytest.mark.parametrize("name", trees())


def coordinates(values: object) -> np.ndarray:
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(values)])


@TREES
def test_flatten_round_trips_and_counts(name):
    values = trees()[name]
    vector, unflatten = tree.flatten(values)
    assert vector.shape == (tree.size(values),)
    np.testing.assert_array_equal(vector, coordinates(values))
    back = unflatten(vector)
    assert jax.tree.structure(back) == jax.tree.structure(values)
    jax.tree.map(np.testing.assert_array_equal, back, values)


@TREES
def test_arithmetic_is_that_of_the_coordinates(name):
    left = trees()[name]
    right = jax.tree.map(lambda leaf: jnp.cos(leaf) + 0.5, left)
    a, b = coordinates(left), coordinates(right)
    close = {"rtol": 1e-5, "atol": 1e-6}
    np.testing.assert_allclose(coordinates(tree.subtract(left, right)), a - b, **close)
    np.testing.assert_allclose(coordinates(tree.scale(-2.5, left)), -2.5 * a, **close)
    np.testing.assert_allclose(tree.dot(left, right), a @ b, **close)
    np.testing.assert_allclose(tree.global_norm(left), np.linalg.norm(a), **close)
    norms = coordinates(tree.tensor_norms(left))
    np.testing.assert_allclose(np.sqrt(np.sum(norms**2)), np.linalg.norm(a), **close)
    assert len(norms) == len(jax.tree.leaves(left))


@TREES
@pytest.mark.parametrize("bound", [0.01, 1.0, 1e6])
def test_clip_bounds_the_norm_and_keeps_what_is_inside(name, bound):
    values = trees()[name]
    clipped = tree.clip(values, bound)
    norm = float(tree.global_norm(values))
    assert float(tree.global_norm(clipped)) <= bound * (1 + 1e-5)
    if norm <= bound:
        jax.tree.map(np.testing.assert_array_equal, clipped, values)
    else:  # same direction, on the sphere
        np.testing.assert_allclose(
            coordinates(clipped), coordinates(values) * bound / norm, rtol=1e-5
        )


def test_clipping_never_hides_a_broken_gradient():
    for poison in (jnp.nan, jnp.inf):
        broken = {"a": jnp.array([1.0, poison]), "b": jnp.ones(2)}
        assert not tree.is_finite(broken)
        assert not tree.is_finite(tree.clip(broken, 1.0))
    assert tree.is_finite({"a": jnp.ones(3), "b": jnp.zeros(())})


def test_clipping_zero_has_a_finite_derivative_free_value():
    zeros = {"a": jnp.zeros(3)}
    assert tree.is_finite(tree.clip(zeros, 1.0))
    assert float(tree.global_norm(tree.clip(zeros, 0.0))) == 0.0


def test_names_are_paths_in_leaf_order():
    values = {"output": {"kernel": 1, "bias": 2}, "conv1": {"kernel": 3}, "z": [4, 5]}
    named = dict(zip(tree.names(values), jax.tree.leaves(values), strict=True))
    assert named == {
        "conv1/kernel": 3,
        "output/bias": 2,
        "output/kernel": 1,
        "z/0": 4,
        "z/1": 5,
    }
