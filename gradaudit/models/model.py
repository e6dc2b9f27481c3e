"""A model: a network, its per-example loss and its shapes; and how to make one."""

import dataclasses
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from gradaudit import machine
from gradaudit.errors import InputError, unknown_name
from gradaudit.spec import rebuilds
from gradaudit.types import HostOrDevice, Key, PyTree

if TYPE_CHECKING:
    from gradaudit.data.dataset import Column


class Network(Protocol):
    """What a model is made of: a flax linen module fits, so does `Function`.

    Variables are a dict: `params`, and beside them the buffers by collection. Where
    training looks at the batch as a whole, as batch norm does, it also has
    `train(variables, inputs)`: the logits in training, and the buffers after it.
    """

    def init(self, key: Key, inputs: jax.Array) -> Any:
        """Returns the variables for inputs of this shape."""

    def apply(self, variables: Any, inputs: jax.Array) -> Any:
        """Returns the logits, (batch, classes)."""


@dataclasses.dataclass(frozen=True)
class Function:
    """A user's `apply(params, inputs) -> logits` and `init(key) -> params`."""

    logits: Callable[[PyTree, jax.Array], jax.Array]
    initial: Callable[[Key], PyTree]
    eager: ClassVar[bool] = True  # `initial` is called as it is, outside of a program

    def init(self, key: Key, inputs: jax.Array) -> Any:
        """Returns flax-style variables."""
        del inputs
        return {"params": self.initial(key)}

    def apply(self, variables: Any, inputs: jax.Array) -> Any:
        """Returns the logits, (batch, classes)."""
        return self.logits(variables["params"], inputs)


# Collections in which a network hands out what it computes on the way (`sow`).
INPUTS = "dense_inputs"
STATISTICS = "statistics"


def cross_entropy(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """Returns -sum(targets * log softmax(logits)), one number per example."""
    return -jnp.sum(targets * jax.nn.log_softmax(logits), axis=-1)


@dataclasses.dataclass(frozen=True)
class Patches:
    """A dense layer that reads patches of an image and adds what each position learned.

    Where `positions` (patches, width) is added to what `layer` makes of every patch,
    its gradient is that of the layer's outputs, patch by patch.
    """

    layer: str
    positions: str
    side: int  # of a patch; images are padded with zeros to a multiple of it


@dataclasses.dataclass(frozen=True)
class Model:
    """A network, its per-example loss and the shapes; hashable, a static argument.

    Buffers are the network's variables beside its parameters, by collection (the
    running statistics of batch norm): data that no gradient is taken of. A network
    without them has the empty dict. `coupled` says that training normalises by the
    batch's own statistics: `loss` then is the batch's, no example has a gradient of
    its own, and every step of training moves the buffers. Otherwise training reads
    the buffers as they are and leaves them alone.

    `output_layer` names the entry of the parameters that holds the last dense
    layer's `kernel` (features, classes) and, if it has one, `bias`; label recovery
    reads its gradient. `input_layer` likewise names a dense layer that reads the
    input itself, if there is one, and `patches` one that reads it patch by patch; the
    analytic attack needs one of them. `origin` names the
    function that made it and its arguments, so that a saved run can make it again.
    """

    name: str
    network: Network
    input_shape: tuple[int, ...]
    classes: int
    output_layer: str | None = None
    input_layer: str | None = None
    example_loss: Callable[[jax.Array, jax.Array], jax.Array] = cross_entropy
    coupled: bool = False  # the network has `train`
    drawn: bool = True  # `init` draws; else it returns weights that are given
    # On CPU one victim after the other is faster than several side by side: a
    # convolution that is not ours becomes a grouped one there, ten times slower.
    alone: bool = False
    signed_features: bool = False  # what the output layer reads may be negative
    patches: Patches | None = None
    # Of the tables it reads, where that is known.
    columns: "tuple[Column, ...]" = ()
    origin: tuple[Callable[..., Any], tuple[tuple[str, Any], ...]] | None = (
        dataclasses.field(default=None, compare=False)
    )

    def rebuilt_by(self) -> tuple[Callable[..., Any], dict[str, Any]] | None:
        """Returns what makes this model again, if anything does."""
        return None if self.origin is None else (self.origin[0], dict(self.origin[1]))

    def init(self, key: Key) -> PyTree:
        """Returns fresh parameters."""
        # A user's own function may do what it likes; a network starts much faster
        # as one program, without the logits that its `init` computes on the way.
        own = getattr(self.network, "eager", False)
        return _initial(self, key) if own else _compiled_initial(self, key)

    def initial_buffers(self, key: Key) -> PyTree:
        """Returns the buffers that belong to the fresh parameters of this key."""
        own = getattr(self.network, "eager", False)
        return _buffers(self, key) if own else _compiled_buffers(self, key)

    def shapes(self) -> tuple[PyTree, PyTree]:
        """Returns the shapes of parameters and buffers; nothing is computed."""
        return _shapes(self)

    def apply(self, params: PyTree, buffers: PyTree, inputs: jax.Array) -> jax.Array:
        """Returns the logits (batch, classes) of inputs (batch, *input_shape).

        This is evaluation: what is predicted of an example depends on it alone.
        """
        logits: jax.Array = self.network.apply({"params": params, **buffers}, inputs)
        return logits

    def training_losses(
        self, params: PyTree, buffers: PyTree, inputs: jax.Array, targets: jax.Array
    ) -> tuple[jax.Array, PyTree]:
        """Returns one loss per example, and the buffers after this step of training.

        Targets are (batch, classes) weights.
        """
        if self.coupled:
            network: Any = self.network
            logits, buffers = network.train({"params": params, **buffers}, inputs)
        else:
            logits = self.apply(params, buffers, inputs)
        return self.example_loss(logits, targets), buffers

    def losses(
        self, params: PyTree, buffers: PyTree, inputs: jax.Array, targets: jax.Array
    ) -> jax.Array:
        """Returns one loss per example, as training computes it."""
        return self.training_losses(params, buffers, inputs, targets)[0]

    def loss(
        self, params: PyTree, buffers: PyTree, inputs: jax.Array, targets: jax.Array
    ) -> jax.Array:
        """Returns the mean loss of a batch: clients descend its gradient."""
        return jnp.mean(self.losses(params, buffers, inputs, targets))

    def loss_and_buffers(
        self, params: PyTree, buffers: PyTree, inputs: jax.Array, targets: jax.Array
    ) -> tuple[jax.Array, PyTree]:
        """Returns the mean loss of a batch, and the buffers after it."""
        losses, after = self.training_losses(params, buffers, inputs, targets)
        return jnp.mean(losses), after

    def check_apart(self, purpose: str, instead: str) -> None:
        """Raises in words where examples have no gradients of their own."""
        if self.coupled:
            raise InputError(
                f"{purpose}, and model {self.name!r} normalises by the statistics of "
                f"the whole batch: an example has no gradient of its own. {instead}"
            )


def _variables(model: Model, key: Key) -> dict[str, PyTree]:
    dummy = jnp.zeros((1, *model.input_shape), jnp.float32)
    variables: dict[str, PyTree] = model.network.init(key, dummy)
    return variables


@functools.lru_cache(maxsize=64)
def _shapes(model: Model) -> tuple[PyTree, PyTree]:
    # Kept: tracing a network takes time.
    key = jax.random.key(0)
    return jax.eval_shape(model.init, key), jax.eval_shape(model.initial_buffers, key)


def _initial(model: Model, key: Key) -> PyTree:
    return _variables(model, key)["params"]


def _buffers(model: Model, key: Key) -> PyTree:
    return {k: v for k, v in _variables(model, key).items() if k not in _NO_BUFFERS}


_NO_BUFFERS = ("params", INPUTS, STATISTICS)
_compiled_initial = machine.briefly(static_argnums=(0,))(_initial)
_compiled_buffers = machine.briefly(static_argnums=(0,))(_buffers)


def from_function(
    logits: Callable[[PyTree, jax.Array], jax.Array],
    init: Callable[[Key], PyTree],
    input_shape: tuple[int, ...],
    classes: int,
    name: str = "custom",
    output_layer: str | None = None,
    input_layer: str | None = None,
) -> Model:
    """Makes any pure `logits(params, inputs)` a Model (see `Model` for the names)."""
    network = Function(logits, init)
    return Model(name, network, tuple(input_shape), classes, output_layer, input_layer)


_SMALLEST = 1e-3  # a feature that hardly varies is not blown up


@dataclasses.dataclass(frozen=True)
class Standardized:
    """A network that reads (inputs - mean) / deviation, feature by feature."""

    network: Any
    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    def init(self, key: Key, inputs: jax.Array) -> Any:
        """Returns the network's variables."""
        return self.network.init(key, self._scaled(inputs))

    def apply(self, variables: Any, inputs: jax.Array) -> Any:
        """Returns the logits, (batch, classes)."""
        return self.network.apply(variables, self._scaled(inputs))

    def train(self, variables: Any, inputs: jax.Array) -> tuple[Any, PyTree]:
        """Returns the logits in training and the buffers, of a coupled network."""
        logits, buffers = self.network.train(variables, self._scaled(inputs))
        return logits, buffers

    def _scaled(self, inputs: jax.Array) -> jax.Array:
        shape = inputs.shape[1:]
        mean = jnp.asarray(self.mean, inputs.dtype).reshape(shape)
        return (inputs - mean) / jnp.asarray(self.deviation).reshape(shape)


def standardize(model: Model, inputs: NDArray[np.floating]) -> Model:
    """Returns the model with the means and deviations of these inputs in front.

    The statistics become part of the model, which every client and adversary knows.
    """
    flat = inputs.reshape(len(inputs), -1).astype(np.float64)
    deviation = np.maximum(flat.std(axis=0), _SMALLEST)
    return with_statistics(
        model, tuple(flat.mean(axis=0).tolist()), tuple(deviation.tolist())
    )


@rebuilds
def with_statistics(
    model: Model, mean: tuple[float, ...], deviation: tuple[float, ...]
) -> Model:
    """Returns the model that reads (inputs - mean) / deviation."""
    given = (("model", model), ("mean", mean), ("deviation", deviation))
    # The first dense layer no longer reads the input itself.
    return dataclasses.replace(
        model,
        name=f"{model.name}, standardized",
        network=Standardized(model.network, mean, deviation),
        input_layer=None,
        patches=None,
        origin=(with_statistics, given),
    )


def check_batch(model: Model, inputs: HostOrDevice, labels: HostOrDevice) -> None:
    """Raises unless inputs and labels fit the model (host side, before jit)."""
    if tuple(inputs.shape[1:]) != model.input_shape:
        raise InputError(
            f"model {model.name!r} reads inputs of shape {model.input_shape}, "
            f"got {tuple(inputs.shape[1:])}"
        )
    if not len(inputs):
        raise InputError("the batch is empty")
    if labels.shape != (len(inputs),):
        raise InputError(
            f"{len(inputs)} inputs need labels of shape ({len(inputs)},), "
            f"got {labels.shape}"
        )
    if not np.isfinite(np.asarray(inputs)).all():
        raise InputError("the inputs hold NaN or infinity")
    known = np.asarray(labels)
    outside = (known < 0) | (known >= model.classes)
    if outside.any():
        value = int(known[np.argmax(outside)])
        raise InputError(f"label {value} is outside [0, {model.classes})")


def squared_error(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """Returns mean((logits - targets)^2) over the outputs, one number per example."""
    return jnp.mean(jnp.square(logits - targets), axis=-1)


@dataclasses.dataclass(frozen=True)
class OneLogit:
    """A network with one logit z, read as the logits (0, z) of two classes.

    Cross-entropy of these is the binary cross-entropy of z.
    """

    network: Any
    eager: ClassVar[bool] = True  # asks the network, which knows best

    def init(self, key: Key, inputs: jax.Array) -> Any:
        """Returns the network's variables."""
        return self.network.init(key, inputs)

    def apply(self, variables: Any, inputs: jax.Array) -> Any:
        """Returns (batch, 2)."""
        return _two(self.network.apply(variables, inputs))

    def train(self, variables: Any, inputs: jax.Array) -> tuple[Any, PyTree]:
        """Returns (batch, 2) in training, and the buffers, of a coupled network."""
        logits, buffers = self.network.train(variables, inputs)
        return _two(logits), buffers

    @property
    def arrange(self) -> Any:
        """How the network reads named tensors; None if it has no names of its own."""
        return getattr(self.network, "arrange", None)


def _two(logits: jax.Array) -> jax.Array:
    single = logits.reshape(logits.shape[0], 1)
    return jnp.concatenate([jnp.zeros_like(single), single], axis=-1)


LOSSES = ("cross-entropy", "binary", "squared")


def with_loss(model: Model, loss: str) -> Model:
    """Returns the model trained by a loss of the table."""
    if loss not in LOSSES:
        raise unknown_name("loss", loss, LOSSES)
    if loss == "binary":
        model = dataclasses.replace(model, network=OneLogit(model.network), classes=2)
    chosen = squared_error if loss == "squared" else cross_entropy
    return dataclasses.replace(model, example_loss=chosen)
