"""The static side of a round: everything that a trace depends on, hashable."""

import dataclasses
from typing import Self

import jax
import optax

from gradaudit.config import Aggregation, Federation, Optimizer, Weighting
from gradaudit.defenses.base import Defense, State, Transform, init_states
from gradaudit.types import Model, PyTree

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
    aggregation: Aggregation
    weighting: Weighting

    @classmethod
    def of(cls, model: Model, defense: Defense, federation: Federation) -> Self:
        """Returns the recipe; what a defense only claims is left behind."""
        return cls(
            model=model,
            per_example=defense.per_example,
            update=defense.update,
            server=defense.server,
            local_steps=federation.local_steps,
            batch_size=federation.batch_size,
            learning_rate=federation.learning_rate,
            optimizer=federation.optimizer,
            aggregation=federation.aggregation,
            weighting=federation.weighting,
        )

    def local_optimizer(self) -> optax.GradientTransformation:
        """Returns the clients' optimiser."""
        return _OPTIMIZERS[self.optimizer](self.learning_rate)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ServerState:
    """What the next round needs: the model and what the transforms remember."""

    params: PyTree
    per_example: tuple[State, ...]
    update: tuple[State, ...]
    server: tuple[State, ...]
    round: jax.Array  # () rounds done, int32


def initial_state(recipe: Recipe, params: PyTree) -> ServerState:
    """Returns the state before the first round."""
    return ServerState(
        params=params,
        per_example=init_states(recipe.per_example, params),
        update=init_states(recipe.update, params),
        server=init_states(recipe.server, params),
        round=jax.numpy.zeros((), jax.numpy.int32),
    )
