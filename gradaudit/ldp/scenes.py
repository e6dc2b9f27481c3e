"""Scenes: the pairs of labelled inputs that the measurements of an audit start from."""

import jax
import jax.numpy as jnp
import numpy as np

from gradaudit.data import Dataset
from gradaudit.errors import require
from gradaudit.kernels import check_batch, one_hot, per_example_gradients
from gradaudit.ldp.crafters import Crafted, Scene
from gradaudit.tree import flatten
from gradaudit.types import Key, Model

_OTHERS = 256  # inputs that a malicious model is trained on


def draw_scene(
    key: Key, model: Model, params: object, dataset: Dataset, clip: float
) -> Scene:
    """Returns a scene with two random inputs of different labels."""
    labels = dataset.labels
    require(
        len(np.unique(labels)) > 1,
        f"dataset {dataset.name!r} has one label only; a pair needs two",
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
        return jnp.zeros((0, crafted.gradients.shape[1]))
    chosen = np.asarray(jax.random.randint(key, (count,), 0, len(dataset)))
    targets = one_hot(jnp.asarray(dataset.labels[chosen]), model.classes)
    inputs = jnp.asarray(dataset.inputs[chosen])
    trees = per_example_gradients(model, crafted.params, inputs, targets)
    return jax.vmap(lambda tree: flatten(tree)[0])(trees)
