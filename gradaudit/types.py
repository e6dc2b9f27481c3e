"""The core types. Their signatures are the threat model.

Arrays live in registered pytrees; everything else is static and hashable, so that
equal configurations are traced once.
"""

import dataclasses
import enum
from collections.abc import Callable
from typing import Any

import jax
from numpy.typing import NDArray

from gradaudit.errors import InputError

PyTree = Any  # a tree of arrays with the structure of the model's parameters
Key = jax.Array
HostOrDevice = jax.Array | NDArray[Any]


class Leakage(enum.IntEnum):
    """Where the adversary reads: the only meaning of `--type`."""

    SERVER = 0  # each client's update, at the server, before aggregation
    CLIENT = 1  # one client's update, at the client, after local training
    EXAMPLE = 2  # one example's gradient, at the client, inside a local iteration

    @classmethod
    def _missing_(cls, value: object) -> "Leakage":
        raise InputError(f"type must be 0, 1 or 2, got {value!r}")


class Knowledge(enum.Enum):
    """What a threat may hand over beside the model, its parameters and the sizes.

    An attack says what it needs; a run refuses one that needs more than its threat
    gives.
    """

    LABELS = "the true labels, and which local step each of them belongs to"
    DEFENSE = "the defense and its parameters"
    PUBLIC_DATA = "public data of the same kind"
    CANDIDATES = "candidates, one of which is the victim"
    PARAMETERS = "the choice of the parameters that clients receive"


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Victim:
    """The private data. Only federation and evaluators may receive it."""

    inputs: jax.Array  # (batch, *input_shape)
    labels: jax.Array  # (batch,)


@dataclasses.dataclass(frozen=True)
class LocalTraining:
    """How the client came to what it sent, as far as the attacker knows it."""

    batch_size: int = 1
    local_steps: int = 1
    learning_rate: float = 1.0
    optimizer: str = "sgd"

    @property
    def examples(self) -> int:
        """How many inputs there are to rebuild."""
        return self.batch_size * self.local_steps


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Observation:
    """All that an attacker has. An attack receives this and a key, nothing else.

    `sent` is what was read, as it was sent: one example's gradient (type 2), or the
    client's update, parameters after local training minus parameters received
    (types 0 and 1). Stacked over victims, `sent`, `sent_buffers` and `labels` have a
    leading axis. `others` are further looks at the same examples: in later rounds, with
    other parameters and fresh noise.
    """

    params: PyTree  # as the client received them
    sent: PyTree
    buffers: PyTree = dataclasses.field(default_factory=dict)  # batch-norm statistics
    labels: jax.Array | None = None  # (examples,) only if the threat hands them over
    memory: PyTree = ()  # the states of the defense that is told, if one is
    public: HostOrDevice | None = None  # (n, *input_shape) examples of the same kind
    # What the client sent of its buffers (types 0, 1), where training moves them;
    # no defense touches them.
    sent_buffers: PyTree = dataclasses.field(default_factory=dict)
    others: "tuple[Observation, ...]" = ()
    leakage: Leakage = dataclasses.field(
        default=Leakage.EXAMPLE, metadata={"static": True}
    )
    training: LocalTraining = dataclasses.field(
        default=LocalTraining(), metadata={"static": True}
    )
    told: Any = dataclasses.field(  # an evidence.Told: only an aware threat has one
        default=None, metadata={"static": True}
    )

    @property
    def gradient(self) -> PyTree:
        """What was sent on the scale of a gradient, the only place that rescales.

        For one local step of plain SGD it is the batch gradient, for L of them the
        sum of the L batch gradients.
        """
        if self.leakage is Leakage.EXAMPLE:
            return self.sent
        factor = -1.0 / self.training.learning_rate
        return jax.tree.map(lambda leaf: factor * leaf, self.sent)

    def per_victim(self, change: Callable[[HostOrDevice], Any]) -> "Observation":
        """Returns it with a change of every array that belongs to one victim."""
        sent, buffers, labels = jax.tree.map(
            change, (self.sent, self.sent_buffers, self.labels)
        )
        others = tuple(other.per_victim(change) for other in self.others)
        return dataclasses.replace(
            self, sent=sent, sent_buffers=buffers, labels=labels, others=others
        )

    @property
    def looks(self) -> "tuple[Observation, ...]":
        """All looks at the examples, each as an observation of its own."""
        return dataclasses.replace(self, others=()), *self.others

    def first(self) -> "Observation":
        """Returns the first victim's of a stacked observation."""
        return self.per_victim(lambda leaf: leaf[0])


class Status(enum.IntEnum):
    """Why a reconstruction ended; `says` is the sentence for people."""

    RUNNING = 0
    CONVERGED = 1
    BUDGET = 2
    DIVERGED = 3
    STALLED = 4
    INTERRUPTED = 5
    MISSING = 6

    @property
    def says(self) -> str:
        """The status in words."""
        return _SAYS[self]


_SAYS = {
    Status.RUNNING: "still searching",
    Status.CONVERGED: "the attack's own stop rule held",
    Status.BUDGET: "the iterations ran out",
    Status.DIVERGED: "the objective exploded or was not finite: the best is kept",
    Status.STALLED: "no progress of its own objective for a while",
    Status.INTERRUPTED: "stopped from outside: the best so far",
    Status.MISSING: "never begun: stopped from outside",
}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Reconstruction:
    """What an attacker hands in for one victim (or, stacked, for many).

    An objective that is not finite says that nothing was found: inputs are where the
    search began, and NaN where it never did. `trial` says which of its restarts was
    handed in. A portfolio's are counted through all of its members, and `members` is
    what each of them found, with an axis of members after that of the victims; who was
    not asked is MISSING there.
    """

    inputs: HostOrDevice  # (batch, *input_shape), attacker-selected
    labels: HostOrDevice  # (batch,)
    objective: HostOrDevice  # () the attack's own objective at `inputs`
    iterations: HostOrDevice  # () attack iterations run
    evaluations: HostOrDevice  # () evaluations of the objective
    status: HostOrDevice  # () a Status
    trial: HostOrDevice | None = None  # () which restart it is
    members: "Reconstruction | None" = None

    def take(self, index: Any) -> "Reconstruction":
        """Returns the entries of a stacked reconstruction at an index or a mask."""
        taken: Reconstruction = jax.tree.map(lambda leaf: leaf[index], self)
        return taken
