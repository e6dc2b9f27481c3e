"""What a round is computed from: the static recipe, the server's state, the keys.

Every draw is addressed by (round, client id, local iteration), never by a position
in a chunk or on a device, so that how the work is laid out changes no number.
"""

import dataclasses
from typing import Self

import jax
import optax

from gradaudit.defenses.transforms import (
    Defense,
    State,
    Transform,
    init_states,
    is_additive,
    is_independent,
)
from gradaudit.errors import InputError
from gradaudit.federation.setting import Batches, Optimizer, Setting, Weighting
from gradaudit.models.model import Model
from gradaudit.types import Key, PyTree

_OPTIMIZERS = {Optimizer.SGD: optax.sgd, Optimizer.ADAM: optax.adam}


@dataclasses.dataclass(frozen=True)
class Recipe:
    """The model, the defense's transforms and how clients and server compute."""

    model: Model
    per_example: tuple[Transform, ...]
    update: tuple[Transform, ...]
    server: tuple[Transform, ...]
    local_steps: int
    batch_size: int
    learning_rate: float
    optimizer: Optimizer
    weighting: Weighting
    batches: Batches = Batches.FIXED

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
    def unitwise(self) -> tuple[Transform, ...]:
        """The per-example transforms before the noise that is added at their end."""
        return self.per_example[: len(self.per_example) - len(self.added)]

    @property
    def added(self) -> tuple[Transform, ...]:
        """The noise that is added at the end of the per-example transforms, if any."""
        last = self.per_example[-1:]
        return last if last and is_additive(last[0]) else ()

    def local_optimizer(self) -> optax.GradientTransformation:
        """Returns the clients' optimiser."""
        return _OPTIMIZERS[self.optimizer](self.learning_rate)


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
    per_example: tuple[State, ...]
    update: tuple[State, ...]
    server: tuple[State, ...]
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
        round=jax.numpy.zeros((), jax.numpy.int32),
        buffers={} if buffers is None else buffers,
    )


# Branches of a round's key; clients' ids have a branch of their own.
_CLIENTS, _SERVER, _SELECTION, _FINE_TUNING = range(4)


# Branches of a client's key.
_LOCAL, _UPDATE = range(2)


def _branch(key: Key, t: jax.Array | int, branch: int) -> Key:
    return jax.random.fold_in(jax.random.fold_in(key, t), branch)


def client_key(key: Key, t: jax.Array | int, client: jax.Array | int) -> Key:
    """Returns the key of one client in round t."""
    return jax.random.fold_in(_branch(key, t, _CLIENTS), client)


def server_key(key: Key, t: jax.Array | int) -> Key:
    """Returns the key of the server's transforms in round t.

    Transforms that treat each client alone fold the client's id into it.
    """
    return _branch(key, t, _SERVER)


def selection_key(key: Key, t: jax.Array | int) -> Key:
    """Returns the key that selects the clients of round t."""
    return _branch(key, t, _SELECTION)


def fine_tuning_key(key: Key, t: jax.Array | int) -> Key:
    """Returns the key of the server's public fine-tuning in round t."""
    return _branch(key, t, _FINE_TUNING)


def iteration_keys(client: Key, step: jax.Array | int) -> tuple[Key, Key]:
    """Returns (batch, noise) keys of a client's local iteration."""
    local = jax.random.fold_in(client, _LOCAL)
    batch, noise = jax.random.split(jax.random.fold_in(local, step))
    return batch, noise


def update_key(client: Key) -> Key:
    """Returns the key of the client's transforms on its finished update."""
    return jax.random.fold_in(client, _UPDATE)
