"""What a round is computed from: recipe, clients' data, the server's state, keys.

Every draw is addressed by (round, client id, local iteration), never by a position
in a chunk or on a device, so that how the work is laid out changes no number.
"""

import dataclasses
import enum
from collections.abc import Sequence
from typing import Self

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from scipy import special

from gradaudit.data import Dataset
from gradaudit.defenses.transforms import (
    Defense,
    States,
    Transform,
    Transforms,
    init_states,
    is_additive,
    is_independent,
)
from gradaudit.errors import InputError
from gradaudit.federation.setting import Batches, Optimizer, Setting, Weighting
from gradaudit.models.model import Model
from gradaudit.types import Key, PyTree


@dataclasses.dataclass(frozen=True)
class Recipe:
    """The model, the defense's transforms and how clients and server compute."""

    model: Model
    per_example: Transforms
    update: Transforms
    server: Transforms
    local_steps: int
    batch_size: int
    learning_rate: float
    optimizer: Optimizer
    weighting: Weighting
    batches: Batches

    def __post_init__(self) -> None:
        if self.per_example:
            self.model.check_apart(
                "the defense changes the gradient of every example",
                "Choose a defense of the whole update, or a model with group norm or "
                "with batch norm in evaluation mode.",
            )
        if self.batches is Batches.POISSON:
            self.model.check_apart(
                "Poisson batches are padded", "Choose batches of a fixed size."
            )
            for transform in self.unitwise:
                _check_in_poisson_batches(transform)

    @classmethod
    def of(cls, model: Model, defense: Defense, setting: Setting) -> Self:
        """Returns the recipe; what a defense only claims is left behind."""
        return cls(
            model=model,
            per_example=defense.per_example,
            update=defense.update,
            server=defense.server,
            local_steps=setting.local_steps,
            batch_size=setting.batch_size,
            learning_rate=setting.learning_rate,
            optimizer=setting.optimizer,
            weighting=setting.weighting,
            batches=setting.batches,
        )

    @property
    def server_sees_round(self) -> bool:
        """Whether a server transform must see all clients of the round at once."""
        return not all(map(is_independent, self.server))

    @property
    def unitwise(self) -> Transforms:
        """The per-example transforms before the noise that is added at their end."""
        return self.per_example[: len(self.per_example) - len(self.added)]

    @property
    def added(self) -> Transforms:
        """The noise that is added at the end of the per-example transforms, if any."""
        last = self.per_example[-1:]
        return last if last and is_additive(last[0]) else ()


def _check_in_poisson_batches(transform: Transform) -> None:
    name = type(transform).__name__
    if not is_independent(transform):
        raise InputError(
            f"{name} looks at all examples of a batch at once, and a Poisson batch is "
            "padded: choose batches of a fixed size, or a defense that treats each "
            "example on its own"
        )
    if is_additive(transform):
        raise InputError(
            f"{name} adds noise before another transform: in Poisson batches noise "
            "must come last, or an empty batch would have none; choose batches of a "
            "fixed size"
        )


_TAIL = 1e-10  # how rarely Poisson draws exceed the room that is kept for them


def poisson_room(size: int, expected: int) -> int:
    """Returns how many of `size` coins of mean `expected` heads are made room for.

    More fall with a probability below 1e-10.
    """
    rate = expected / size
    rooms = range(expected, size)
    rare = (room for room in rooms if special.bdtrc(room, size, rate) < _TAIL)
    return next(rare, size)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Population:
    """N clients over one copy of the data; memory per client is its index list.

    Client i holds the examples `indices[starts[i] : starts[i] + sizes[i]]`.
    """

    inputs: jax.Array  # (examples, *input_shape)
    labels: jax.Array  # (examples,)
    indices: jax.Array  # (sum of sizes,)
    starts: jax.Array  # (clients,)
    sizes: jax.Array  # (clients,)
    largest: int = dataclasses.field(metadata={"static": True})  # of the sizes

    @classmethod
    def of(
        cls,
        dataset: Dataset,
        partition: Sequence[NDArray[np.integer]] | NDArray[np.integer],
    ) -> Self:
        """Returns the clients whose examples are given by lists of indices."""
        if not len(partition):
            raise InputError("a population needs at least one client")
        sizes = np.asarray([len(part) for part in partition], np.int32)
        if not sizes.min() > 0:
            raise InputError(f"client {int(sizes.argmin())} holds no examples")
        indices = np.concatenate([np.asarray(part, np.int32) for part in partition])
        if not (indices.min() >= 0 and indices.max() < len(dataset)):
            raise InputError(
                f"the partition names example {int(indices.max())}, but dataset "
                f"{dataset.name!r} has {len(dataset)}"
            )
        return cls(
            inputs=jnp.asarray(dataset.inputs),
            labels=jnp.asarray(dataset.labels),
            indices=jnp.asarray(indices),
            starts=jnp.asarray(np.cumsum(sizes) - sizes, dtype=jnp.int32),
            sizes=jnp.asarray(sizes),
            largest=int(sizes.max()),
        )

    @property
    def clients(self) -> int:
        """The number of clients."""
        return len(self.sizes)

    def batch(
        self, key: Key, client: jax.Array | int, count: int
    ) -> tuple[jax.Array, jax.Array]:
        """Returns `count` different examples of a client, uniformly, as a batch."""
        positions = draw_without_replacement(key, self.sizes[client], count)
        chosen = self.indices[self.starts[client] + positions]
        return self.inputs[chosen], self.labels[chosen]

    def poisson_batch(
        self, key: Key, client: jax.Array | int, expected: int
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Returns each example of a client on its own coin, `expected` on average.

        The third array, (room,) float32, is 1 for the examples that were drawn and 0
        for the rows behind them that only fill the room (see `poisson_room`). A draw
        that exceeds it is cut, which adds at most 1e-10 to the delta of a step.
        """
        size = self.sizes[client]
        places = jnp.arange(self.largest)
        fallen = jax.random.uniform(key, (self.largest,)) < expected / size
        fallen &= places < size
        room = poisson_room(self.largest, expected)
        (positions,) = jnp.nonzero(fallen, size=room, fill_value=0)
        chosen = self.indices[self.starts[client] + positions]
        present = jnp.arange(room) < jnp.sum(fallen)
        return self.inputs[chosen], self.labels[chosen], present.astype(jnp.float32)


def draw_without_replacement(key: Key, size: jax.Array | int, count: int) -> jax.Array:
    """Returns `count` different numbers below `size`, in uniform order.

    Floyd's algorithm: the cost depends on `count` alone, so that clients of
    different sizes need no padding. `size` must be at least `count`.
    """
    draw_key, order_key = jax.random.split(key)
    last = size - count + jnp.arange(count)
    drawn = jax.random.randint(draw_key, (count,), 0, last + 1)

    def place(i: jax.Array | int, chosen: jax.Array) -> jax.Array:
        taken = jnp.any(chosen == drawn[i])
        return chosen.at[i].set(jnp.where(taken, last[i], drawn[i]))

    empty = jnp.full((count,), -1, drawn.dtype)
    chosen = jax.lax.fori_loop(0, count, place, empty, unroll=count <= 16)
    return jax.random.permutation(order_key, chosen)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ServerState:
    """What the next round needs: the model and what the transforms remember.

    Buffers are sent to the clients with the parameters. Where training moves them
    (`Model.coupled`), every client sends its own back beside its update, and the
    server averages them with the clients' weights, as FedAvg does with parameters.
    No transform of a defense touches them.
    """

    params: PyTree
    per_example: States
    update: States
    server: States
    round: jax.Array  # () rounds done, int32
    buffers: PyTree = dataclasses.field(default_factory=dict)


def initial_state(
    recipe: Recipe, params: PyTree, buffers: PyTree | None = None
) -> ServerState:
    """Returns the state before the first round; no buffers are the empty dict."""
    return ServerState(
        params=params,
        per_example=init_states(recipe.per_example, params),
        update=init_states(recipe.update, params),
        server=init_states(recipe.server, params),
        round=jnp.zeros((), jnp.int32),
        buffers={} if buffers is None else buffers,
    )


class Draw(enum.Enum):
    """What is drawn in a round: branches of its key."""

    CLIENTS = 0  # whose ids have a branch of their own
    SERVER = 1  # the server's transforms; alone, with the client's id folded in
    SELECTION = 2  # who takes part
    FINE_TUNING = 3  # on the server's public data


def round_key(key: Key, t: jax.Array | int, draw: Draw) -> Key:
    """Returns the key of what is drawn in round t."""
    return jax.random.fold_in(jax.random.fold_in(key, t), draw.value)


def client_key(key: Key, t: jax.Array | int, client: jax.Array | int) -> Key:
    """Returns the key of one client in round t."""
    return jax.random.fold_in(round_key(key, t, Draw.CLIENTS), client)


_LOCAL, _UPDATE = range(2)  # branches of a client's key


def iteration_keys(client: Key, step: jax.Array | int) -> tuple[Key, Key]:
    """Returns (batch, noise) keys of a client's local iteration."""
    local = jax.random.fold_in(client, _LOCAL)
    batch, noise = jax.random.split(jax.random.fold_in(local, step))
    return batch, noise


def update_key(client: Key) -> Key:
    """Returns the key of the client's transforms on its finished update."""
    return jax.random.fold_in(client, _UPDATE)
