"""L-BFGS follows a trace of `torch.optim.LBFGS` on the real attack.

The trace was made by benchmarks/torch_reference.py: three MNIST images, the CPL net,
three outer steps of 20 evaluations. Float rounding grows under L-BFGS, so that the
agreement is asked for over the first updates, and on the outcome.
"""

import dataclasses
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradaudit.attacks.distances import SquaredL2
from gradaudit.attacks.lbfgs import LBFGS, Memory
from gradaudit.attacks.objective import objective
from gradaudit.attacks.optimizers import Best, Standing
from gradaudit.attacks.starts import Layout
from gradaudit.models.convolution import Path, fastest
from gradaudit.models.gradients import one_hot, per_example_gradients
from gradaudit.models.networks import build_model
from gradaudit.types import Observation

OUTER, UPDATES = 3, 20


@dataclasses.dataclass(frozen=True)
class Problem:
    """What torch was given, in our layout."""

    params: dict
    images: np.ndarray
    labels: np.ndarray
    starts: np.ndarray  # (victims, pixels)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What one of the two did."""

    objective: np.ndarray  # (victims, evaluations)
    iterates: np.ndarray  # (victims, outer, pixels)
    evaluations: np.ndarray  # (victims, outer)


@pytest.fixture(scope="module")
def trace():
    path = pathlib.Path(__file__).parent.parent / "reference" / "torch_lbfgs.npz"
    with np.load(path) as stored:
        return dict(stored)


@pytest.fixture(scope="module")
def problem(trace):
    params = {
        f"conv{i + 1}": {
            "kernel": trace[f"conv{i}_weight"].transpose(2, 3, 1, 0),
            "bias": trace[f"conv{i}_bias"],
        }
        for i in range(4)
    }
    # torch flattens (channels, height, width), we (height, width, channels).
    dense = trace["dense_weight"].reshape(10, 12, 7, 7).transpose(2, 3, 1, 0)
    params["output"] = {"kernel": dense.reshape(588, 10), "bias": trace["dense_bias"]}
    return Problem(
        params=jax.tree.map(jnp.asarray, params),
        images=trace["images"].transpose(0, 2, 3, 1),
        labels=trace["labels"].astype(np.int32),
        starts=trace["starts"].transpose(0, 2, 3, 1).reshape(len(trace["starts"]), -1),
    )


@pytest.fixture(scope="module")
def torchs(trace):
    iterates = trace["iterates"].transpose(0, 1, 3, 4, 2)
    return Outcome(
        trace["objective"], iterates.reshape(3, OUTER, -1), trace["evaluations"]
    )


@pytest.fixture(scope="module")
def ours(problem):
    model = build_model("cpl", (28, 28, 1), 10)
    targets = one_hot(jnp.asarray(problem.labels), 10)
    layout = Layout((1, 28, 28, 1), 10, searches_labels=False)
    none = jnp.zeros((), jnp.int32)
    leaked = per_example_gradients(model, problem.params, {}, problem.images, targets)

    def run(optimizer: LBFGS, iterations: int):
        def one(gradient, start, label):
            observation = Observation(problem.params, gradient)
            evaluate = objective(
                SquaredL2(), (), layout, model, observation, False, label[None]
            )

            def step(carry, _):
                at = Standing(*carry, none, OUTER)
                progress = optimizer.iterate(evaluate, None, at)
                memory: Memory = progress.memory
                record = (memory.value, progress.position, progress.evaluations)
                return (progress.position, memory, progress.best), record

            begin = (start, optimizer.init(start), Best.start(start))
            return jax.lax.scan(step, begin, None, length=iterations)[1]

        return jax.jit(jax.vmap(one))(leaked, problem.starts, problem.labels)

    # One update per step shows the objective of every evaluation.
    values, _, _ = run(LBFGS(updates=1), UPDATES)
    _, iterates, evaluations = run(LBFGS(), OUTER)
    return Outcome(*map(np.asarray, (values, iterates, evaluations)))


# A search amplifies rounding, of which patches have more.
CLOSE = 10 if fastest() is Path.COMPILED else 9


@pytest.mark.parametrize(("updates", "tolerance"), [(CLOSE, 1e-3), (20, 1e-2)])
def test_objective_of_every_evaluation(ours, torchs, updates, tolerance):
    np.testing.assert_allclose(
        ours.objective[:, :updates], torchs.objective[:, :updates], rtol=tolerance
    )


def test_evaluations_per_outer_step(ours, torchs):
    np.testing.assert_array_equal(ours.evaluations, torchs.evaluations)


def test_first_outer_step_ends_at_the_same_picture(ours, torchs):
    np.testing.assert_allclose(ours.iterates[:, 0], torchs.iterates[:, 0], atol=1e-2)


def test_rmse_after_the_last_outer_step(problem, ours, torchs):
    truth = problem.images.reshape(len(problem.images), -1)

    def rmse(outcome):
        return np.sqrt(np.mean((outcome.iterates[:, -1] - truth) ** 2, axis=1))

    np.testing.assert_allclose(rmse(ours), rmse(torchs), rtol=0.15)
