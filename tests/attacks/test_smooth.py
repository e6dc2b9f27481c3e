"""The smooth prior: its weight follows from public images, and from nothing else."""

import numpy as np
import pytest

from gradaudit.attacks.priors import Smooth, apart, best_weight
from gradaudit.data import load_dataset


@pytest.fixture(scope="module")
def photographs():
    return np.asarray(load_dataset("photos").inputs[:32], np.float32)


def test_the_weight_without_public_data_is_what_the_photographs_give(photographs):
    """Fails if somebody sets it by how well attacks do."""
    assert Smooth.weight == pytest.approx(best_weight(photographs), rel=0.02)


def test_the_weight_that_is_chosen_cleans_best():
    """Twice and half of it leave more of the noise that it was chosen at."""
    from gradaudit.attacks import priors

    images = np.asarray(load_dataset("digits").inputs[:32], np.float32)
    weight = best_weight(images)
    noise = np.random.default_rng(7).standard_normal(images.shape, np.float32)

    def error(factor, deviation):
        strength = 0.5 * factor * weight * deviation**2
        found = priors._denoised(images + deviation * noise, strength)
        return np.sqrt(np.mean(np.square(np.clip(found, 0, 1) - images)))

    levels = np.geomspace(0.05, 1.0, 40)
    level = max(level for level in levels if error(1.0, level) <= 0.1)
    assert error(1.0, level) < min(error(2.5, level), error(0.4, level))


def test_cleaning_minimises_what_it_says():
    """No small change of the answer has less; constants stay as they are."""
    from gradaudit.attacks import priors

    rng = np.random.default_rng(0)
    noisy = rng.uniform(size=(1, 6, 6, 1)).astype(np.float32)

    def cost(image):
        pairs = sum(np.abs(np.diff(image, axis=a)).sum() for a in (1, 2))
        return 0.5 * np.sum((image - noisy) ** 2) + 0.2 * pairs

    found = priors._denoised(noisy, 0.2)
    moved = [found + 0.02 * rng.standard_normal(found.shape) for _ in range(200)]
    assert cost(found) <= min(map(cost, moved)) + 1e-4
    flat = np.full((1, 4, 4, 1), 0.3, np.float32)
    np.testing.assert_allclose(priors._denoised(flat, 0.5), flat, atol=1e-6)


def test_public_data_choose_the_weight_and_tables_have_none(photographs):
    digits = np.asarray(load_dataset("digits").inputs[:40])
    prior, weight = apart(Smooth(), digits)
    assert prior == Smooth(1.0) and weight == best_weight(digits[:32])
    assert apart(Smooth(2.0))[1] == 2.0
    assert apart(Smooth(), np.zeros((5, 30)))[1] == 0.0
    rough = np.random.default_rng(0).uniform(size=(8, 8, 8, 1)).astype(np.float32)
    assert best_weight(rough) < weight  # noise is not smooth
