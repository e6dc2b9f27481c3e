"""Taps: what the three adversaries read, all from the same round of the same run."""

import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from gradaudit.defenses.base import run
from gradaudit.errors import require
from gradaudit.federation.client import example_gradients, local_steps, train_client
from gradaudit.federation.population import Population
from gradaudit.federation.recipe import (
    Recipe,
    ServerState,
    client_key,
    iteration_keys,
    server_key,
)
from gradaudit.types import Key, Leakage, LocalTraining, Observation, PyTree, Victim


def observe_many(
    recipe: Recipe,
    population: Population,
    key: Key,
    state: ServerState,
    leakage: Leakage,
    clients: Sequence[int],
    iteration: int = 0,
    example: int = 0,
) -> tuple[Observation, Victim]:
    """Returns what leaks from each of the round's clients, and whom it belongs to.

    The round is the one that starts at `state` (round 0 for `initial_state`), and
    `clients` are its participants. With the same key, the three types read the same
    noise: a client's type 1 update is what its type 2 gradients add up to.

    Args:
      recipe: the model, the defense and the local training.
      population: all clients' data.
      key: the run's key.
      state: the server at the start of the round.
      leakage: the type of the adversary.
      clients: ids of the clients that take part, each one a victim.
      iteration: type 2 only: the local iteration that is read.
      example: type 2 only: which example of the batch is read.

    Returns:
      An observation whose `sent` leaves have a leading axis of victims, in the
      order of `clients`. `params` are the received ones, shared by all (for type 2
      after the first local iteration they are the client's own, with that axis).
      The victims are stacked: one example each for type 2; for types 0 and 1 all
      local_steps * batch_size examples in the order in which they were used.
    """
    _check(recipe, population, clients, iteration, example)
    ids = jnp.asarray(np.asarray(clients, np.int32))
    leaked: tuple[Observation, Victim] = (
        _example_leaks(recipe, population, key, state, ids, iteration, example)
        if leakage is Leakage.EXAMPLE
        else _update_leaks(recipe, leakage, population, key, state, ids)
    )
    return leaked


def observe(
    recipe: Recipe,
    population: Population,
    key: Key,
    state: ServerState,
    leakage: Leakage,
    client: int,
    iteration: int = 0,
    example: int = 0,
) -> tuple[Observation, Victim]:
    """Returns what leaks from one client, without the axis of victims."""
    observation, victim = observe_many(
        recipe, population, key, state, leakage, [client], iteration, example
    )
    sent, victim, params = jax.tree.map(
        lambda leaf: leaf[0],
        (observation.sent, victim, observation.params if iteration else ()),
    )
    return (
        dataclasses.replace(
            observation,
            sent=sent,
            params=params if iteration else observation.params,
        ),
        victim,
    )


def _check(
    recipe: Recipe,
    population: Population,
    clients: Sequence[int],
    iteration: int,
    example: int,
) -> None:
    require(len(clients) > 0, "an observation needs at least one client")
    for client in clients:
        require(
            0 <= client < population.clients,
            f"client {client} is outside [0, {population.clients})",
        )
    require(len(set(clients)) == len(clients), "a client takes part once in a round")
    require(
        0 <= iteration < recipe.local_steps,
        f"iteration {iteration} is outside [0, {recipe.local_steps}) local iterations",
    )
    require(
        0 <= example < recipe.batch_size,
        f"example {example} is outside [0, {recipe.batch_size}) of the batch",
    )


@functools.partial(jax.jit, static_argnums=(0, 5, 6))
def _example_leaks(
    recipe: Recipe,
    population: Population,
    key: Key,
    state: ServerState,
    clients: jax.Array,
    iteration: int,
    example: int,
) -> tuple[Observation, Victim]:
    def one(client: jax.Array) -> tuple[Observation, Victim]:
        own = client_key(key, state.round, client)
        local, _ = local_steps(
            recipe, population, own, state, client, iteration, tapped=True
        )
        batch_key, noise_key = iteration_keys(own, iteration)
        inputs, labels = population.batch(batch_key, client, recipe.batch_size)
        _, gradients = example_gradients(recipe.model, local.params, inputs, labels)
        gradients, _ = run(
            recipe.per_example, noise_key, gradients, local.states, state.round
        )
        read = jax.tree.map(lambda leaf: leaf[example], gradients)
        this = slice(example, example + 1)
        observation = Observation(
            params=local.params,
            sent=read,
            leakage=Leakage.EXAMPLE,
            training=LocalTraining(learning_rate=recipe.learning_rate),
        )
        return observation, Victim(inputs[this], labels[this])

    observation, victims = jax.vmap(one)(clients)
    if iteration == 0:  # every client still has the parameters that it received
        observation = dataclasses.replace(observation, params=state.params)
    return observation, victims


@functools.partial(jax.jit, static_argnums=(0, 1))
def _update_leaks(
    recipe: Recipe,
    leakage: Leakage,
    population: Population,
    key: Key,
    state: ServerState,
    clients: jax.Array,
) -> tuple[Observation, Victim]:
    def one(client: jax.Array) -> tuple[PyTree, Victim]:
        own = client_key(key, state.round, client)
        report = train_client(recipe, population, own, state, client, tapped=True)

        def batch(step: jax.Array) -> tuple[jax.Array, jax.Array]:
            return population.batch(
                iteration_keys(own, step)[0], client, recipe.batch_size
            )

        inputs, labels = jax.vmap(batch)(jnp.arange(recipe.local_steps))
        inputs = inputs.reshape(-1, *recipe.model.input_shape)
        return report.update, Victim(inputs, labels.reshape(-1))

    updates, victims = jax.vmap(one)(clients)
    if leakage is Leakage.SERVER and recipe.server:
        # The server treats its clients in the order of their ids, as in training.
        order = jnp.argsort(clients)
        updates = jax.tree.map(lambda leaf: leaf[order], updates)
        updates, _ = run(
            recipe.server,
            server_key(key, state.round),
            updates,
            state.server,
            state.round,
        )
        updates = jax.tree.map(lambda leaf: leaf[jnp.argsort(order)], updates)
    observation = Observation(
        params=state.params,
        sent=updates,
        leakage=leakage,
        training=LocalTraining(
            batch_size=recipe.batch_size,
            local_steps=recipe.local_steps,
            learning_rate=recipe.learning_rate,
            optimizer=recipe.optimizer.value,
        ),
    )
    return observation, victims
