"""Factored gradients are the gradients, and training with them is the same training."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradaudit import defenses
from gradaudit.defenses.clipping import (
    Norm,
    mean_of_units,
    takes_factors,
    unit_norms,
    weighted_means,
)
from gradaudit.federation.client import example_gradients
from gradaudit.models.gradients import (
    Outer,
    dense_layers,
    factored_gradients,
    is_outer,
    one_hot,
)
from gradaudit.models.model import from_function
from gradaudit.models.networks import MODELS, build_model

TABLES = {"mlp": (30,)}
CLASSES = 4
FACTORED = {
    "fed-cdp:sigma=0,clip=0.1": True,
    "fed-alpha-cdp:sigma=0,clip=0.1": True,
    "quantile-clip:sigma=0,clip=0.1": True,
    "adaclip": False,  # reads coordinates
    "prune:ratio=0.3,at=per_example": False,
}


def batch(name: str):
    model = build_model(name, TABLES.get(name, (12, 12, 1)), CLASSES)
    params, buffers = (
        make(jax.random.key(0)) for make in (model.init, model.initial_buffers)
    )
    inputs = jax.random.uniform(jax.random.key(1), (3, *model.input_shape))
    return model, (params, buffers), inputs, jnp.array([2, 0, 3])


def written_out(tree):
    return jax.tree.map(
        lambda leaf: leaf.written_out() if is_outer(leaf) else leaf,
        tree,
        is_leaf=is_outer,
    )


def assert_close(actual, expected) -> None:
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        scale = np.abs(np.asarray(b)).max() + 1e-12
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-6 * scale)


@pytest.mark.parametrize(
    "name",
    [
        name if name == "cnn" else pytest.param(name, marks=pytest.mark.slow)
        for name in MODELS
        if not build_model(name, (12, 12, 1), CLASSES).coupled
    ],
)
def test_every_model_hands_out_the_factors_of_its_gradients(name):
    model, at, inputs, labels = batch(name)
    losses, plain = example_gradients(model, *at, inputs, one_hot(labels, CLASSES))
    targets = one_hot(labels, CLASSES)
    also, factored = factored_gradients(model, *at, inputs, targets)
    assert_close(also, losses)
    assert_close(written_out(factored), plain)
    outer = [leaf for leaf in jax.tree.leaves(factored, is_leaf=is_outer)]
    assert sum(map(is_outer, outer)) == len(dense_layers(model)) >= 1


@pytest.mark.parametrize("text", [text for text, able in FACTORED.items() if able])
def test_a_defense_does_the_same_to_factors(text):
    model, at, inputs, labels = batch("cnn")
    transforms = defenses.parse(text).per_example
    _, plain = example_gradients(model, *at, inputs, one_hot(labels, CLASSES))
    _, factored = factored_gradients(model, *at, inputs, one_hot(labels, CLASSES))
    states = tuple(transform.init(at[0]) for transform in transforms)
    key = jax.random.key(5)
    expected = mean_of_units(transforms, key, plain, states, 0)
    assert_close(mean_of_units(transforms, key, factored, states, 0), expected)


@pytest.mark.parametrize(("text", "able"), FACTORED.items())
def test_only_norms_and_sums_may_be_factored(text, able):
    assert takes_factors(defenses.parse(text).per_example) == able


@pytest.mark.parametrize("norm", Norm)
def test_norms_and_means_of_outer_products(norm):
    draw = np.random.default_rng(0).standard_normal
    outer = Outer(jnp.asarray(draw((4, 7))), jnp.asarray(draw((4, 3))))
    plain, factors = outer.written_out(), jnp.asarray(draw(4))
    assert outer.shape == plain.shape
    np.testing.assert_allclose(
        unit_norms(outer, norm), unit_norms(plain, norm), rtol=1e-5
    )
    means = [weighted_means([leaf], [factors])[0] for leaf in (outer, plain)]
    np.testing.assert_allclose(*means, rtol=1e-4, atol=1e-6)


def test_a_broken_factor_gives_a_broken_norm():
    left = jnp.array([[0.0, 0.0], [1.0, jnp.nan], [1.0, 1.0]])
    right = jnp.array([[jnp.inf, 1.0], [1.0, 1.0], [jnp.inf, 1.0]])
    assert not np.isfinite(unit_norms(Outer(left, right))).any()


def test_a_function_has_no_layers_to_hand_out():
    model = from_function(
        lambda params, x: x @ params, lambda key: jnp.zeros((5, 2)), (5,), 2
    )
    assert dense_layers(model) == ()
