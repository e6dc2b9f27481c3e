"""Who holds what, and who is drawn: clients of a round, examples of a batch."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Protocol, Self

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from scipy import special

from gradaudit.data import Dataset
from gradaudit.errors import InputError
from gradaudit.federation.setting import Selection, Setting
from gradaudit.types import Key

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


Clients = NDArray[np.integer]  # ids of the selected clients


Values = NDArray[np.float32]  # (clients,) what a sampler knows about each of them


class Sampler(Protocol):
    """Selects clients; `values` is all that it remembers between rounds."""

    @property
    def count(self) -> int:
        """How many clients take part in a round, on average."""

    @property
    def room(self) -> int | None:
        """How many clients a round is made room for; None if it is always `count`."""

    def init(self, sizes: NDArray[np.integer]) -> Values:
        """Returns the values before the first round; `sizes` are examples held."""

    def select(self, key: Key, values: Values) -> Clients:
        """Returns the ids of the clients of a round, each at most once."""

    def learn(
        self,
        values: Values,
        clients: Clients,
        losses: NDArray[np.float32],
        sizes: NDArray[np.integer],
    ) -> Values:
        """Returns the values after a round with these clients and their losses."""


@dataclasses.dataclass(frozen=True)
class _Forgetful:
    """A sampler that selects without looking at the clients."""

    clients: int
    count: int

    def __post_init__(self) -> None:
        _check_count(self.count, self.clients)

    @property
    def room(self) -> int | None:
        """None: every round has `count` clients."""
        return None

    def init(self, sizes: NDArray[np.integer]) -> Values:
        """Returns nothing to remember."""
        return np.zeros(0, np.float32)

    def learn(
        self,
        values: Values,
        clients: Clients,
        losses: NDArray[np.float32],
        sizes: NDArray[np.integer],
    ) -> Values:
        """Returns the values as they are."""
        return values


@dataclasses.dataclass(frozen=True)
class FixedSize(_Forgetful):
    """Exactly `count` of the clients, uniformly without replacement."""

    def select(self, key: Key, values: Values) -> Clients:
        """Returns `count` different ids."""
        chosen = jax.random.choice(key, self.clients, (self.count,), replace=False)
        return np.asarray(chosen)


@dataclasses.dataclass(frozen=True)
class Poisson(_Forgetful):
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
class ActiveSelection:
    """Clients with much data and a high loss more often (Zhu et al., Algorithm 1).

    A client's value is its last training loss times its share of the data, 0 before
    it ever took part; the first round is uniform. The `dropped` share of smallest
    values (alpha_1) is passed over; of the others, (1 - explored) * count clients
    are drawn with probability proportional to exp(sharpness * value) (alpha_2), and
    explored * count (alpha_3) uniformly from all that remain. Selection looks at the
    private data through the losses: subsampling amplification does not apply to it.
    """

    clients: int
    count: int
    dropped: float = 0.75
    sharpness: float = 0.01
    explored: float = 0.1

    def __post_init__(self) -> None:
        _check_count(self.count, self.clients)
        for name in ("dropped", "explored"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise InputError(f"{name} must lie in [0, 1], got {value}")
        kept = self.clients - int(self.dropped * self.clients)
        if not kept >= self._exploited():
            raise InputError(
                f"dropping {self.dropped:g} of {self.clients} clients leaves {kept}, "
                f"fewer than the {self._exploited()} to select by value; drop fewer"
            )

    @property
    def room(self) -> int | None:
        """None: every round has `count` clients."""
        return None

    def _exploited(self) -> int:
        return self.count - round(self.explored * self.count)

    def init(self, sizes: NDArray[np.integer]) -> Values:
        """Returns a value of 0 for every client."""
        return np.zeros(self.clients, np.float32)

    def select(self, key: Key, values: Values) -> Clients:
        """Returns `count` different ids."""
        value_key, explore_key = jax.random.split(key)
        exploited = self._exploited() if np.any(values) else 0
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
        self,
        values: Values,
        clients: Clients,
        losses: NDArray[np.float32],
        sizes: NDArray[np.integer],
    ) -> Values:
        """Returns the values, renewed for the clients that took part."""
        renewed = values.copy()
        renewed[clients] = losses * sizes[clients] / sizes.sum()
        return renewed


def _check_count(count: int, clients: int) -> None:
    if not 1 <= count <= clients:
        raise InputError(f"clients per round must lie in 1..{clients}, got {count}")


_SAMPLERS: dict[Selection, Callable[[int, int], Sampler]] = {
    Selection.FIXED: FixedSize,
    Selection.POISSON: Poisson,
    Selection.ACTIVE: ActiveSelection,
}


def sampler_of(setting: Setting) -> Sampler:
    """Returns what selects the clients of a setting's rounds."""
    return _SAMPLERS[setting.selection](setting.clients, setting.clients_per_round)
