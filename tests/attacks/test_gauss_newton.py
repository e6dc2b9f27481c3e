"""Gauss-Newton: the same objective as residuals, and steps that L-BFGS can't take."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradaudit as ga
from gradaudit.attacks import GaussNewton, Matching, Stop
from gradaudit.attacks.distances import Cosine, RelativeL2, SquaredL2, TensorCosine
from gradaudit.attacks.gauss_newton import _linear
from gradaudit.attacks.objective import Objective
from gradaudit.attacks.optimizers import Best, Standing
from gradaudit.attacks.priors import SmallPixels, Smooth, TotalVariation
from gradaudit.attacks.priors import residuals as of_prior
from gradaudit.evidence import Evidence

KEY = jax.random.key(1)
TREE = {
    "conv": jax.random.normal(KEY, (4, 3)),
    "output": jax.random.normal(jax.random.fold_in(KEY, 1), (5,)),
}
OTHER = jax.tree.map(lambda leaf: 0.7 * leaf + 0.1, TREE)
DISTANCES = [SquaredL2(), RelativeL2(), Cosine(), TensorCosine()]


def squares(parts):
    return sum(float(jnp.sum(jnp.square(part))) for part in parts)


@pytest.mark.parametrize("distance", DISTANCES)
def test_the_squares_of_the_residuals_are_the_distance(distance):
    parts = distance.residuals(OTHER, TREE)
    assert squares(parts) == pytest.approx(float(distance(OTHER, TREE)), rel=1e-5)


EVIDENCE = {
    "exact": {},
    "sparse": {"sparse": True, "thresholded": True},
    "signs": {"signs": True},
    "laplace": {"peaked": True},
}


@pytest.mark.parametrize("kind", EVIDENCE)
@pytest.mark.parametrize("distance", DISTANCES)
def test_the_squares_of_what_is_unexplained_are_the_misfit(distance, kind):
    units = jax.tree.map(lambda leaf: leaf[None], OTHER)
    known = Evidence.exact(units).noisier([jnp.asarray(0.1), jnp.asarray(0.3)])
    known = dataclasses.replace(known, **EVIDENCE[kind])
    read = jax.tree.map(lambda leaf: jnp.where(jnp.abs(leaf) < 0.3, 0.0, leaf), TREE)
    parts = distance.unexplained(known, read)
    rough = 1e-2 if kind == "laplace" else 1e-5  # what is nearly 0 is squared there
    assert squares(parts) == pytest.approx(
        float(distance.misfit(known, read)), rel=rough
    )


@pytest.mark.parametrize("prior", [TotalVariation(0.3), Smooth(2.0), SmallPixels(2.0)])
def test_the_squares_of_a_priors_residuals_are_its_penalty(prior):
    images = jax.random.normal(KEY, (2, 6, 5, 1))
    found = squares([of_prior(prior, images)])
    assert found == pytest.approx(float(prior(images)), rel=0.05)


def test_products_with_the_jacobian_are_its_products():
    def function(x):
        return jnp.stack([x[0] * x[1], jnp.sin(x[1]), x[2] ** 2, x[0]])

    at = jnp.asarray([0.5, 1.0, -2.0])
    value, forward, backward = _linear(function, at)
    jacobian = jax.jacobian(function)(at)
    np.testing.assert_allclose(value, function(at))
    rows, columns = jnp.arange(4.0), jnp.arange(3.0)
    np.testing.assert_allclose(forward(columns), jacobian @ columns, rtol=1e-6)
    np.testing.assert_allclose(backward(rows), rows @ jacobian, rtol=1e-6)


@pytest.mark.parametrize("explicit", [0, 100], ids=["by products", "written out"])
def test_badly_scaled_least_squares_are_solved_in_a_few_steps(explicit):
    """Columns whose sizes differ by a million, and a bend."""
    sizes = jnp.logspace(0, -3, 8)
    matrix = jax.random.normal(KEY, (30, 8)) * sizes
    truth = jax.random.normal(jax.random.fold_in(KEY, 2), (8,))

    def residuals(x):
        return matrix @ (x - truth) + 0.1 * (matrix @ (x - truth)) ** 2

    function = Objective(lambda x: jnp.sum(residuals(x) ** 2), residuals)
    optimizer = GaussNewton(products=40, explicit=explicit)
    position = jnp.zeros(8)
    memory, best = optimizer.init(position), Best.start(position)

    @jax.jit
    def step(position, memory, best, iteration):
        at = Standing(position, memory, best, iteration, 30)
        return optimizer.iterate(function, None, at)

    for iteration in range(15):
        made = step(position, memory, best, iteration)
        position, memory, best = made.position, made.memory, made.best
    assert float(best.value) < 1e-9
    np.testing.assert_allclose(best.position, truth, atol=0.05)


def test_a_step_that_does_not_help_is_not_taken():
    def residuals(x):
        return jnp.where(jnp.abs(x) < 1e-3, x, jnp.nan)

    function = Objective(lambda x: jnp.sum(residuals(x) ** 2), residuals)
    optimizer = GaussNewton()
    at = jnp.full(3, 2.0)
    standing = Standing(at, optimizer.init(at), Best.start(at), 0, 9)
    made = jax.jit(lambda standing: optimizer.iterate(function, None, standing))(
        standing
    )
    assert bool(made.diverged) and (made.position == at).all()


@pytest.mark.slow
def test_a_batch_that_lbfgs_leaves_is_rebuilt():
    attack = Matching(
        distance=RelativeL2(weight=1.0),
        optimizer=GaussNewton(products=150),
        stop=Stop(iterations=40, patience=20, objective=1e-12),
    )
    result = ga.attack(
        type=1, method=attack, dataset="digits", victims=4, draws=2, batch_size=4,
        seed=3,
    )  # fmt: skip
    assert result.asr.value == 1.0 and result.rmse["worst"] < 0.01


def test_the_scales_of_the_unknowns_are_averaged_over_steps():
    """A step's few probes alone differ tenfold between equal columns."""
    matrix = jax.random.normal(KEY, (40, 200)) / jnp.sqrt(40.0)
    at, truth = jnp.zeros(200), jnp.sum(jnp.square(matrix), axis=0)
    linear = _linear(lambda x: matrix @ x + 1.0, at)
    optimizer = GaussNewton(probes=4, window=8)
    memory, errors = optimizer.init(at), []
    for iteration in range(16):
        step = jnp.asarray(iteration)
        memory, slope = optimizer._probed(linear, memory, step)
        errors.append(float(jnp.std(jnp.log(memory.scales / truth))))
    assert errors[-1] < 0.45 * errors[0]
    np.testing.assert_allclose(jnp.mean(memory.scales / truth), 1.0, atol=0.1)
    np.testing.assert_allclose(slope, matrix.T @ linear.residual, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("again", [0, 2])
def test_what_a_border_cuts_off_a_step_is_made_up_for(again):
    """Most unknowns are at a border, as a digit's pixels are.

    Their columns are nearly parallel: a step that is only cut off leads nowhere.
    """
    matrix = 1.0 + 0.1 * jax.random.normal(KEY, (60, 40))
    matrix = matrix.at[:, 20:].multiply(1e-2)
    truth = jnp.where(jnp.arange(40) % 4 == 0, 0.5, 0.0)

    def residuals(x):
        return matrix @ (x - truth)

    function = Objective(lambda x: jnp.sum(residuals(x) ** 2), residuals)
    optimizer = GaussNewton(products=80, explicit=0, again=again)
    position = jnp.full(40, 0.5)
    memory, best = optimizer.init(position), Best.start(position)

    @jax.jit
    def step(position, memory, best, iteration):
        at = Standing(position, memory, best, iteration, 30)
        return optimizer.iterate(function, lambda x: jnp.clip(x, 0.0, 1.0), at)

    for iteration in range(6):
        made = step(position, memory, best, iteration)
        position, memory, best = made.position, made.memory, made.best
    assert (float(best.value) < 1e-9) == (again > 0)
