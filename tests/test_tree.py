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


def test_nan_and_infinities_are_seen():
    for poison in (jnp.nan, jnp.inf):
        assert not tree.is_finite({"a": jnp.array([1.0, poison]), "b": jnp.ones(2)})
    assert tree.is_finite({"a": jnp.ones(3), "b": jnp.zeros(())})


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
