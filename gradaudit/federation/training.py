"""A whole training: rounds until a target, measured, saved and interruptible."""

import dataclasses
import enum
import functools
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax

from gradaudit import tree
from gradaudit.data import Dataset
from gradaudit.defenses.transforms import check_state
from gradaudit.errors import InputError
from gradaudit.federation.population import Clients, Population, Sampler, Values
from gradaudit.federation.recipe import (
    Recipe,
    ServerState,
    fine_tuning_key,
    initial_state,
    selection_key,
)
from gradaudit.federation.round import RoundInfo, default_chunk, run_round
from gradaudit.machine import device_count, place
from gradaudit.mechanism import Point
from gradaudit.models.gradients import one_hot
from gradaudit.models.model import Model
from gradaudit.types import Key, PyTree

_BATCH = 250


@functools.partial(jax.jit, static_argnums=0)
def evaluate(
    model: Model,
    params: PyTree,
    buffers: PyTree,
    inputs: jax.Array,
    labels: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Returns (accuracy, mean loss); memory does not grow with the examples."""

    def one(example: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        image, label = example
        logits = model.apply(params, buffers, image[None])
        loss = model.example_loss(logits, one_hot(label[None], model.classes))[0]
        return jnp.argmax(logits[0]) == label, loss

    correct, losses = jax.lax.map(
        one, (inputs, labels), batch_size=min(_BATCH, len(inputs))
    )
    return jnp.mean(correct.astype(jnp.float32)), jnp.mean(losses)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PublicData:
    """The server's own examples, and how it learns from them (one epoch of SGD)."""

    inputs: jax.Array  # (examples, *input_shape)
    labels: jax.Array  # (examples,)
    batch_size: int = dataclasses.field(default=50, metadata={"static": True})
    learning_rate: float = dataclasses.field(default=0.05, metadata={"static": True})


def fine_tune(
    model: Model, key: Key, params: PyTree, buffers: PyTree, public: PublicData
) -> tuple[PyTree, PyTree]:
    """Returns parameters and buffers after one epoch in random order.

    A rest that does not fill a batch is left out.
    """
    if len(public.inputs) < public.batch_size:
        raise InputError(
            f"{len(public.inputs)} public examples are fewer than a batch of "
            f"{public.batch_size}"
        )
    tuned: tuple[PyTree, PyTree] = _epoch(model, key, params, buffers, public)
    return tuned


@functools.partial(jax.jit, static_argnums=0)
def _epoch(
    model: Model, key: Key, params: PyTree, buffers: PyTree, public: PublicData
) -> tuple[PyTree, PyTree]:
    optimizer = optax.sgd(public.learning_rate)
    steps = len(public.inputs) // public.batch_size
    order = jax.random.permutation(key, len(public.inputs))
    batches = order[: steps * public.batch_size].reshape(steps, public.batch_size)

    def step(
        carry: tuple[PyTree, PyTree, optax.OptState], chosen: jax.Array
    ) -> tuple[tuple[PyTree, PyTree, optax.OptState], None]:
        params, buffers, memory = carry
        targets = one_hot(public.labels[chosen], model.classes)
        gradient, buffers = jax.grad(model.loss_and_buffers, has_aux=True)(
            params, buffers, public.inputs[chosen], targets
        )
        change, memory = optimizer.update(gradient, memory, params)
        return (optax.apply_updates(params, change), buffers, memory), None

    start = (params, buffers, optimizer.init(params))
    (params, buffers, _), _ = jax.lax.scan(step, start, batches)
    held: tuple[PyTree, PyTree] = jax.tree.map(jnp.asarray, (params, buffers))
    return held


def hold_out(data: Dataset, count: int, seed: int) -> tuple[PublicData | None, Dataset]:
    """Returns the server's own examples, and the others; no example is both."""
    if count == 0:
        return None, data
    if not 0 < count < len(data):
        raise InputError(f"public examples must lie in 1..{len(data) - 1}, got {count}")
    order = np.random.default_rng(seed).permutation(len(data))
    own = data.take(order[:count])
    public = PublicData(
        jnp.asarray(own.inputs), jnp.asarray(own.labels), batch_size=min(50, count)
    )
    return public, data.take(np.sort(order[count:]))


class Stopped(enum.Enum):
    """Why a training ended."""

    ROUNDS = "all rounds are done"
    ACCURACY = "the target accuracy is reached"
    DIVERGED = "diverged: the model is not finite any more, lower the learning rate"
    INTERRUPTED = "interrupted; --resume goes on from here"


@dataclasses.dataclass(frozen=True)
class RoundRecord:
    """What is measured about one round; plain numbers, ready for JSON."""

    round: int  # rounds done
    accuracy: float | None  # on the validation data; None when not measured
    loss: float | None
    training_loss: float  # mean over clients and local iterations
    clients: int
    participants: tuple[int, ...]  # who took part, by id
    norm_before: tuple[float, ...]  # per tensor, without the defense
    norm_after: tuple[float, ...]  # per tensor, as applied
    seconds: float  # the clients and the server, without the evaluation


@dataclasses.dataclass(frozen=True)
class Progress:
    """A training at the end of a round: all that is needed to go on.

    Its size does not grow with the rounds: whoever wants the history keeps the
    records of `last`.
    """

    state: ServerState
    values: Values  # what the sampler knows
    last: RoundRecord | None = None  # of the round that has just ended
    began: ServerState | None = None  # where it began: what its clients received


@dataclasses.dataclass(frozen=True)
class Training:
    """Everything that decides a training's numbers."""

    recipe: Recipe
    population: Population
    sampler: Sampler
    validation: Dataset
    public: PublicData | None = None
    evaluate_every: int = 1

    def __post_init__(self) -> None:
        smallest = int(self.population.sizes.min())
        if not smallest >= self.recipe.batch_size:
            raise InputError(
                f"a client holds {smallest} examples, fewer than the batch size "
                f"{self.recipe.batch_size}"
            )
        if not self.evaluate_every >= 1:
            raise InputError(
                f"evaluate_every must be at least 1, got {self.evaluate_every}"
            )

    def start(self, params: PyTree, buffers: PyTree | None = None) -> Progress:
        """Returns the training before its first round.

        Refuses transforms whose states can't be averaged over clients.
        """
        recipe, state = self.recipe, initial_state(self.recipe, params, buffers)
        for point, transforms, states in (
            (Point.PER_EXAMPLE, recipe.per_example, state.per_example),
            (Point.UPDATE, recipe.update, state.update),
            (Point.SERVER, recipe.server, state.server),
        ):
            for transform, own in zip(transforms, states, strict=True):
                check_state(transform, own, point)
        sizes = np.asarray(self.population.sizes)
        return self.placed(Progress(state, self.sampler.init(sizes)))

    def placed(self, progress: Progress) -> Progress:
        """Returns the progress with its state where a round leaves it.

        Otherwise the second round would be compiled anew for the other placement.
        """
        return dataclasses.replace(progress, state=place(progress.state, shared=True))

    def participants(self, key: Key, progress: Progress) -> Clients:
        """Returns the ids of the clients of the coming round, in their order."""
        chosen = self.sampler.select(
            selection_key(key, progress.state.round), progress.values
        )
        return np.sort(chosen)

    def advance(
        self, key: Key, progress: Progress, chunk: int | None = None
    ) -> Progress:
        """Returns the training after one more round."""
        began, clients = progress.state, self.participants(key, progress)
        clock = time.perf_counter()
        most = -(-self.sampler.count // device_count())
        chunk = min(chunk or default_chunk(began.params), most)
        state, info = run_round(
            self.recipe, self.population, key, began, clients, chunk, self.sampler.room
        )
        if self.public is not None:
            tuning = fine_tuning_key(key, began.round)
            params, buffers = fine_tune(
                self.recipe.model, tuning, state.params, state.buffers, self.public
            )
            state = dataclasses.replace(state, params=params, buffers=buffers)
        jax.block_until_ready(state)  # type: ignore[no-untyped-call]
        seconds = time.perf_counter() - clock
        sizes = np.asarray(self.population.sizes)
        values = self.sampler.learn(
            progress.values, clients, np.asarray(info.losses), sizes
        )
        record = self._measure(state, info, clients, seconds)
        return Progress(state, values, record, began)

    def _measure(
        self, state: ServerState, info: RoundInfo, clients: Clients, seconds: float
    ) -> RoundRecord:
        done, accuracy, loss = int(state.round), None, None
        if done % self.evaluate_every == 0:
            accuracy, loss = self.validate(state)
        losses = np.asarray(info.losses)
        return RoundRecord(
            round=done,
            accuracy=accuracy,
            loss=loss,
            training_loss=float(losses.mean()) if len(losses) else 0.0,
            clients=len(losses),
            participants=tuple(map(int, clients)),
            norm_before=tuple(map(float, info.norm_before)),
            norm_after=tuple(map(float, info.norm_after)),
            seconds=seconds,
        )

    def validate(self, state: ServerState) -> tuple[float, float]:
        """Returns (accuracy, loss) on the validation data."""
        accuracy, loss = evaluate(
            self.recipe.model, state.params, state.buffers, *self._validation
        )
        return float(accuracy), float(loss)

    @functools.cached_property
    def _validation(self) -> tuple[jax.Array, jax.Array]:
        data = self.validation
        held: tuple[jax.Array, jax.Array] = place(
            (jnp.asarray(data.inputs), jnp.asarray(data.labels)), shared=True
        )
        return held


def train_until(
    training: Training,
    key: Key,
    progress: Progress,
    rounds: int,
    target_accuracy: float | None = None,
    chunk: int | None = None,
    on_round: Callable[[Progress], None] = lambda progress: None,
) -> tuple[Progress, Stopped]:
    """Trains until `rounds` are done, the target is reached, or Ctrl-C.

    `on_round` is called with every finished round (to save it, to show it). An
    interrupt gives back the last finished round.
    """
    try:
        while True:
            stopped = _stopped(progress, rounds, target_accuracy)
            if stopped is not None:
                return progress, stopped
            progress = training.advance(key, progress, chunk)
            on_round(progress)
    except KeyboardInterrupt:
        return progress, Stopped.INTERRUPTED


_is_finite = jax.jit(tree.is_finite)


def _stopped(
    progress: Progress, rounds: int, target_accuracy: float | None
) -> Stopped | None:
    """Returns why the training ends with what is done, or None."""
    last, target = progress.last, target_accuracy
    if last is not None:
        finite = np.isfinite(last.training_loss)
        if not finite or not _is_finite(progress.state.params):
            return Stopped.DIVERGED
        if None not in (target, last.accuracy) and last.accuracy >= target:  # type: ignore[operator]
            return Stopped.ACCURACY
    return Stopped.ROUNDS if int(progress.state.round) >= rounds else None
