"""The core types. Their signatures are the threat model.

Arrays live in registered pytrees; everything else is static and hashable, so that
equal configurations are traced once.
"""

import dataclasses
import enum
from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from numpy.typing import NDArray

PyTree = Any  # a tree of arrays with the structure of the model's parameters
Key = jax.Array
HostOrDevice = jax.Array | NDArray[Any]


class Leakage(enum.IntEnum):
    """Where the adversary reads: the only meaning of `--type`."""

    SERVER = 0  # each client's update, at the server, before aggregation
    CLIENT = 1  # one client's update, at the client, after local training
    EXAMPLE = 2  # one example's gradient, at the client, inside a local iteration


class Network(Protocol):
    """What a model is made of: a flax linen module fits, so does `Function`."""

    def init(self, key: Key, inputs: jax.Array) -> Any:
        """Returns the variables for inputs of this shape."""

    def apply(self, variables: Any, inputs: jax.Array) -> Any:
        """Returns the logits, (batch, classes)."""


@dataclasses.dataclass(frozen=True)
class Function:
    """A user's `apply(params, inputs) -> logits` and `init(key) -> params`."""

    logits: Callable[[PyTree, jax.Array], jax.Array]
    initial: Callable[[Key], PyTree]

    def init(self, key: Key, inputs: jax.Array) -> Any:
        """Returns flax-style variables."""
        del inputs
        return {"params": self.initial(key)}

    def apply(self, variables: Any, inputs: jax.Array) -> Any:
        """Returns the logits, (batch, classes)."""
        return self.logits(variables["params"], inputs)


def cross_entropy(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """Returns -sum(targets * log softmax(logits)), one number per example."""
    return -jnp.sum(targets * jax.nn.log_softmax(logits), axis=-1)


@dataclasses.dataclass(frozen=True)
class Model:
    """A network, its per-example loss and the shapes; hashable, a static argument.

    `output_layer` names the entry of the parameters that holds the last dense
    layer's `kernel` (features, classes) and, if it has one, `bias`; label recovery
    reads its gradient. `input_layer` likewise names a dense layer that reads the
    input itself, if there is one; the analytic attack needs it.
    """

    name: str
    network: Network
    input_shape: tuple[int, ...]
    classes: int
    output_layer: str | None = None
    input_layer: str | None = None
    example_loss: Callable[[jax.Array, jax.Array], jax.Array] = cross_entropy

    def init(self, key: Key) -> PyTree:
        """Returns fresh parameters."""
        # A user's own function may do what it likes; a network starts much faster
        # as one program, without the logits that its `init` computes on the way.
        own = isinstance(self.network, Function)
        return _initial(self, key) if own else _compiled_initial(self, key)

    def apply(self, params: PyTree, inputs: jax.Array) -> jax.Array:
        """Returns the logits (batch, classes) of inputs (batch, *input_shape)."""
        logits: jax.Array = self.network.apply({"params": params}, inputs)
        return logits

    def losses(
        self, params: PyTree, inputs: jax.Array, targets: jax.Array
    ) -> jax.Array:
        """Returns one loss per example; targets are (batch, classes) weights."""
        return self.example_loss(self.apply(params, inputs), targets)

    def loss(self, params: PyTree, inputs: jax.Array, targets: jax.Array) -> jax.Array:
        """Returns the mean loss of a batch."""
        return jnp.mean(self.losses(params, inputs, targets))


def _initial(model: Model, key: Key) -> PyTree:
    dummy = jnp.zeros((1, *model.input_shape), jnp.float32)
    return model.network.init(key, dummy)["params"]


_compiled_initial = jax.jit(_initial, static_argnums=0)


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
