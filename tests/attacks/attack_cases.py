"""The tables that the attack tests run over, and small victims to run them on."""

import functools

import jax
import numpy as np

from gradaudit.attacks import PRESETS, Matching, Victims, cpl
from gradaudit.attacks.objective import Objective, objective
from gradaudit.attacks.starts import Layout, Start, layout_of
from gradaudit.data import load_dataset
from gradaudit.models.gradients import batch_gradient, one_hot
from gradaudit.models.model import Model
from gradaudit.models.networks import MODELS, build_model
from gradaudit.types import LocalTraining, Observation, PyTree, Victim

MATCHING = [name for name, p in PRESETS.items() if isinstance(p.make(), Matching)]
# Plain convolutional networks; deeper ones are attacked in test_deep_networks.
IMAGE_MODELS = [
    name
    for name in MODELS
    if getattr(build_model(name, (8, 8, 1), 2).network, "stages", ())
]


# Most tests share one configuration, so that it is compiled once.
MODEL, COUNT, SLOTS = "dpfl-2conv", 4, 4


def leak(
    model: Model, inputs: np.ndarray, labels: np.ndarray, seed: int = 0
) -> tuple[Observation, Victim]:
    """Returns the gradient of one batch and whose it is."""
    params = _first_parameters(model, seed)
    gradient = _gradient(model, params, inputs, labels)
    training = LocalTraining(batch_size=len(inputs))
    return Observation(params, gradient, training=training), Victim(inputs, labels)


@functools.cache
def _first_parameters(model: Model, seed: int) -> PyTree:
    return model.init(jax.random.key(seed))


@functools.partial(jax.jit, static_argnums=0)
def _gradient(
    model: Model, params: PyTree, inputs: jax.Array, labels: jax.Array
) -> PyTree:
    targets = one_hot(labels, model.classes)
    return batch_gradient(model, params, {}, inputs, targets)


def digit_victims(
    count: int = COUNT, model_name: str = MODEL
) -> tuple[Model, Victims, object]:
    """Returns a model, `count` type-2 victims of the digits, and the dataset."""
    digits = load_dataset("digits")
    model = build_model(model_name, digits.shape, digits.classes)
    params = model.init(jax.random.key(7))
    gradients = jax.jit(
        jax.vmap(lambda x, y: batch_gradient(model, params, {}, x[None], y[None]))
    )(digits.inputs[:count], one_hot(digits.labels[:count], digits.classes))
    gradients = jax.tree.map(np.asarray, gradients)

    def observe(ids: np.ndarray) -> Observation:
        return Observation(params, jax.tree.map(lambda leaf: leaf[ids], gradients))

    return model, Victims(count, observe), digits


def quick(attack: Matching, iterations: int = 3) -> Matching:
    """Returns the attack with a small budget."""
    return attack.budgeted(iterations, None)


QUICK = quick(cpl(stop="paper"), 12)


def objective_of(
    matching: Matching, model: Model, observation: Observation, labels: jax.Array
) -> tuple[Layout, Objective]:
    """Returns the layout and the objective that this attack has for one victim."""
    replays = matching.replays(observation.training)
    start = Start(matching.init, matching.labels, ordered=replays)
    layout = layout_of(start, model, observation)
    value_and_gradient = objective(
        matching.distance,
        matching.priors,
        layout,
        model,
        observation,
        replays,
        labels,
    )
    return layout, value_and_gradient
