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

from gradaudit.data import Dataset
from gradaudit.errors import require
from gradaudit.federation.population import Population
from gradaudit.federation.recipe import (
    Recipe,
    ServerState,
    fine_tuning_key,
    initial_state,
    selection_key,
)
from gradaudit.federation.round import RoundInfo, run_round
from gradaudit.federation.sampling import Clients, Sampler, Values
from gradaudit.models.gradients import batch_gradient, one_hot
from gradaudit.models.model import Model
from gradaudit.types import Key, PyTree

_BATCH = 250


@functools.partial(jax.jit, static_argnums=0)
def evaluate(
    model: Model, params: PyTree, inputs: jax.Array, labels: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Returns (accuracy, mean loss); memory does not grow with the examples."""

    def one(example: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        image, label = example
        logits = model.apply(params, image[None])
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


def fine_tune(model: Model, key: Key, params: PyTree, public: PublicData) -> PyTree:
    """Returns the parameters after one epoch in random order; a rest is left out."""
    require(
        len(public.inputs) >= public.batch_size,
        f"{len(public.inputs)} public examples are fewer than a batch of "
        f"{public.batch_size}",
    )
    return _epoch(model, key, params, public)


@functools.partial(jax.jit, static_argnums=0)
def _epoch(model: Model, key: Key, params: PyTree, public: PublicData) -> PyTree:
    optimizer = optax.sgd(public.learning_rate)
    steps = len(public.inputs) // public.batch_size
    order = jax.random.permutation(key, len(public.inputs))
    batches = order[: steps * public.batch_size].reshape(steps, public.batch_size)

    def step(
        carry: tuple[PyTree, optax.OptState], chosen: jax.Array
    ) -> tuple[tuple[PyTree, optax.OptState], None]:
        params, memory = carry
        targets = one_hot(public.labels[chosen], model.classes)
        gradient = batch_gradient(model, params, public.inputs[chosen], targets)
        change, memory = optimizer.update(gradient, memory, params)
        return (optax.apply_updates(params, change), memory), None

    (params, _), _ = jax.lax.scan(step, (params, optimizer.init(params)), batches)
    return jax.tree.map(jnp.asarray, params)


class Stopped(enum.Enum):
    """Why a training ended."""

    ROUNDS = "all rounds are done"
    ACCURACY = "the target accuracy is reached"
    DIVERGED = "the model is not finite any more"
    INTERRUPTED = "interrupted; --resume goes on from here"


@dataclasses.dataclass(frozen=True)
class RoundRecord:
    """What is measured about one round; plain numbers, ready for JSON."""

    round: int  # rounds done
    accuracy: float | None  # on the validation data; None when not measured
    loss: float | None
    training_loss: float  # mean over clients and local iterations
    clients: int
    norm_before: tuple[float, ...]  # per tensor, without the defense
    norm_after: tuple[float, ...]  # per tensor, as applied
    seconds: float  # the clients and the server, without the evaluation


@dataclasses.dataclass(frozen=True)
class Progress:
    """A training at the end of a round: all that is needed to go on."""

    state: ServerState
    values: Values  # what the sampler knows
    history: tuple[RoundRecord, ...] = ()


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
        require(
            smallest >= self.recipe.batch_size,
            f"a client holds {smallest} examples, fewer than the batch size "
            f"{self.recipe.batch_size}",
        )
        require(
            self.evaluate_every >= 1,
            f"evaluate_every must be at least 1, got {self.evaluate_every}",
        )

    def start(self, params: PyTree) -> Progress:
        """Returns the training before its first round."""
        sizes = np.asarray(self.population.sizes)
        return Progress(initial_state(self.recipe, params), self.sampler.init(sizes))

    def participants(self, key: Key, progress: Progress) -> Clients:
        """Returns the ids of the clients of the coming round."""
        return self.sampler.select(
            selection_key(key, progress.state.round), progress.values
        )

    def advance(
        self, key: Key, progress: Progress, chunk: int | None = None
    ) -> Progress:
        """Returns the training after one more round."""
        clients = self.participants(key, progress)
        began = time.perf_counter()
        state, info = run_round(
            self.recipe, self.population, key, progress.state, clients, chunk
        )
        if self.public is not None:
            tuning = fine_tuning_key(key, progress.state.round)
            params = fine_tune(self.recipe.model, tuning, state.params, self.public)
            state = dataclasses.replace(state, params=params)
        jax.block_until_ready(state)  # type: ignore[no-untyped-call]
        seconds = time.perf_counter() - began
        values = self.sampler.learn(
            progress.values,
            np.sort(clients),
            np.asarray(info.losses),
            np.asarray(self.population.sizes),
        )
        record = self._measure(state, info, seconds)
        return Progress(state, values, (*progress.history, record))

    def _measure(
        self, state: ServerState, info: RoundInfo, seconds: float
    ) -> RoundRecord:
        done, accuracy, loss = int(state.round), None, None
        if done % self.evaluate_every == 0:
            accuracy, loss = self.validate(state.params)
        losses = np.asarray(info.losses)
        return RoundRecord(
            round=done,
            accuracy=accuracy,
            loss=loss,
            training_loss=float(losses.mean()) if len(losses) else 0.0,
            clients=len(losses),
            norm_before=tuple(map(float, info.norm_before)),
            norm_after=tuple(map(float, info.norm_after)),
            seconds=seconds,
        )

    def validate(self, params: PyTree) -> tuple[float, float]:
        """Returns (accuracy, loss) on the validation data."""
        data = self.validation
        accuracy, loss = evaluate(
            self.recipe.model,
            params,
            jnp.asarray(data.inputs),
            jnp.asarray(data.labels),
        )
        return float(accuracy), float(loss)


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
        while int(progress.state.round) < rounds:
            progress = training.advance(key, progress, chunk)
            on_round(progress)
            last = progress.history[-1]
            if not np.isfinite(last.training_loss):
                return progress, Stopped.DIVERGED
            if (
                target_accuracy is not None
                and last.accuracy is not None
                and last.accuracy >= target_accuracy
            ):
                return progress, Stopped.ACCURACY
    except KeyboardInterrupt:
        return progress, Stopped.INTERRUPTED
    return progress, Stopped.ROUNDS
