"""The objective of gradient matching: how far dummy data is from explaining a leak.

What is unknown lies in one vector: the pixels (or what a relaxation moves in their
place) and, where labels are part of the search, a row of scores per example whose
softmax is its soft label.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradaudit.attacks.accounts import Account, accounts, misfit, shares
from gradaudit.attacks.distances import Distance
from gradaudit.attacks.labels import LabelStrategy
from gradaudit.attacks.priors import Prior, in_nats, told
from gradaudit.attacks.priors import residuals as of_prior
from gradaudit.attacks.starts import Form, Initialization
from gradaudit.models.gradients import one_hot
from gradaudit.models.model import Model
from gradaudit.types import Key, Observation

_held = jax.lax.stop_gradient
_DOUBT = 0.05  # of an example, in every class: an inferred count may be wrong


@dataclasses.dataclass(frozen=True)
class Layout:
    """How dummy inputs and, if they are searched for, soft labels lie in one vector."""

    inputs: tuple[int, ...]  # (examples, *input_shape)
    classes: int
    searches_labels: bool
    form: Form | None = None  # what the coordinates are, if not the pixels themselves

    @property
    def free(self) -> tuple[int, ...]:
        """The shape of what is moved in place of the inputs."""
        if self.form is None:
            return self.inputs
        return self.inputs[0], self.form.width

    @property
    def pixels(self) -> int:
        """The number of coordinates that stand for pixels."""
        return int(np.prod(self.free))

    @property
    def size(self) -> int:
        """The number of all coordinates."""
        return self.pixels + self.searches_labels * self.inputs[0] * self.classes

    def images(self, position: Any) -> Any:
        """Returns the dummy inputs."""
        free = position[: self.pixels].reshape(self.free)
        return free if self.form is None else self.form.inputs(free)

    def coordinates(self, inputs: jax.Array) -> jax.Array:
        """Returns the coordinates that stand for these inputs, flat."""
        free = inputs if self.form is None else self.form.free(inputs)
        return free.reshape(-1).astype(jnp.float32)

    def scores(self, position: Any) -> Any:
        """Returns the scores of the soft labels, (examples, classes)."""
        return position[self.pixels :].reshape(self.inputs[0], self.classes)

    def labels(self, position: jax.Array, fixed: jax.Array) -> jax.Array:
        """Returns the labels that the attacker hands in."""
        if not self.searches_labels:
            return fixed
        return jnp.argmax(self.scores(position), axis=-1).astype(jnp.int32)

    def unpack(
        self, position: jax.Array, fixed: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Returns the dummy inputs and their target weights (examples, classes)."""
        if self.searches_labels:
            targets = jax.nn.softmax(self.scores(position))
        else:
            targets = one_hot(fixed, self.classes)
        return self.images(position), targets


@dataclasses.dataclass(frozen=True)
class Start:
    """Where a search begins: the first pixels, and what is taken for the labels.

    `ordered` says that the attack replays local steps, so that it matters which label
    is in which of them.
    """

    pixels: Initialization
    labels: LabelStrategy
    ordered: bool

    def __call__(
        self, key: Key, model: Model, observation: Observation
    ) -> tuple[jax.Array, jax.Array | None, jax.Array | None]:
        """Returns pixels (examples, *shape), and fixed labels or first scores."""
        shape = (observation.training.examples, *model.input_shape)
        pixel_key, label_key = jax.random.split(key)
        pixels = self.pixels(pixel_key, shape).astype(jnp.float32)
        labels = self.labels(label_key, model, _averaged(observation))
        if labels is None:  # nothing is known of them
            drawn = jax.random.fold_in(label_key, 1)
            return pixels, None, jax.random.normal(drawn, (shape[0], model.classes))
        if labels.ndim == 2:
            return pixels, None, labels
        if self.ordered and not getattr(self.labels, "ordered", False):
            # Inferred counts don't say which step had which label: a search from
            # their shares can end at any order, the true one included.
            counts = jnp.sum(one_hot(labels, model.classes), axis=0) + _DOUBT
            shares = jnp.log(counts / jnp.sum(counts))
            return pixels, None, jnp.broadcast_to(shares, (shape[0], model.classes))
        return pixels, labels, None


def _averaged(observation: Observation) -> Observation:
    """Returns the mean of all looks: what gradients say of labels is said in each."""
    if not observation.others:
        return observation
    sent = [look.sent for look in observation.looks]
    mean = jax.tree.map(lambda *leaves: sum(leaves) / len(leaves), *sent)
    return dataclasses.replace(observation, sent=mean, others=())


@functools.partial(jax.jit, static_argnums=(0, 1))
def _begun(start: Start, model: Model, key: Key, observation: Observation) -> Any:
    return start(key, model, observation)  # never run: only its shapes are asked for


def layout_of(
    start: Start, model: Model, observation: Observation, form: Form | None = None
) -> Layout:
    """Returns the layout of one victim's unknowns; asks the parts, by their shapes."""
    key = jax.random.key(0)
    shapes: Any = _begun.eval_shape
    pixels, labels, _ = shapes(start, model, key, observation)
    return Layout(pixels.shape, model.classes, labels is None, form)


def first_position(
    start: Start, layout: Layout, key: Key, model: Model, observation: Observation
) -> tuple[jax.Array, jax.Array]:
    """Returns where the search starts, and the labels it takes for the true ones."""
    pixels, labels, scores = start(key, model, observation)
    position = layout.coordinates(pixels)
    if labels is not None:
        return position, labels
    assert scores is not None  # one of the two always is
    position = jnp.concatenate([position, scores.reshape(-1)])
    return position, jnp.zeros(layout.inputs[0], jnp.int32)


def continued(
    layout: Layout,
    inputs: jax.Array,
    labels: jax.Array,
    own: tuple[jax.Array, jax.Array],
    boxed: bool,
) -> tuple[jax.Array, jax.Array]:
    """Returns where a search goes on from an answer, or its own start if it has none.

    Labels that are searched for start near those of the answer. A `boxed` search goes
    on from inside the box: no step from outside would help.
    """
    position = layout.coordinates(inputs)
    if layout.searches_labels:
        shares = one_hot(labels, layout.classes) + _DOUBT
        scores = jnp.log(shares / jnp.sum(shares, axis=-1, keepdims=True))
        position, fixed = jnp.concatenate([position, scores.reshape(-1)]), own[1]
    else:
        fixed = labels.astype(own[1].dtype)
    if boxed:
        position = pixel_box(layout)(position)
    answered = jnp.all(jnp.isfinite(inputs)) & jnp.all(labels >= 0)
    return jnp.where(answered, position, own[0]), jnp.where(answered, fixed, own[1])


@dataclasses.dataclass(frozen=True)
class Objective:
    """What a search makes small: a function of its position, for any optimizer.

    `residuals` is for optimizers that ask for it: a vector whose squared norm is the
    objective (nearly, where a prior is no sum of squares).
    """

    total: Callable[[jax.Array], jax.Array]
    residuals: Callable[[jax.Array], jax.Array]

    def __call__(self, position: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns the objective and its gradient.

        Reverse over reverse: the two passes share the network's forward and backward
        values, which a directional derivative along the residual computes twice.
        """
        return jax.value_and_grad(self.total)(position)

    def moving(self, mask: jax.Array) -> "Objective":
        """Returns the objective of a search in which only these coordinates move."""

        def held(
            function: Callable[[jax.Array], jax.Array],
        ) -> Callable[[jax.Array], jax.Array]:
            def of(position: jax.Array) -> jax.Array:
                still = jax.lax.stop_gradient(position)
                return function(jnp.where(mask, position, still))

            return of

        return Objective(held(self.total), held(self.residuals))


def objective(
    distance: Distance,
    priors: tuple[Prior, ...],
    layout: Layout,
    model: Model,
    observation: Observation,
    replays: bool,
    labels: jax.Array,
    weights: jax.Array | None = None,
) -> Objective:
    """Returns the objective of one victim; `weights` multiply the priors, one each."""
    beliefs = [told(prior, model, observation) for prior in priors]

    def explained(position: jax.Array) -> tuple[jax.Array, list[Account]]:
        images, targets = layout.unpack(position, labels)
        return images, accounts(distance, model, observation, replays, images, targets)

    def priced(found: jax.Array, looks: list[Account]) -> list[jax.Array]:
        """Returns by what each prior is multiplied.

        What a guess leaves unexplained counts as noise whose size nobody tells, so that
        a prior in nats is strong at first and fades as the search gets nearer, down to
        the noise that is told.
        """
        given = jnp.ones(len(priors)) if weights is None else weights
        expected = sum(look.expected for look in looks)
        nat = jnp.maximum(looks[0].nat / len(looks), _held(found) / expected)
        unit = [nat if in_nats(prior) else 1.0 for prior in priors]
        return [given[i] * unit[i] for i in range(len(priors))]

    def total(position: jax.Array) -> jax.Array:
        images, looks = explained(position)
        value = found = misfit(looks)
        for belief, factor in zip(beliefs, priced(found, looks), strict=True):
            value = value + factor * belief(images)
        return value.astype(position.dtype)  # whatever a part computes in

    def residuals(position: jax.Array) -> jax.Array:
        images, looks = explained(position)
        parts = [
            jnp.sqrt(share) * part
            for look, share in zip(looks, shares(looks), strict=True)
            for part in look.residuals
        ]
        found = jnp.sum(jnp.stack([jnp.sum(jnp.square(part)) for part in parts]))
        for belief, factor in zip(beliefs, priced(found, looks), strict=True):
            parts.append(jnp.sqrt(factor) * of_prior(belief, images))
        flat = jnp.concatenate([part.reshape(-1) for part in parts])
        return flat.astype(position.dtype)

    return Objective(total, residuals)


def pixel_box(layout: Layout) -> Callable[[jax.Array], jax.Array]:
    """Returns the projection onto pixels in [0, 1]; scores are left alone.

    Of a relaxation, only what it says is moved into the box.
    """
    free = layout.free
    own = np.ones(free, bool) if layout.form is None else layout.form.boxed(free)
    inside = np.append(own.reshape(-1), np.zeros(layout.size - layout.pixels, bool))
    return lambda position: jnp.where(inside, jnp.clip(position, 0.0, 1.0), position)
