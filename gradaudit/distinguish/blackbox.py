"""The black-box game: the distinguisher sees the model before and after one step."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from gradaudit import machine
from gradaudit.defenses.local import debias_factor, randomize
from gradaudit.distinguish.game import (
    Advance,
    Crafted,
    Trials,
    ignore,
    keys_over_devices,
    play_in_chunks,
)
from gradaudit.errors import positive
from gradaudit.models.model import Model
from gradaudit.tree import flatten
from gradaudit.types import Key, PyTree


@dataclasses.dataclass(frozen=True)
class Server:
    """theta' = projection of (theta - learning_rate * factor * mean of the answers).

    Matsumoto et al. 2022, Algorithm 2 lines 4 and 5. The parameter set is the ball of
    `radius` (None: all of space). `as_printed` takes the factor of line 4 literally,
    which is 1/d of the unbiased one: the same server with a d times smaller learning
    rate. Neither the learning rate nor the set is published.
    """

    learning_rate: float = 0.01
    radius: float | None = None
    as_printed: bool = False

    def __post_init__(self) -> None:
        positive(learning_rate=self.learning_rate, radius=self.radius)

    def step_length(self, size: int, epsilon: float, clip: float) -> float:
        """Returns learning_rate * factor for gradients of `size` coordinates."""
        return self.learning_rate * debias_factor(size, epsilon, clip, self.as_printed)

    def update(
        self, parameters: jax.Array, answer: jax.Array, step_length: jax.Array
    ) -> jax.Array:
        """Returns the next parameters, (d,), from the mean answer, (d,)."""
        moved = parameters - step_length * answer
        if self.radius is None:
            return moved
        return moved * jnp.minimum(1.0, self.radius / jnp.linalg.norm(moved))


BLACK_CHUNK = 2**8  # trials at a time, each with its own whole model


# (model, parameters before, after, what is known) -> a score; if >= 0 the guess is g1
BlackRule = Callable[[Model, PyTree, PyTree, Crafted], jax.Array]


def loss_fell(model: Model, before: PyTree, after: PyTree, known: Crafted) -> jax.Array:
    """Returns by how much the loss of x1 fell: g1 when it did not rise (equation 4)."""
    return -_loss_changes(model, before, after, known, 1)[0]


def larger_change(
    model: Model, before: PyTree, after: PyTree, known: Crafted
) -> jax.Array:
    """Returns |change of x1's loss| - |change of x2's loss| (equation 6)."""
    changes = jnp.abs(_loss_changes(model, before, after, known, 2))
    return changes[0] - changes[1]


def signs_of_step(
    model: Model, before: PyTree, after: PyTree, known: Crafted
) -> jax.Array:
    """Returns the sum of the signs of before - after.

    g1 when at least half of the coordinates fell, as descent along g1 > 0 does.
    Equation 7 is printed with the sign of an ascent step; the server descends
    (Algorithm 2 line 5), so that its literal form would guess the wrong gradient.
    """
    del model, known
    return jnp.sum(jnp.sign(flatten(before)[0] - flatten(after)[0]))


@dataclasses.dataclass(frozen=True)
class BlackGame:
    """The static half of the game."""

    model: Model
    server: Server
    rule: BlackRule
    clip: float = 1.0


def play_black(
    key: Key,
    game: BlackGame,
    crafted: Crafted,
    bystanders: jax.Array,
    epsilons: tuple[float, ...],
    trials: int,
    advance: Advance = ignore,
) -> tuple[Trials, ...]:
    """Plays the game at several epsilons, with the same random directions for all.

    Args:
      key: randomness; a trial depends on the key and its own number only, not on the
        number of devices or on the other epsilons.
      game: model, server and rule.
      crafted: what the crafter made.
      bystanders: (n - 1, d), the gradients of the other clients of the update.
      epsilons: privacy parameters; one `Trials` is returned for each.
      trials: how many.
      advance: told about the trials just played.
    """
    size = crafted.gradients.shape[1]
    steps = jnp.array([game.server.step_length(size, e, game.clip) for e in epsilons])
    settings = jnp.array(epsilons, jnp.float32), steps
    # Step lengths are data: another learning rate must not compile again.
    server = Server(radius=game.server.radius)
    game = dataclasses.replace(game, server=server)

    def chunk(part_key: Key, count: int) -> tuple[jax.Array, jax.Array]:
        keys = keys_over_devices(part_key, count)
        played: tuple[jax.Array, jax.Array] = _play_chunk(
            game, crafted, bystanders, settings, keys
        )
        return played

    return play_in_chunks(key, trials, BLACK_CHUNK, chunk, advance)


@functools.partial(jax.jit, static_argnums=0)
def _play_chunk(
    game: BlackGame,
    crafted: Crafted,
    bystanders: jax.Array,
    settings: tuple[jax.Array, jax.Array],
    keys: jax.Array,
) -> Any:
    play = jax.vmap(functools.partial(_play_trial, game), (None, None, None, 0))
    over_devices = machine.over_units(play, shared=3)
    return over_devices(crafted, bystanders, settings, keys)


def _play_trial(
    game: BlackGame,
    crafted: Crafted,
    bystanders: jax.Array,
    settings: tuple[jax.Array, jax.Array],
    key: Key,
) -> tuple[jax.Array, jax.Array]:
    """Returns whether g1 was randomized, and one score for every epsilon."""
    before, unflatten = flatten(crafted.params)
    choice_key, answer_key = jax.random.split(key)
    first = jax.random.bernoulli(choice_key)
    gradient = jnp.where(first, crafted.gradients[0], crafted.gradients[1])

    def score(epsilon: jax.Array, step: jax.Array) -> jax.Array:
        answer = _mean_answer(answer_key, gradient, bystanders, epsilon, game.clip)
        after = unflatten(game.server.update(before, answer, step))
        return game.rule(game.model, crafted.params, after, crafted)

    return first, jax.vmap(score)(*settings)


def _mean_answer(
    key: Key, gradient: jax.Array, bystanders: jax.Array, epsilon: Any, clip: float
) -> jax.Array:
    """Returns the mean of the randomized gradients of a victim and its bystanders."""
    own_key, others_key = jax.random.split(key)
    total = randomize(own_key, gradient, epsilon, clip)
    others = jax.random.split(others_key, len(bystanders))

    def add(total: jax.Array, other: tuple[Key, jax.Array]) -> tuple[jax.Array, None]:
        return total + randomize(*other, epsilon, clip), None

    total, _ = jax.lax.scan(add, total, (others, bystanders))
    return total / (1 + len(bystanders))


def _loss_changes(
    model: Model, before: PyTree, after: PyTree, known: Crafted, count: int
) -> jax.Array:
    """Returns by how much the losses of the first `count` inputs changed."""
    inputs, targets = known.inputs[:count], known.targets[:count]
    then = model.losses(before, {}, inputs, targets)
    return model.losses(after, {}, inputs, targets) - then
