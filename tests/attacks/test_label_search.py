"""Labels as unknowns: a user's own strategies, keys, and the order of local steps."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradaudit.attacks import Matching, Stop, Victims, cpl
from gradaudit.attacks.labels import Counts, Joint, Known, LastLayer
from gradaudit.attacks.objective import guessed_gradient
from gradaudit.attacks.starts import Constant, Normal, Start, first_position
from gradaudit.data import load_dataset
from gradaudit.models.gradients import one_hot, unrolled_update
from gradaudit.models.networks import build_model
from gradaudit.tree import global_norm
from gradaudit.types import Leakage, LocalTraining, Observation
from tests.attacks.attack_cases import MODEL, digit_victims, leak, objective_of

KEY = jax.random.key(0)


@dataclasses.dataclass(frozen=True)
class Unsaid:
    """A user's strategy that leaves the labels to the search."""

    def __call__(self, key, model, observation):
        return None


@dataclasses.dataclass(frozen=True)
class Hunch:
    """A user's strategy that gives scores to start from."""

    label: int
    strength: float

    def __call__(self, key, model, observation):
        examples = observation.training.examples
        row = self.strength * one_hot(jnp.asarray([self.label]), model.classes)
        return jnp.broadcast_to(row, (examples, model.classes))


def labels_of(strategy, iterations):
    model, victims, digits = digit_victims()
    attack = Matching(
        init=Normal(), labels=strategy, stop=Stop(iterations=iterations, objective=1e-9)
    )
    return attack.reconstruct_many(KEY, model, victims), digits.labels[: victims.count]


def test_a_users_strategy_that_says_nothing_is_optimised_jointly():
    own, truth = labels_of(Unsaid(), 40)
    built_in, _ = labels_of(Joint(), 40)
    np.testing.assert_array_equal(own.inputs, built_in.inputs)
    np.testing.assert_array_equal(own.labels, built_in.labels)
    assert set(own.labels[:, 0].tolist()) != {0}
    assert (own.labels[:, 0] == truth).mean() >= 0.75


def test_a_users_scores_are_where_the_search_begins():
    firm, _ = labels_of(Hunch(7, strength=200.0), 1)
    assert (firm.labels == 7).all()  # its softmax has no slope left
    free, truth = labels_of(Hunch(7, strength=0.1), 40)
    assert (free.labels[:, 0] == truth).mean() >= 0.75


@dataclasses.dataclass(frozen=True)
class Noting:
    """A start or a strategy that notes the key that it got."""

    keys: Any = dataclasses.field(compare=False)
    inner: Any = None

    def __call__(self, key, *arguments):
        self.keys.append(np.asarray(jax.random.key_data(key)).tolist())
        return None if self.inner is None else self.inner(key, *arguments)


def test_pixels_labels_and_scores_are_drawn_from_different_keys():
    digits = load_dataset("digits")
    model = build_model(MODEL, digits.shape, digits.classes)
    observation, _ = leak(model, digits.inputs[:1], digits.labels[:1])
    keys = []
    start = Start(Noting(keys, Normal()), Noting(keys), ordered=False)
    pixels, scores = start(KEY, model, observation)
    assert scores.shape == (1, 10) and len(keys) == 2 and keys[0] != keys[1]
    given = [jnp.asarray(key, jnp.uint32) for key in keys]
    given.append(jax.random.key_data(KEY))
    for key in map(jax.random.wrap_key_data, given):
        drawn = jax.random.normal(key, (*scores.shape,))
        assert not np.isclose(drawn, scores).any()
        assert not np.isclose(drawn.reshape(-1), scores.reshape(-1)).any()
    again = jax.random.normal(jax.random.wrap_key_data(given[0]), pixels.shape)
    np.testing.assert_array_equal(again, pixels)  # the noted key is the one used


LOCAL = LocalTraining(batch_size=1, local_steps=4, learning_rate=0.05)


@pytest.fixture(scope="module")
def four_steps():
    """Four local steps of one example, whose labels are not in order."""
    digits = load_dataset("digits")
    model = build_model(MODEL, digits.shape, digits.classes)
    rows = [
        int(np.flatnonzero(digits.labels == label)[i])
        for i, label in enumerate((3, 2, 9, 3))
    ]
    inputs, labels = digits.inputs[rows], digits.labels[rows]
    params = model.init(jax.random.key(2))
    update = unrolled_update(
        model,
        params,
        {},
        inputs.reshape(4, 1, *digits.shape),
        one_hot(jnp.asarray(labels), 10).reshape(4, 1, 10),
        LOCAL.learning_rate,
    )
    observation = Observation(params, update, leakage=Leakage.CLIENT, training=LOCAL)
    return model, observation, inputs, labels


def value_at_truth(strategy, four_steps, fixed=None):
    """Returns the objective at the true pixels, as a share of |g|^2."""
    model, observation, inputs, labels = four_steps
    attack = dataclasses.replace(cpl(), labels=strategy)
    fixed = jnp.zeros(4, jnp.int32) if fixed is None else jnp.asarray(fixed)
    layout, evaluate = objective_of(attack, model, observation, fixed)
    position = jnp.asarray(inputs).reshape(-1)
    if layout.searches_labels:
        scores = 40.0 * one_hot(jnp.asarray(labels), 10)
        position = jnp.concatenate([position, scores.reshape(-1)])
    value = jax.jit(evaluate.total)(position)
    return float(value / global_norm(observation.gradient) ** 2), layout


@pytest.mark.parametrize("strategy", [LastLayer(), Counts()], ids=repr)
def test_with_inferred_labels_the_replayed_objective_can_reach_zero(
    strategy, four_steps
):
    model, observation, _, labels = four_steps
    assert labels.tolist() != sorted(labels.tolist())
    share, layout = value_at_truth(strategy, four_steps)
    assert layout.searches_labels and share <= 1e-5
    # The search begins at the inferred shares, the same in every step.
    start = Start(Constant(0.5), strategy, ordered=True)
    position, _ = first_position(start, layout, KEY, model, observation)
    shares = jax.nn.softmax(layout.scores(position))
    np.testing.assert_allclose(shares, shares[:1].repeat(4, axis=0))
    assert set(np.argsort(np.asarray(shares[0]))[-3:].tolist()) == {2, 3, 9}
    assert int(jnp.argmax(shares[0])) == 3


def test_labels_in_the_wrong_order_can_not_explain_the_update(four_steps):
    _, _, _, labels = four_steps
    right, layout = value_at_truth(Known(), told(four_steps), labels)
    assert not layout.searches_labels and right <= 1e-5
    wrong, _ = value_at_truth(Known(), told(four_steps), np.sort(labels))
    assert wrong > 1e-2


def told(four_steps):
    model, observation, inputs, labels = four_steps
    given = dataclasses.replace(observation, labels=jnp.asarray(labels))
    return model, given, inputs, labels


def test_one_gradient_of_the_whole_batch_keeps_its_inferred_labels():
    """Without replay no order matters: labels stay fixed and nothing is added."""
    digits = load_dataset("digits")
    model = build_model(MODEL, digits.shape, digits.classes)
    observation, _ = leak(model, digits.inputs[:3], digits.labels[:3])
    layout, _ = objective_of(cpl(), model, observation, jnp.zeros(3, jnp.int32))
    assert not layout.searches_labels


def test_what_was_sent_is_rescaled_once(four_steps):
    """The guess at the truth is the observation's gradient, tensor by tensor."""
    model, observation, inputs, labels = four_steps
    targets = one_hot(jnp.asarray(labels), 10)
    guess = guessed_gradient(model, observation, True, jnp.asarray(inputs), targets)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4),
        guess,
        observation.gradient,
    )


def test_the_handed_in_labels_of_local_steps_are_in_their_order(four_steps):
    model, observation, inputs, labels = four_steps
    attack = dataclasses.replace(cpl(), init=Constant(0.5)).budgeted(1, None)
    result = attack.reconstruct_many(KEY, model, Victims.single(observation))
    assert result.labels.shape == (1, 4)
    known = dataclasses.replace(attack, labels=Known())
    _, given, _, _ = told(four_steps)
    result = known.reconstruct_many(KEY, model, Victims.single(given))
    assert result.labels[0].tolist() == labels.tolist()
