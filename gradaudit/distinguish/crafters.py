"""The six adversaries: what each lets the client compute its gradient from."""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax

from gradaudit.data import Dataset
from gradaudit.distinguish.blackbox import (
    BlackRule,
    larger_change,
    loss_fell,
    signs_of_step,
)
from gradaudit.distinguish.game import Crafted
from gradaudit.errors import InputError
from gradaudit.models.gradients import batch_gradient, one_hot, per_example_gradients
from gradaudit.models.model import Model, check_batch
from gradaudit.tree import flatten
from gradaudit.types import Key, PyTree

# How a malicious model is trained: on so many inputs, so often, with Adam.
_OTHERS, _MALICIOUS_STEPS, _MALICIOUS_RATE = 256, 100, 1e-3


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


Crafter = Callable[[Scene], Crafted]  # deterministic


def benign(scene: Scene) -> Crafted:
    """Returns the honest gradients of x1 and x2."""
    gradients = jnp.stack([_gradient(scene, 0), _gradient(scene, 1)])
    return Crafted(scene.params, scene.inputs, scene.targets, gradients)


def input_perturbation(scene: Scene) -> Crafted:
    """Returns the gradients at x1 and x1 + sign(gradient of the loss in x1).

    That is the fast gradient sign method with a step of 1. As in the paper the
    perturbed input is not clipped to the range of pixels.
    """
    x1, target = scene.inputs[0], scene.targets[0]
    slope = _input_gradient(scene.model, scene.params, x1, target)
    inputs = jnp.stack([x1, x1 + jnp.sign(slope)])
    targets = jnp.stack([target, target])
    return benign(dataclasses.replace(scene, inputs=inputs, targets=targets))


def parameter_retrogression(scene: Scene) -> Crafted:
    """Returns x1's gradients g1 at the parameters and at the worse ones, + g1."""
    first = _gradient(scene, 0)
    vector, unflatten = flatten(scene.params)
    worse = dataclasses.replace(scene, params=unflatten(vector + first))
    return _about_x1(scene, first, _gradient(worse, 0))


def gradient_flip(scene: Scene) -> Crafted:
    """Returns x1's honest gradient and its negative."""
    first = _gradient(scene, 0)
    return _about_x1(scene, first, -first)


def collusion(scene: Scene) -> Crafted:
    """Returns a gradient flip on a malicious model that never saw the label of x1.

    Its loss on x1 is huge, so that the norm of g1 is far beyond the clip.
    """
    targets = jnp.tile(scene.targets[1], (len(scene.others), 1))
    params = _train(scene.model, scene.params, scene.others, targets)
    return gradient_flip(dataclasses.replace(scene, params=params))


def dummy_gradient(scene: Scene) -> Crafted:
    """Returns (c, ..., c) with the norm of the clip, and its negative: the worst."""
    vector, _ = flatten(scene.params)
    first = jnp.full_like(vector, scene.clip / vector.size**0.5)
    return _about_x1(scene, first, -first)


@dataclasses.dataclass(frozen=True)
class Adversary:
    """One row of Matsumoto et al. 2022, Table 1."""

    name: str
    craft: Crafter
    black_rule: BlackRule


_TABLE = (
    Adversary("benign", benign, larger_change),
    Adversary("input-perturbation", input_perturbation, loss_fell),
    Adversary("parameter-retrogression", parameter_retrogression, loss_fell),
    Adversary("gradient-flip", gradient_flip, loss_fell),
    Adversary("collusion", collusion, loss_fell),
    Adversary("dummy-gradient", dummy_gradient, signs_of_step),
)
ADVERSARIES: dict[str, Adversary] = {entry.name: entry for entry in _TABLE}


def _about_x1(scene: Scene, first: jax.Array, second: jax.Array) -> Crafted:
    """Returns two gradients that both stand for x1."""
    twice, gradients = jnp.array([0, 0]), jnp.stack([first, second])
    return Crafted(scene.params, scene.inputs[twice], scene.targets[twice], gradients)


def _gradient(scene: Scene, index: int) -> jax.Array:
    gradient: jax.Array = _vector_gradient(
        scene.model, scene.params, scene.inputs[index], scene.targets[index]
    )
    return gradient


@functools.partial(jax.jit, static_argnums=0)
def _vector_gradient(
    model: Model, params: PyTree, example: jax.Array, target: jax.Array
) -> jax.Array:
    vector, _ = flatten(batch_gradient(model, params, {}, example[None], target[None]))
    return vector


@functools.partial(jax.jit, static_argnums=0)
def _input_gradient(
    model: Model, params: PyTree, example: jax.Array, target: jax.Array
) -> jax.Array:
    def loss(value: jax.Array) -> jax.Array:
        return model.loss(params, {}, value[None], target[None])

    slope: jax.Array = jax.grad(loss)(example)
    return slope


@functools.partial(jax.jit, static_argnums=0)
def _train(
    model: Model, params: PyTree, inputs: jax.Array, targets: jax.Array
) -> PyTree:
    optimizer = optax.adam(_MALICIOUS_RATE)

    def step(_: int, state: tuple[PyTree, PyTree]) -> tuple[PyTree, PyTree]:
        params, moments = state
        slope = batch_gradient(model, params, {}, inputs, targets)
        updates, moments = optimizer.update(slope, moments)
        return optax.apply_updates(params, updates), moments

    begun = params, optimizer.init(params)
    return jax.lax.fori_loop(0, _MALICIOUS_STEPS, step, begun)[0]


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
