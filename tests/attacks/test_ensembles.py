"""Restarts that have to do with each other, tables, and what batch norm remembers."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradaudit.attacks import Matching
from gradaudit.attacks.ensembles import Consistency, MedianVote, alignments
from gradaudit.attacks.matching import Stop
from gradaudit.attacks.optimizers import Adam
from gradaudit.attacks.priors import RunningStatistics, told
from gradaudit.attacks.starts import Layout, Mixed, MixedForm
from gradaudit.data import load_dataset
from gradaudit.data.dataset import Column
from gradaudit.data.formats.tabular import adult_columns
from gradaudit.errors import InputError
from gradaudit.models.networks import build_model
from gradaudit.types import Observation, Status
from tests.attacks.attack_cases import leak

COLUMNS = (
    Column("age"),
    Column("kind", ("a", "b", "c"), optional=True),
    Column("sex", ("x", "y")),
    Column("hours"),
)
ROWS = np.asarray(
    [
        [0.3, 1, 0, 0, 0, 1, 0.0],
        [1.0, 0, 0, 0, 1, 0, 0.7],  # of an unknown kind
        [0.5, 0, 0, 1, 1, 0, 1.0],
    ],
    np.float32,
)


@dataclasses.dataclass(frozen=True)
class Searched:
    """As much of a search as a coupling touches."""

    position: jax.Array
    best: "Searched.Best"  # noqa: F821 - a name only
    status: jax.Array


@dataclasses.dataclass(frozen=True)
class Value:
    value: jax.Array


def searched(positions, status=None):
    count = len(positions)
    ended = jnp.full(count, int(Status.RUNNING)) if status is None else status
    return Searched(jnp.asarray(positions), Value(jnp.arange(float(count))), ended)


def test_free_numbers_stand_for_the_rows_that_they_come_from():
    form = MixedForm(COLUMNS)
    free = form.free(jnp.asarray(ROWS))
    assert free.shape == (3, ROWS.shape[1] + 1)  # the unknown kind is one more
    np.testing.assert_allclose(form.inputs(free), ROWS, atol=0.01)
    boxed = form.boxed(free.shape)
    assert boxed[0].tolist() == [True, *[False] * 6, True]
    assert np.array_equal(form.free(form.inputs(free)).shape, free.shape)


def test_shares_of_a_category_sum_to_one_whatever_is_moved():
    form = MixedForm(COLUMNS)
    free = 5 * jax.random.normal(jax.random.key(0), (4, 8))
    inputs = np.asarray(form.inputs(free))
    np.testing.assert_allclose(inputs[:, 4:6].sum(axis=1), 1.0, rtol=1e-5)
    assert (inputs[:, 1:4].sum(axis=1) < 1.0).all()  # the rest is: unknown


def test_a_vote_takes_the_median_of_numbers_and_the_commonest_value():
    layout = Layout(ROWS.shape, 2, searches_labels=False, form=MixedForm(COLUMNS))
    pool = functools.partial(MedianVote().pool, layout)
    wrong = ROWS.copy()
    wrong[:, 0], wrong[:, 4:6] = 0.0, ROWS[:, [5, 4]]
    answers = np.stack([ROWS, wrong[[1, 2, 0]], ROWS[[2, 0, 1]], ROWS[[0, 2, 1]]])
    pooled = pool(jnp.asarray(answers), jnp.arange(4.0))
    np.testing.assert_allclose(pooled, ROWS, atol=1e-6)
    diverged = answers.copy()
    diverged[1] = np.nan
    pooled = pool(jnp.asarray(diverged), jnp.asarray([0.0, jnp.inf, 1.0, 2.0]))
    np.testing.assert_allclose(pooled, ROWS, atol=1e-6)


def test_batches_are_aligned_by_what_is_in_them():
    rng = np.random.default_rng(0)
    batch = rng.random((6, 5)).astype(np.float32)
    orders = [rng.permutation(6) for _ in range(4)]
    noisy = [batch[order] + 1e-3 * rng.random((6, 5)) for order in orders]
    batches = jnp.asarray(np.stack([batch, *noisy]), jnp.float32)
    found = np.asarray(alignments(batches, jnp.asarray(0)))
    for row, order in zip(found[1:], orders, strict=True):
        assert order[row].tolist() == list(range(6))


@pytest.mark.parametrize("weight", [0.0, 0.25, 1.0])
def test_consistency_draws_restarts_towards_their_mean(weight):
    layout = Layout((1, 3), 2, searches_labels=True)
    positions = np.random.default_rng(1).random((4, 5)).astype(np.float32)
    moved = Consistency(weight).couple(layout, searched(positions)).position
    mean = positions[:, :3].mean(axis=0)
    expected = positions[:, :3] + weight * (mean - positions[:, :3])
    np.testing.assert_allclose(moved[:, :3], expected, rtol=1e-5)
    np.testing.assert_array_equal(moved[:, 3:], positions[:, 3:])  # labels stay


def test_consistency_leaves_those_alone_that_have_ended():
    layout = Layout((2, 2), 2, searches_labels=False)
    positions = np.random.default_rng(2).random((3, 4)).astype(np.float32)
    status = jnp.asarray([Status.RUNNING, Status.CONVERGED, Status.RUNNING])
    moved = Consistency(0.5).couple(layout, searched(positions, status)).position
    np.testing.assert_array_equal(moved[1], positions[1])
    assert not np.allclose(moved[0], positions[0])


def test_a_pool_of_one_is_the_search_alone():
    table = load_dataset("cancer")
    model = build_model("mlp", table.shape, table.classes)
    observation, _ = leak(model, table.inputs[:2], table.labels[:2])
    stop = Stop(iterations=5, patience=9)
    one = Matching(relaxation=Mixed(), optimizer=Adam(0.1), stop=stop)
    pooled = dataclasses.replace(one, restarts=3, pooling=MedianVote())
    assert (pooled.trials, pooled.restarts) == (1, 3)
    found = pooled.reconstruct(jax.random.key(0), model, observation)
    assert found.inputs.shape == (2, 30)
    assert int(found.evaluations) == 3 * 5
    alone = dataclasses.replace(pooled, restarts=1)
    other = alone.reconstruct(jax.random.key(0), model, observation)
    assert int(other.evaluations) == 5
    assert np.isfinite(np.asarray(other.inputs)).all()
    assert np.asarray(other.inputs).min() >= 0
    assert np.asarray(other.inputs).max() <= 1


def test_statistics_are_matched_where_a_network_keeps_some(quick_jit):
    inputs = jnp.asarray(load_dataset("digits").inputs[:8])
    model = build_model("resnet-bn", (8, 8, 1), 10)
    params = model.init(jax.random.key(0))
    first = model.initial_buffers(jax.random.key(0))
    # Layer by layer, statistics follow from those before: a few rounds settle them.
    buffers = first
    settled = quick_jit(
        lambda kept: model.network.statistics({"params": params, **kept}, inputs)
    )
    for _ in range(8):
        buffers = settled(buffers)
    prior = RunningStatistics(1.0)
    penalty = quick_jit(
        lambda kept, at: told(prior, model, Observation(params, params, kept))(at)
    )
    assert float(penalty(buffers, inputs)) < 1e-4 < float(penalty(first, inputs))
    assert float(penalty(buffers, 1.0 - inputs)) > 1e-2
    plain = build_model("dpfl-2conv", (8, 8, 1), 10)
    assert float(told(prior, plain, Observation({}, {}))(inputs)) == 0.0


def test_adult_columns_are_its_features():
    assert sum(column.features for column in adult_columns()) == 105
    with pytest.raises(InputError, match="columns have 7 features"):
        dataclasses.replace(load_dataset("cancer"), columns=COLUMNS)
    with pytest.raises(InputError, match="weight"):
        Consistency(2.0)
