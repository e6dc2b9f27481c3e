"""Why a search on colour can't stop at twice its success with a hundredth of RMSE.

Near the answer matching is a quadratic, |J e|^2 of the error e. Of all searches that
learn of J by products with it conjugate gradients make that the smallest, and they know
the quadratic here: L-BFGS has a memory instead, no line search, and one that moves.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradaudit.attacks.starts import Patterned
from gradaudit.data import load_dataset
from gradaudit.models.gradients import one_hot
from gradaudit.models.networks import build_model
from gradaudit.tree import flatten


def curvature(model, key, image, label):
    """Returns J^T J at the truth, relative to what leaked, (n, n) in float64."""
    params, target = model.init(key), one_hot(jnp.asarray([label]), model.classes)

    def gradient(pixels):
        batch = pixels.reshape(1, *model.input_shape)
        return flatten(jax.grad(model.loss)(params, {}, batch, target))[0]

    _, push = jax.linearize(gradient, jnp.asarray(image).reshape(-1))
    columns = jax.jit(lambda rows: jax.lax.map(push, rows, batch_size=64))
    jacobian = np.asarray(columns(jnp.eye(image.size)), np.float64)
    return jacobian @ jacobian.T


def products(matrix, scale, error, levels):
    """Returns after how many products conjugate gradients have each RMSE."""
    error, found = error.astype(np.float64), []
    slope = -matrix @ error
    direction = slope / scale
    size = slope @ direction
    for count in range(10 * len(error)):
        while np.sqrt(np.mean(error**2)) <= levels[len(found)]:
            found.append(count)
            if len(found) == len(levels):
                return found
        image = matrix @ direction
        length = size / (direction @ image)
        error, slope = error + length * direction, slope - length * image
        size, before = slope @ (slope / scale), size
        direction = slope / scale + size / before * direction
    raise AssertionError(f"not at {levels[len(found)]}")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_hundredth_costs_more_than_twice_a_success(seed):
    photos = load_dataset("photos")
    model = build_model("cpl", photos.shape, photos.classes)
    start, network, which = jax.random.split(jax.random.key(seed), 3)
    index = int(jax.random.randint(which, (), 0, len(photos)))
    image = photos.inputs[index]
    matrix = curvature(model, network, image, photos.labels[index])
    begun = np.asarray(Patterned()(start, (1, *photos.shape))).reshape(-1)
    error = begun - image.reshape(-1)
    for name, scale in {
        "plain": np.ones(len(error)),
        "Jacobi": np.diag(matrix),
    }.items():
        tenth, hundredth = products(matrix, scale, error, (0.1, 0.01))
        print(f"{name}: RMSE 0.1 after {tenth} products, 0.01 after {hundredth}")
        assert hundredth > 2 * tenth
