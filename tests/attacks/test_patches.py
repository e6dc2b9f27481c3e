"""Transformers: what the gradient of learned positions gives away."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradaudit.attacks.analytic import Analytic
from gradaudit.audit.threat import all_fits
from gradaudit.data import load_dataset
from gradaudit.errors import InputError
from gradaudit.models.deep_networks import from_patches, patches
from gradaudit.models.networks import build_model
from tests.attacks.attack_cases import leak


@pytest.mark.parametrize("shape", [(8, 8, 1), (10, 7, 3), (32, 32, 3)])
def test_patches_make_the_image_that_they_are_of(shape):
    image = np.random.default_rng(0).random((1, *shape)).astype(np.float32)
    rows = patches(jnp.asarray(image), 4)[0]
    np.testing.assert_array_equal(from_patches(rows, 4, shape), image[0])


def test_one_example_of_a_transformer_is_rebuilt_without_a_search():
    digits = load_dataset("digits")
    model = build_model("vit", digits.shape, digits.classes)
    for index in range(2):
        own = slice(index, index + 1)
        observation, victim = leak(model, digits.inputs[own], digits.labels[own], index)
        found = Analytic().reconstruct(jax.random.key(0), model, observation)
        assert np.abs(np.asarray(found.inputs) - victim.inputs).max() < 1e-2
        assert int(found.labels[0]) == int(victim.labels[0])


def test_a_batch_of_a_transformer_has_no_closed_form():
    digits = load_dataset("digits")
    model = build_model("vit", digits.shape, digits.classes)
    observation, _ = leak(model, digits.inputs[:2], digits.labels[:2])
    with pytest.raises(InputError, match="mixes 2"):
        Analytic().reconstruct(jax.random.key(0), model, observation)


def test_every_network_is_attacked_by_somebody_and_refusals_have_words():
    fits = list(all_fits())
    ways = {(fit.model, fit.examples) for fit in fits if not fit.why}
    everything = {(fit.model, fit.examples) for fit in fits}
    assert everything - ways == {("resnet-bn-train", 1)}
    yes = {(fit.model, fit.attack, fit.examples) for fit in fits if not fit.why}
    assert {m for m, a, n in yes if (a, n) == ("analytic", 1)} == {
        "mlp",
        "mlp-wide",
        "vit",
    }
    assert {m for m, a, n in yes if (a, n) == ("spear", 8)} == {"mlp", "mlp-wide"}
    assert all(len(fit.why) > 20 for fit in fits if fit.why)
