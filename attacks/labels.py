"""What the attacker takes for the private labels: read off the gradient, or guessed.

A strategy returns labels (examples,), or None when the labels are unknowns of the
optimisation itself, or scores (examples, classes) from which they are searched for.
It may say that its labels come in the order of the local steps (`ordered`), and what
it has to be told (`needs`).
"""

import dataclasses
from typing import ClassVar, Protocol

import jax
import jax.numpy as jnp

from gradaudit.errors import InputError
from gradaudit.models.model import Model
from gradaudit.types import Key, Knowledge, Observation

Labels = jax.Array | None


class LabelStrategy(Protocol):
    """A way to get labels from an observation."""

    def __call__(self, key: Key, model: Model, observation: Observation) -> Labels:
        """Returns labels (examples,), first scores (examples, classes), or None."""


@dataclasses.dataclass(frozen=True)
class Known:
    """The threat hands the labels to the attacker, in the order of the steps."""

    ordered: ClassVar[bool] = True
    needs: ClassVar[frozenset[Knowledge]] = frozenset({Knowledge.LABELS})

    def __call__(self, key: Key, model: Model, observation: Observation) -> Labels:
        """Returns the observation's labels."""
        if observation.labels is None:
            raise InputError(
                "this attack needs to know the labels, and this threat model does not "
                "give them: choose labels=last-layer"
            )
        return observation.labels


@dataclasses.dataclass(frozen=True)
class Joint:
    """A soft label per example, optimised together with the pixels (DLG)."""

    def __call__(self, key: Key, model: Model, observation: Observation) -> Labels:
        """Returns None: the optimiser finds them."""
        return None


@dataclasses.dataclass(frozen=True)
class LastLayer:
    """The class whose row of the last dense layer's gradient has the smallest sum.

    Exact for one example when the features are non-negative (iDLG, CPL). Features
    that may be negative are handed to `FromBias`, batches to `Counts`.
    """

    def __call__(self, key: Key, model: Model, observation: Observation) -> Labels:
        """Returns the inferred labels."""
        if observation.training.examples > 1:
            return Counts()(key, model, observation)
        if model.signed_features:
            return FromBias()(key, model, observation)
        kernel = _output(model, observation.gradient)["kernel"]
        return jnp.argmin(jnp.sum(kernel, axis=0))[None].astype(jnp.int32)


@dataclasses.dataclass(frozen=True)
class FromBias:
    """The negative entry of the last bias' gradient (softmax - one-hot)."""

    def __call__(self, key: Key, model: Model, observation: Observation) -> Labels:
        """Returns the inferred labels."""
        if observation.training.examples > 1:
            return Counts()(key, model, observation)
        bias = _bias(model, observation)
        return jnp.argmin(bias)[None].astype(jnp.int32)


@dataclasses.dataclass(frozen=True)
class Counts:
    """The multiset of labels of a batch, repeats included.

    The last bias' gradient of a mean loss is mean(softmax) - count / batch. The
    attacker knows the parameters, so that random inputs of its own, of every
    brightness, show what mean(softmax) is like; what remains is count, allotted
    greedily to whole labels. `drawn`: as if the batch were as many of them as it has
    examples, so that every key has an opinion of its own, for who tries several.
    """

    samples: int = 256
    drawn: bool = False

    def __call__(self, key: Key, model: Model, observation: Observation) -> Labels:
        """Returns the labels, sorted by class."""
        examples = observation.training.examples
        samples = examples if self.drawn else self.samples
        pixels_key, brightness_key = jax.random.split(key)
        own = jax.random.uniform(pixels_key, (samples, *model.input_shape))
        one_each = (samples, *[1] * len(model.input_shape))
        own *= jax.random.uniform(brightness_key, one_each)
        logits = model.apply(observation.params, observation.buffers, own)
        softmax = jnp.mean(jax.nn.softmax(logits), axis=0)
        # Several local steps sum their gradients: back to the mean over all examples.
        bias = _bias(model, observation) / observation.training.local_steps
        counts = examples * (softmax - bias)

        def allot(remaining: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
            label = jnp.argmax(remaining)
            return remaining.at[label].add(-1.0), label

        _, labels = jax.lax.scan(allot, counts, None, length=examples)
        return jnp.sort(labels).astype(jnp.int32)


def _output(
    model: Model, gradient: dict[str, dict[str, jax.Array]]
) -> dict[str, jax.Array]:
    if model.output_layer is None:
        raise InputError(
            f"model {model.name!r} names no output_layer, so that labels can't be read "
            "off its gradient: name it, or choose labels=joint"
        )
    layer = gradient[model.output_layer]
    if model.classes == 2 and layer["kernel"].shape[-1] == 1:
        # One logit z stands for (0, z): what moves one class moves the other back.
        return {n: jnp.concatenate([-leaf, leaf], axis=-1) for n, leaf in layer.items()}
    return layer


def _bias(model: Model, observation: Observation) -> jax.Array:
    layer = _output(model, observation.gradient)
    if "bias" not in layer:
        raise InputError(
            f"the output layer of model {model.name!r} has no bias: "
            "choose labels=last-layer for one example, labels=joint for a batch"
        )
    return layer["bias"]
