"""Which clients take part in a round."""

import dataclasses
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from gradaudit.errors import require
from gradaudit.types import Key

Clients = NDArray[np.integer]  # ids of the selected clients


Values = NDArray[np.float32]  # (clients,) what a sampler knows about each of them


class Sampler(Protocol):
    """Selects clients; `values` is all that it remembers between rounds."""

    @property
    def rate(self) -> float:
        """The share of the clients that takes part in a round, on average."""

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

    count: int

    def __post_init__(self) -> None:
        _check_count(self.count, self.clients)

    @property
    def rate(self) -> float:
        """The share of the clients in a round."""
        return self.count / self.clients

    def select(self, key: Key, values: Values) -> Clients:
        """Returns `count` different ids."""
        chosen = jax.random.choice(key, self.clients, (self.count,), replace=False)
        return np.asarray(chosen)


@dataclasses.dataclass(frozen=True)
class Poisson(_Forgetful):
    """Each client on its own coin: the sampling that privacy accounting assumes.

    On average `count` clients take part; a round can be empty.
    """

    count: int

    def __post_init__(self) -> None:
        _check_count(self.count, self.clients)

    @property
    def rate(self) -> float:
        """The probability of each client."""
        return self.count / self.clients

    def select(self, key: Key, values: Values) -> Clients:
        """Returns the ids whose coin fell."""
        coins = jax.random.bernoulli(key, self.rate, (self.clients,))
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
            require(0 <= value <= 1, f"{name} must lie in [0, 1], got {value}")
        kept = self.clients - int(self.dropped * self.clients)
        require(
            kept >= self._exploited(),
            f"dropping {self.dropped:g} of {self.clients} clients leaves {kept}, "
            f"fewer than the {self._exploited()} to select by value; drop fewer",
        )

    @property
    def rate(self) -> float:
        """One: the selection is not random with respect to the data."""
        return 1.0

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
    require(
        1 <= count <= clients,
        f"clients per round must lie in 1..{clients}, got {count}",
    )
