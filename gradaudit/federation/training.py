"""A whole training: who takes part, rounds until a target, measured, interruptible."""

import abc
import dataclasses
import enum
import functools
import math
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from gradaudit import tree
from gradaudit.data import Dataset
from gradaudit.defenses.transforms import check_state
from gradaudit.errors import InputError, at_least
from gradaudit.federation.recipe import (
    Draw,
    Population,
    Recipe,
    ServerState,
    initial_state,
    poisson_room,
    round_key,
)
from gradaudit.federation.round import (
    PublicData,
    RoundInfo,
    default_chunk,
    fine_tune,
    run_round,
)
from gradaudit.federation.setting import Selection, Setting
from gradaudit.machine import device_count, place
from gradaudit.mechanism import Point
from gradaudit.models.gradients import one_hot
from gradaudit.models.model import Model
from gradaudit.types import Key, PyTree

Clients = NDArray[np.integer]  # ids of the selected clients
Sizes = NDArray[np.integer]  # (clients,) examples held
Values = NDArray[np.float32]  # what a sampler remembers between rounds


@dataclasses.dataclass(frozen=True)
class Sampler(abc.ABC):
    """Selects the clients of a round, `count` on average; remembers nothing itself."""

    clients: int
    count: int

    def __post_init__(self) -> None:
        if not 1 <= self.count <= self.clients:
            raise InputError(
                f"clients per round must lie in 1..{self.clients}, got {self.count}"
            )

    @property
    def room(self) -> int | None:
        """How many clients a round is made room for; None if it is always `count`."""
        return None

    def init(self, sizes: Sizes) -> Values:
        """Returns the values before the first round."""
        return np.zeros(0, np.float32)

    @abc.abstractmethod
    def select(self, key: Key, values: Values) -> Clients:
        """Returns the ids of the clients of a round, each at most once."""

    def learn(
        self, values: Values, clients: Clients, losses: Values, sizes: Sizes
    ) -> Values:
        """Returns the values after a round with these clients and their losses."""
        return values


class FixedSize(Sampler):
    """Exactly `count` of the clients, uniformly without replacement."""

    def select(self, key: Key, values: Values) -> Clients:
        """Returns `count` different ids."""
        chosen = jax.random.choice(key, self.clients, (self.count,), replace=False)
        return np.asarray(chosen)


class Poisson(Sampler):
    """Each client on its own coin: the sampling that privacy accounting assumes.

    On average `count` clients take part; a round can be empty.
    """

    @property
    def room(self) -> int | None:
        """What a round hardly ever exceeds; one that does is still computed whole."""
        return poisson_room(self.clients, self.count)

    def select(self, key: Key, values: Values) -> Clients:
        """Returns the ids whose coin fell."""
        rate = self.count / self.clients
        coins = jax.random.bernoulli(key, rate, (self.clients,))
        return np.flatnonzero(np.asarray(coins))


@dataclasses.dataclass(frozen=True)
class ActiveSelection(Sampler):
    """Clients with much data and a high loss more often (Zhu et al., Algorithm 1).

    A client's value is its last training loss times its share of the data, 0 before
    it ever took part; the first round is uniform. The `dropped` share of smallest
    values (alpha_1) is passed over; of the others, (1 - explored) * count clients
    are drawn with probability proportional to exp(sharpness * value) (alpha_2), and
    explored * count (alpha_3) uniformly from all that remain. Selection looks at the
    private data through the losses: subsampling amplification does not apply to it.
    """

    dropped: float = 0.75
    sharpness: float = 0.01
    explored: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("dropped", "explored"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise InputError(f"{name} must lie in [0, 1], got {value}")
        kept = self.clients - int(self.dropped * self.clients)
        if not kept >= self._exploited:
            raise InputError(
                f"dropping {self.dropped:g} of {self.clients} clients leaves {kept}, "
                f"fewer than the {self._exploited} to select by value; drop fewer"
            )

    @property
    def _exploited(self) -> int:
        return self.count - round(self.explored * self.count)

    def init(self, sizes: Sizes) -> Values:
        """Returns a value of 0 for every client."""
        return np.zeros(self.clients, np.float32)

    def select(self, key: Key, values: Values) -> Clients:
        """Returns `count` different ids."""
        value_key, explore_key = jax.random.split(key)
        exploited = self._exploited if np.any(values) else 0
        order = np.argsort(values, kind="stable")
        logits = jnp.asarray(self.sharpness * values)
        logits = logits.at[order[: int(self.dropped * self.clients)]].set(-jnp.inf)
        # The largest of logits + Gumbel noise are a draw without replacement.
        scores = np.asarray(logits + jax.random.gumbel(value_key, (self.clients,)))
        by_value = np.argsort(-scores, kind="stable")[:exploited]
        rest = np.setdiff1d(np.arange(self.clients), by_value)
        explored = jax.random.choice(
            explore_key, rest, (self.count - exploited,), replace=False
        )
        return np.concatenate([by_value, np.asarray(explored)])

    def learn(
        self, values: Values, clients: Clients, losses: Values, sizes: Sizes
    ) -> Values:
        """Returns the values, renewed for the clients that took part."""
        renewed = values.copy()
        renewed[clients] = losses * sizes[clients] / sizes.sum()
        return renewed


_SAMPLERS: dict[Selection, type[Sampler]] = {
    Selection.FIXED: FixedSize,
    Selection.POISSON: Poisson,
    Selection.ACTIVE: ActiveSelection,
}


def sampler_of(setting: Setting) -> Sampler:
    """Returns what selects the clients of a setting's rounds."""
    return _SAMPLERS[setting.selection](setting.clients, setting.clients_per_round)


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

    size = min(250, len(inputs))
    correct, losses = jax.lax.map(one, (inputs, labels), batch_size=size)
    return jnp.mean(correct.astype(jnp.float32)), jnp.mean(losses)


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
        at_least(1, evaluate_every=self.evaluate_every)

    def start(self, params: PyTree, buffers: PyTree | None = None) -> Progress:
        """Returns the training before its first round.

        Refuses transforms whose states can't be averaged over clients.
        """
        recipe, state = self.recipe, initial_state(self.recipe, params, buffers)
        for point in Point:
            transforms, states = (getattr(x, point.value) for x in (recipe, state))
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
            round_key(key, progress.state.round, Draw.SELECTION), progress.values
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
            tuning = round_key(key, began.round, Draw.FINE_TUNING)
            params, buffers = fine_tune(
                self.recipe.model, tuning, state.params, state.buffers, self.public
            )
            state = dataclasses.replace(state, params=params, buffers=buffers)
        jax.block_until_ready(state)  # type: ignore[no-untyped-call]
        seconds = time.perf_counter() - clock
        sizes = np.asarray(self.population.sizes)
        losses = np.asarray(info.losses)
        values = self.sampler.learn(progress.values, clients, losses, sizes)
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
        arrays = jnp.asarray(data.inputs), jnp.asarray(data.labels)
        held: tuple[jax.Array, jax.Array] = place(arrays, shared=True)
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
    last = progress.last
    if last is not None:
        finite = np.isfinite(last.training_loss)
        if not finite or not _is_finite(progress.state.params):
            return Stopped.DIVERGED
        accuracy = -math.inf if last.accuracy is None else last.accuracy
        if target_accuracy is not None and accuracy >= target_accuracy:
            return Stopped.ACCURACY
    return Stopped.ROUNDS if int(progress.state.round) >= rounds else None
