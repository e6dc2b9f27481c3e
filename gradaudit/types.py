"""The core types. Their signatures are the threat model.

Arrays live in registered pytrees; everything else is static and hashable, so that
equal configurations are traced once.
"""

import dataclasses
import enum
from typing import Any

import jax
from numpy.typing import NDArray

PyTree = Any  # a tree of arrays with the structure of the model's parameters


Key = jax.Array


HostOrDevice = jax.Array | NDArray[Any]


class Leakage(enum.IntEnum):
    """Where the adversary reads: the only meaning of `--type`."""

    SERVER = 0  # each client's update, at the server, before aggregation
    CLIENT = 1  # one client's update, at the client, after local training
    EXAMPLE = 2  # one example's gradient, at the client, inside a local iteration


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Victim:
    """The private data. Only federation and metrics may receive it."""

    inputs: jax.Array  # (batch, *input_shape)
    labels: jax.Array  # (batch,)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Observation:
    """All that an attacker has. An attack receives this and a key, nothing else.

    `gradient` is what leaked, on the scale of a gradient: one example's gradient
    (type 2), or -update / learning_rate (types 0 and 1), which for one local step is
    the batch gradient and for L steps the sum of the L batch gradients.
    `labels` is None unless the threat model hands them to the attacker.
    """

    params: PyTree
    gradient: PyTree
    labels: jax.Array | None = None  # (batch_size,)
    leakage: Leakage = dataclasses.field(
        default=Leakage.EXAMPLE, metadata={"static": True}
    )
    batch_size: int = dataclasses.field(default=1, metadata={"static": True})
    local_steps: int = dataclasses.field(default=1, metadata={"static": True})
    learning_rate: float = dataclasses.field(default=1.0, metadata={"static": True})


class Status(enum.IntEnum):
    """Why a reconstruction ended."""

    RUNNING = 0
    CONVERGED = 1  # the attack's own stop rule held
    BUDGET = 2  # the iterations ran out
    DIVERGED = 3  # the objective exploded or was not finite: the best iterate is kept
    STALLED = 4  # no progress of its own objective for a while
    INTERRUPTED = 5  # stopped from outside


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Reconstruction:
    """What an attacker hands in for one victim (or, stacked, for many)."""

    inputs: HostOrDevice  # (batch, *input_shape), attacker-selected
    labels: HostOrDevice  # (batch,)
    objective: HostOrDevice  # () the attack's own objective at `inputs`
    iterations: HostOrDevice  # () attack iterations run
    evaluations: HostOrDevice  # () evaluations of the objective
    status: HostOrDevice  # () a Status

    def take(self, index: Any) -> "Reconstruction":
        """Returns the entries of a stacked reconstruction at an index or a mask."""
        taken: Reconstruction = jax.tree.map(lambda leaf: leaf[index], self)
        return taken
