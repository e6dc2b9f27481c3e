"""Taps: what the three adversaries read, all from the same round of the same run."""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from gradaudit import machine
from gradaudit.defenses.transforms import run
from gradaudit.errors import InputError
from gradaudit.federation.client import example_gradients, local_steps, train_client
from gradaudit.federation.recipe import (
    Population,
    Recipe,
    ServerState,
    client_key,
    iteration_keys,
)
from gradaudit.federation.round import at_server, at_server_together
from gradaudit.federation.setting import Batches
from gradaudit.models.gradients import one_hot
from gradaudit.types import Key, Leakage, LocalTraining, Observation, PyTree, Victim

_TOGETHER = 32  # clients of a whole round that are vectorised together


def observe_many(
    recipe: Recipe,
    population: Population,
    key: Key,
    state: ServerState,
    leakage: Leakage,
    clients: Sequence[int],
    iteration: int = 0,
    example: int = 0,
    participants: Sequence[int] | None = None,
) -> Observation:
    """Returns what leaks from each of these clients; `private_data` says whose it is.

    The round is the one that starts at `state` (round 0 for `initial_state`). With the
    same key, the three types read the same noise: a client's type 1 update is what its
    type 2 gradients add up to, and the mean of the type 0 updates is what the server
    adds. Guarantee: what is read of a client is addressed by round and client; which
    other clients are read with it changes nothing but rounding.

    Args:
      recipe: the model, the defense and the local training.
      population: all clients' data.
      key: the run's key.
      state: the server at the start of the round.
      leakage: the type of the adversary.
      clients: ids of the clients that are read, each one a victim.
      iteration: type 2 only: the local iteration that is read.
      example: type 2 only: which example of the batch is read.
      participants: ids of all clients of the round, `clients` among them. Needed for
        type 0 where a server transform must see the whole round
        (`recipe.server_sees_round`): all of them are then trained in every call, so
        that it is best to read the whole round at once.

    Returns:
      An observation whose `sent` leaves have a leading axis of victims, in the
      order of `clients`. `params` are the received ones, shared by all (for type 2
      after the first local iteration they are the client's own, with that axis).
    """
    _check(recipe, population, clients, iteration, example)
    ids = jnp.asarray(np.asarray(clients, np.int32))
    if leakage is Leakage.EXAMPLE:
        recipe.model.check_apart(
            "type 2 reads the gradient of one example",
            "Attack the batch: type 1 or 0.",
        )
        leaked: Observation = _example_leaks(
            recipe, population, key, state, ids, iteration, example
        )
        return leaked
    if leakage is Leakage.SERVER and recipe.server_sees_round:
        everybody = _participants(population, clients, participants)
        rows = np.searchsorted(everybody, np.asarray(clients))
        sent = _updates(recipe, leakage, population, key, state, jnp.asarray(everybody))
        updates, after = jax.tree.map(lambda leaf: leaf[rows], sent)
    else:
        updates, after = _updates(recipe, leakage, population, key, state, ids)
    return Observation(
        params=state.params,
        sent=updates,
        buffers=state.buffers,
        sent_buffers=after,
        leakage=leakage,
        training=training_of(recipe),
    )


def training_of(recipe: Recipe) -> LocalTraining:
    """Returns what an attacker knows of how clients train."""
    return LocalTraining(
        batch_size=recipe.batch_size,
        local_steps=recipe.local_steps,
        learning_rate=recipe.learning_rate,
        optimizer=recipe.optimizer.value,
    )


def _participants(
    population: Population, clients: Sequence[int], participants: Sequence[int] | None
) -> NDArray[np.int32]:
    """Returns everybody of the round in the order of their ids, as in training."""
    if participants is None:
        raise InputError(
            "the defense looks at all updates of a round at the server: say who takes "
            "part (participants) to read what it sends on"
        )
    _check_ids(population, participants)
    if not set(clients) <= set(participants):
        raise InputError("only clients that take part in the round can be read")
    return np.sort(np.asarray(participants, np.int32))


def _check_ids(population: Population, clients: Sequence[int]) -> None:
    known = population.clients
    outside = [client for client in clients if not 0 <= client < known]
    if outside:
        raise InputError(f"client {outside[0]} is outside [0, {known})")
    if len(set(clients)) != len(clients):
        raise InputError("a client takes part once in a round")


def _check(
    recipe: Recipe,
    population: Population,
    clients: Sequence[int],
    iteration: int,
    example: int,
) -> None:
    if not len(clients):
        raise InputError("an observation needs at least one client")
    _check_ids(population, clients)
    if recipe.batches is not Batches.FIXED:
        raise InputError(
            "the taps read batches of a fixed size: a Poisson batch has another size "
            "in every step, and may be empty; attack the same setting with fixed "
            "batches"
        )
    if not 0 <= iteration < recipe.local_steps:
        raise InputError(
            f"iteration {iteration} is outside [0, {recipe.local_steps}) local "
            "iterations"
        )
    if not 0 <= example < recipe.batch_size:
        raise InputError(
            f"example {example} is outside [0, {recipe.batch_size}) of the batch"
        )


@machine.briefly(static_argnums=(0, 5, 6))
def _example_leaks(
    recipe: Recipe,
    population: Population,
    key: Key,
    state: ServerState,
    clients: jax.Array,
    iteration: int,
    example: int,
) -> Observation:
    def one(client: jax.Array) -> Observation:
        own = client_key(key, state.round, client)
        local, _ = local_steps(
            recipe, population, own, state, client, iteration, tapped=True
        )
        batch_key, noise_key = iteration_keys(own, iteration)
        inputs, labels = population.batch(batch_key, client, recipe.batch_size)
        targets = one_hot(labels, recipe.model.classes)
        _, gradients = example_gradients(
            recipe.model, local.params, local.buffers, inputs, targets
        )
        gradients, _ = run(
            recipe.per_example, noise_key, gradients, local.states, state.round
        )
        read = jax.tree.map(lambda leaf: leaf[example], gradients)
        return Observation(
            params=local.params,
            sent=read,
            buffers=local.buffers,
            leakage=Leakage.EXAMPLE,
            training=LocalTraining(learning_rate=recipe.learning_rate),
        )

    observation: Observation = jax.vmap(one)(clients)
    # Examples that have gradients of their own leave the buffers alone.
    observation = dataclasses.replace(observation, buffers=state.buffers)
    if iteration == 0:  # every client still has the parameters that it received
        observation = dataclasses.replace(observation, params=state.params)
    return observation


@machine.briefly(static_argnums=(0, 1))
def _updates(
    recipe: Recipe,
    leakage: Leakage,
    population: Population,
    key: Key,
    state: ServerState,
    clients: jax.Array,
) -> tuple[PyTree, PyTree]:
    """Returns what each client sent, as it leaves the client or the server."""
    at_round = leakage is Leakage.SERVER and recipe.server_sees_round

    def one(client: jax.Array) -> tuple[PyTree, PyTree]:
        own = client_key(key, state.round, client)
        report = train_client(recipe, population, own, state, client, tapped=True)
        update = report.update
        if leakage is Leakage.SERVER and recipe.server and not at_round:
            update = at_server(recipe, key, state, client, update)
        return update, report.buffers if recipe.model.coupled else {}

    if not at_round:
        return jax.vmap(one)(clients)
    size = min(_TOGETHER, len(clients))
    updates, buffers = jax.lax.map(one, clients, batch_size=size)
    return at_server_together(recipe, key, state, updates)[0], buffers


@machine.briefly(static_argnums=(0,))
def private_data(
    recipe: Recipe,
    population: Population,
    key: Key,
    state: ServerState,
    clients: jax.Array,
) -> Victim:
    """Returns all examples of each client's local training, in the order of use."""

    def one(client: jax.Array) -> Victim:
        own = client_key(key, state.round, client)

        def batch(step: jax.Array) -> tuple[jax.Array, jax.Array]:
            drawn = iteration_keys(own, step)[0]
            return population.batch(drawn, client, recipe.batch_size)

        inputs, labels = jax.vmap(batch)(jnp.arange(recipe.local_steps))
        inputs = inputs.reshape(-1, *recipe.model.input_shape)
        return Victim(inputs, labels.reshape(-1))

    return jax.vmap(one)(clients)
