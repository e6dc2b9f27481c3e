"""The six adversaries: what each lets the client compute its gradient from."""

import dataclasses
import functools
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax

from gradaudit.data import Dataset
from gradaudit.distinguish.blackbox import (
    BlackRule,
    LargerChange,
    LossFell,
    SignsOfStep,
)
from gradaudit.distinguish.game import Crafted
from gradaudit.errors import InputError
from gradaudit.models.gradients import batch_gradient, one_hot, per_example_gradients
from gradaudit.models.model import Model, check_batch
from gradaudit.tree import flatten
from gradaudit.types import Key, PyTree


@dataclasses.dataclass(frozen=True)
class Scene:
    """What a crafter starts from: the global model and two labelled inputs.

    `others` are inputs with the label of x2, which is never the label of x1: a
    colluding server trains its malicious model on them.
    """

    model: Model
    params: PyTree
    inputs: jax.Array  # (2, *input_shape): x1 and x2
    targets: jax.Array  # (2, classes)
    others: jax.Array  # (n, *input_shape)
    clip: float = 1.0


class Crafter(Protocol):
    """Makes two gradients; deterministic in the scene."""

    def craft(self, scene: Scene) -> Crafted:
        """Returns the gradients g1 and g2 of a scene."""


@dataclasses.dataclass(frozen=True)
class Benign:
    """g1 and g2 are the honest gradients of x1 and x2."""

    def craft(self, scene: Scene) -> Crafted:
        """Returns the two gradients."""
        gradients = jnp.stack([_gradient(scene, 0), _gradient(scene, 1)])
        return Crafted(scene.params, scene.inputs, scene.targets, gradients)


@dataclasses.dataclass(frozen=True)
class InputPerturbation:
    """x2 = x1 + step * sign(gradient of the loss in x1), the fast gradient sign method.

    As in the paper the perturbed input is not clipped to the range of pixels.
    """

    step: float = 1.0

    def craft(self, scene: Scene) -> Crafted:
        """Returns the gradients at x1 and at the perturbed x1."""
        x1, target = scene.inputs[0], scene.targets[0]
        slope = _input_gradient(scene.model, scene.params, x1, target)
        inputs = jnp.stack([x1, x1 + self.step * jnp.sign(slope)])
        targets = jnp.stack([target, target])
        perturbed = dataclasses.replace(scene, inputs=inputs, targets=targets)
        return Benign().craft(perturbed)


@dataclasses.dataclass(frozen=True)
class ParameterRetrogression:
    """g2 is x1's gradient at parameters moved uphill: params + step * g1."""

    step: float = 1.0

    def craft(self, scene: Scene) -> Crafted:
        """Returns the gradients of x1 at the parameters and at the worse ones."""
        first = _gradient(scene, 0)
        vector, unflatten = flatten(scene.params)
        worse = unflatten(vector + self.step * first)
        second = _gradient(dataclasses.replace(scene, params=worse), 0)
        return _about_x1(scene, scene.params, jnp.stack([first, second]))


@dataclasses.dataclass(frozen=True)
class GradientFlip:
    """g2 = -g1, where g1 is x1's honest gradient."""

    def craft(self, scene: Scene) -> Crafted:
        """Returns the gradient of x1 and its negative."""
        first = _gradient(scene, 0)
        return _about_x1(scene, scene.params, jnp.stack([first, -first]))


@dataclasses.dataclass(frozen=True)
class Collusion:
    """Gradient flip on a malicious model that knows one label only, and not x1's.

    Its loss on x1 is huge, so that the norm of g1 is far beyond the clip.
    """

    steps: int = 100
    learning_rate: float = 1e-3

    def craft(self, scene: Scene) -> Crafted:
        """Returns the gradient of x1 at the malicious model, and its negative."""
        targets = jnp.tile(scene.targets[1], (len(scene.others), 1))
        params = _train(scene.model, self, scene.params, scene.others, targets)
        malicious = dataclasses.replace(scene, params=params)
        return GradientFlip().craft(malicious)


@dataclasses.dataclass(frozen=True)
class DummyGradient:
    """g1 = (c, ..., c), g2 = -g1: the worst case from a norm of the clip on."""

    norm: float = 1.0  # in units of the clip

    def craft(self, scene: Scene) -> Crafted:
        """Returns the constant gradient and its negative."""
        vector, _ = flatten(scene.params)
        first = jnp.full_like(vector, self.norm * scene.clip / vector.size**0.5)
        return _about_x1(scene, scene.params, jnp.stack([first, -first]))


@dataclasses.dataclass(frozen=True)
class Adversary:
    """One row of Matsumoto et al. 2022, Table 1."""

    name: str
    crafter: Crafter
    black_rule: BlackRule
    access: str  # what the crafter and the server manipulate


_TABLE = (
    Adversary("benign", Benign(), LargerChange(), "nothing"),
    Adversary("input-perturbation", InputPerturbation(), LossFell(), "images"),
    Adversary(
        "parameter-retrogression", ParameterRetrogression(), LossFell(), "parameters"
    ),
    Adversary("gradient-flip", GradientFlip(), LossFell(), "gradients"),
    Adversary("collusion", Collusion(), LossFell(), "gradients; server: parameters"),
    Adversary("dummy-gradient", DummyGradient(), SignsOfStep(), "gradients"),
)
ADVERSARIES: dict[str, Adversary] = {entry.name: entry for entry in _TABLE}


def _about_x1(scene: Scene, params: PyTree, gradients: jax.Array) -> Crafted:
    twice = jnp.array([0, 0])
    return Crafted(params, scene.inputs[twice], scene.targets[twice], gradients)


def _gradient(scene: Scene, index: int) -> jax.Array:
    gradient: jax.Array = _vector_gradient(
        scene.model, scene.params, scene.inputs[index], scene.targets[index]
    )
    return gradient


def _plain(
    model: Model, params: PyTree, inputs: jax.Array, targets: jax.Array
) -> PyTree:
    """Returns the gradient of a network without buffers."""
    return batch_gradient(model, params, {}, inputs, targets)


@functools.partial(jax.jit, static_argnums=0)
def _vector_gradient(
    model: Model, params: PyTree, example: jax.Array, target: jax.Array
) -> jax.Array:
    vector, _ = flatten(_plain(model, params, example[None], target[None]))
    return vector


@functools.partial(jax.jit, static_argnums=0)
def _input_gradient(
    model: Model, params: PyTree, example: jax.Array, target: jax.Array
) -> jax.Array:
    def loss(value: jax.Array) -> jax.Array:
        return model.loss(params, {}, value[None], target[None])

    slope: jax.Array = jax.grad(loss)(example)
    return slope


@functools.partial(jax.jit, static_argnums=(0, 1))
def _train(
    model: Model, plan: Collusion, params: PyTree, inputs: jax.Array, targets: jax.Array
) -> PyTree:
    optimizer = optax.adam(plan.learning_rate)

    def step(_: int, state: tuple[PyTree, PyTree]) -> tuple[PyTree, PyTree]:
        params, moments = state
        slope = _plain(model, params, inputs, targets)
        updates, moments = optimizer.update(slope, moments)
        return optax.apply_updates(params, updates), moments

    return jax.lax.fori_loop(0, plan.steps, step, (params, optimizer.init(params)))[0]


_OTHERS = 256  # inputs that a malicious model is trained on


def draw_scene(
    key: Key, model: Model, params: object, dataset: Dataset, clip: float
) -> Scene:
    """Returns a scene with two random inputs of different labels."""
    labels = dataset.labels
    if len(np.unique(labels)) <= 1:
        raise InputError(
            f"dataset {dataset.name!r} has one label only; a pair needs two"
        )
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    first = int(rng.integers(len(labels)))
    second = int(rng.choice(np.flatnonzero(labels != labels[first])))
    # With replacement: one shape for every label, so that training compiles once.
    others = rng.choice(np.flatnonzero(labels == labels[second]), _OTHERS)
    pair = np.array([first, second])
    inputs, pair_labels = jnp.asarray(dataset.inputs[pair]), jnp.asarray(labels[pair])
    check_batch(model, inputs, pair_labels)
    return Scene(
        model=model,
        params=params,
        inputs=inputs,
        targets=one_hot(pair_labels, model.classes),
        others=jnp.asarray(dataset.inputs[others]),
        clip=clip,
    )


def bystander_gradients(
    key: Key, model: Model, crafted: Crafted, dataset: Dataset, count: int
) -> jax.Array:
    """Returns the honest gradients, (count, d), of other clients of the update."""
    if count == 0:
        return crafted.gradients[:0]
    chosen = np.asarray(jax.random.randint(key, (count,), 0, len(dataset)))
    targets = one_hot(jnp.asarray(dataset.labels[chosen]), model.classes)
    inputs = jnp.asarray(dataset.inputs[chosen])
    trees = per_example_gradients(model, crafted.params, {}, inputs, targets)
    return jax.vmap(lambda tree: flatten(tree)[0])(trees)
