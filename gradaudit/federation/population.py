"""All clients' data: the examples once, and who holds which of them."""

import dataclasses
from collections.abc import Sequence
from typing import Self

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from gradaudit.data import Dataset
from gradaudit.errors import require
from gradaudit.types import Key


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

    @classmethod
    def of(
        cls,
        dataset: Dataset,
        partition: Sequence[NDArray[np.integer]] | NDArray[np.integer],
    ) -> Self:
        """Returns the clients whose examples are given by lists of indices."""
        require(len(partition) > 0, "a population needs at least one client")
        sizes = np.asarray([len(part) for part in partition], np.int32)
        require(
            bool(sizes.min() > 0), f"client {int(sizes.argmin())} holds no examples"
        )
        indices = np.concatenate([np.asarray(part, np.int32) for part in partition])
        require(
            bool(indices.min() >= 0 and indices.max() < len(dataset)),
            f"the partition names example {int(indices.max())}, but dataset "
            f"{dataset.name!r} has {len(dataset)}",
        )
        return cls(
            inputs=jnp.asarray(dataset.inputs),
            labels=jnp.asarray(dataset.labels),
            indices=jnp.asarray(indices),
            starts=jnp.asarray(np.cumsum(sizes) - sizes, dtype=jnp.int32),
            sizes=jnp.asarray(sizes),
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
