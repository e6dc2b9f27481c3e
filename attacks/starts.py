"""Where the dummy data starts, what the search moves in place of it, and where it lies.

An initialization maps a key and a shape to pixels. A relaxation, a part of `Matching`,
maps free numbers to valid inputs, by the columns of a model's table.

What is unknown lies in one vector: the pixels (or what a relaxation moves in their
place) and, where labels are part of the search, a row of scores per example whose
softmax is its soft label.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from gradaudit.attacks.labels import LabelStrategy
from gradaudit.data.dataset import Column
from gradaudit.errors import InputError, at_least
from gradaudit.models.gradients import one_hot
from gradaudit.models.model import Model
from gradaudit.types import Key, Observation

_LEAST = 1e-3  # a share that starts at zero would stay there
_DOUBT = 0.05  # of an example, in every class: an inferred count may be wrong


class Initialization(Protocol):
    """A way to draw the first dummy inputs."""

    def __call__(self, key: Key, shape: tuple[int, ...]) -> jax.Array:
        """Returns dummy data of shape (examples, *input_shape)."""


@dataclasses.dataclass(frozen=True)
class Patterned:
    """One U[0, 1) patch, tiled (Wei et al. 2020): 2 = half, 4 = quarter, 8 = eighth.

    For images the patch is tiled over height and width; for tables over the features.
    """

    tiles: int = 2

    def __post_init__(self) -> None:
        at_least(1, tiles=self.tiles)

    def __call__(self, key: Key, shape: tuple[int, ...]) -> jax.Array:
        """Returns a different pattern for each example."""
        tiled = 2 if len(shape) == 4 else 1  # axes after the examples
        patch = [-(-side // self.tiles) for side in shape[1 : 1 + tiled]]
        rest = shape[1 + tiled :]
        values = jax.random.uniform(key, (shape[0], *patch, *rest))
        repeated = jnp.tile(values, (1, *[self.tiles] * tiled, *[1] * len(rest)))
        return repeated[tuple(slice(0, side) for side in shape)]


@dataclasses.dataclass(frozen=True)
class Uniform:
    """Independent U[0, 1) pixels."""

    def __call__(self, key: Key, shape: tuple[int, ...]) -> jax.Array:
        """Returns uniform noise."""
        return jax.random.uniform(key, shape)


@dataclasses.dataclass(frozen=True)
class Normal:
    """Independent N(0, 1) pixels (DLG)."""

    def __call__(self, key: Key, shape: tuple[int, ...]) -> jax.Array:
        """Returns normal noise."""
        return jax.random.normal(key, shape)


@dataclasses.dataclass(frozen=True)
class Constant:
    """The same value everywhere: 0 is black, 1 white."""

    value: float = 0.5

    def __call__(self, key: Key, shape: tuple[int, ...]) -> jax.Array:
        """Returns a flat image."""
        return jnp.full(shape, self.value, jnp.float32)


@dataclasses.dataclass(frozen=True)
class Colour:
    """One random colour per example: a value per channel, equal over all pixels."""

    def __call__(self, key: Key, shape: tuple[int, ...]) -> jax.Array:
        """Returns one flat colour per example."""
        colour = (shape[0], *[1] * (len(shape) - 2), shape[-1])
        return jnp.broadcast_to(jax.random.uniform(key, colour), shape)


@dataclasses.dataclass(frozen=True)
class PublicImage:
    """A given public example for every dummy; kept as bytes, so that it is hashable."""

    shape: tuple[int, ...]
    pixels: bytes = dataclasses.field(repr=False)

    @classmethod
    def of(cls, image: NDArray[np.float32]) -> "PublicImage":
        """Makes one from an array (*input_shape) in [0, 1]."""
        values = np.ascontiguousarray(image, np.float32)
        if not np.isfinite(values).all():
            raise InputError("the public image holds NaN")
        return cls(values.shape, values.tobytes())

    def __call__(self, key: Key, shape: tuple[int, ...]) -> jax.Array:
        """Returns the image once per example."""
        if self.shape != tuple(shape[1:]):
            raise InputError(
                f"the public image has shape {self.shape}, the inputs "
                f"{tuple(shape[1:])}"
            )
        image = np.frombuffer(self.pixels, np.float32).reshape(self.shape)
        return jnp.broadcast_to(jnp.asarray(image), shape)


@dataclasses.dataclass(frozen=True)
class Mixed:
    """Categories by a softmax over their values (Vero et al. 2023), numbers in a box.

    Where a value may be unknown, that is one more value, of which no feature is set.
    Inputs without columns are numbers.
    """

    def of(self, model: Model) -> "MixedForm | None":
        """Returns the form for the model's columns; None if it has none."""
        return MixedForm(model.columns) if model.columns else None


@dataclasses.dataclass(frozen=True)
class MixedForm:
    """Free numbers (examples, width) that stand for inputs (examples, features)."""

    columns: tuple[Column, ...]

    def inputs(self, free: jax.Array) -> jax.Array:
        """Returns numbers as they are, and shares of every category's values."""
        parts, at = [], 0
        for column in self.columns:
            own = free[:, at : at + _width(column)]
            at += _width(column)
            shares = jax.nn.softmax(own)[:, : column.features]
            parts.append(shares if column.values else own)
        return jnp.concatenate(parts, axis=1)

    def free(self, inputs: jax.Array) -> jax.Array:
        """Returns free numbers that stand for inputs nearly like these.

        Numbers as they are, and logarithms of shares.
        """
        parts = []
        for column, own in self._split(inputs):
            if not column.values:
                parts.append(own)
                continue
            rest = 1.0 - jnp.sum(own, axis=1, keepdims=True)
            shares = jnp.concatenate([own, rest], axis=1) if column.optional else own
            parts.append(jnp.log(jnp.maximum(shares, _LEAST)))
        return jnp.concatenate(parts, axis=1)

    @property
    def width(self) -> int:
        """How many free numbers stand for an input."""
        return sum(map(_width, self.columns))

    def boxed(self, free: tuple[int, ...]) -> NDArray[np.bool_]:
        """Returns which free numbers of this shape are to stay in [0, 1].

        Those that are inputs: shares are valid whatever they come from.
        """
        each = [[not column.values] * _width(column) for column in self.columns]
        return np.broadcast_to(np.concatenate(each), free)

    def pooled(self, answers: jax.Array) -> jax.Array:
        """Returns one answer of several: (trials, examples, ...) to (examples, ...).

        The median of numbers, the value with most votes of categories.
        """
        middle, votes = jnp.median(answers, axis=0), jnp.mean(answers, axis=0)
        pairs = zip(self._split(middle), self._split(votes), strict=True)
        parts = []
        for (column, number), (_, shares) in pairs:
            if not column.values:
                parts.append(number)
                continue
            rest = 1.0 - jnp.sum(shares, axis=1, keepdims=True)
            none = column.optional & (rest > jnp.max(shares, axis=1, keepdims=True))
            chosen = jax.nn.one_hot(jnp.argmax(shares, axis=1), column.features)
            parts.append(jnp.where(none, 0.0, chosen).astype(shares.dtype))
        return jnp.concatenate(parts, axis=1)

    def _split(self, inputs: jax.Array) -> list[tuple[Column, jax.Array]]:
        """Returns every column with its features (examples, features)."""
        pairs, at = [], 0
        for column in self.columns:
            pairs.append((column, inputs[:, at : at + column.features]))
            at += column.features
        return pairs


def _width(column: Column) -> int:
    """Returns how many free numbers a column takes."""
    return column.features + column.optional


@dataclasses.dataclass(frozen=True)
class Layout:
    """How dummy inputs and, if they are searched for, soft labels lie in one vector."""

    inputs: tuple[int, ...]  # (examples, *input_shape)
    classes: int
    searches_labels: bool
    form: MixedForm | None = (
        None  # what the coordinates are, if not the pixels themselves
    )

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
    ) -> tuple[jax.Array, jax.Array]:
        """Returns pixels (examples, *shape), and fixed labels or first scores.

        Labels are (examples,), scores (examples, classes).
        """
        shape = (observation.training.examples, *model.input_shape)
        pixel_key, label_key = jax.random.split(key)
        pixels = self.pixels(pixel_key, shape).astype(jnp.float32)
        labels = self.labels(label_key, model, _averaged(observation))
        if labels is None:  # nothing is known of them
            drawn = jax.random.fold_in(label_key, 1)
            return pixels, jax.random.normal(drawn, (shape[0], model.classes))
        unordered = self.ordered and not getattr(self.labels, "ordered", False)
        if labels.ndim == 1 and unordered:
            # Inferred counts don't say which step had which label: a search from
            # their shares can end at any order, the true one included.
            counts = jnp.sum(one_hot(labels, model.classes), axis=0) + _DOUBT
            shares = jnp.log(counts / jnp.sum(counts))
            return pixels, jnp.broadcast_to(shares, (shape[0], model.classes))
        return pixels, labels


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
    start: Start, model: Model, observation: Observation, form: MixedForm | None = None
) -> Layout:
    """Returns the layout of one victim's unknowns; asks the parts, by their shapes."""
    key = jax.random.key(0)
    shapes: Any = _begun.eval_shape
    pixels, labels = shapes(start, model, key, observation)
    return Layout(pixels.shape, model.classes, labels.ndim == 2, form)


def first_position(
    start: Start, layout: Layout, key: Key, model: Model, observation: Observation
) -> tuple[jax.Array, jax.Array]:
    """Returns where the search starts, and the labels it takes for the true ones."""
    pixels, labels = start(key, model, observation)
    position = layout.coordinates(pixels)
    if not layout.searches_labels:
        return position, labels
    position = jnp.concatenate([position, labels.reshape(-1)])
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


def pixel_box(layout: Layout) -> Callable[[jax.Array], jax.Array]:
    """Returns the projection onto pixels in [0, 1]; scores are left alone.

    Of a relaxation, only what it says is moved into the box.
    """
    free = layout.free
    own = np.ones(free, bool) if layout.form is None else layout.form.boxed(free)
    inside = np.append(own.reshape(-1), np.zeros(layout.size - layout.pixels, bool))
    return lambda position: jnp.where(inside, jnp.clip(position, 0.0, 1.0), position)
