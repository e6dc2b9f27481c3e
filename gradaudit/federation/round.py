"""One round: the selected clients in vectorised chunks, then the server."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from gradaudit.defenses.base import run
from gradaudit.errors import require
from gradaudit.federation.client import ClientReport, train_client
from gradaudit.federation.population import Population
from gradaudit.federation.recipe import Recipe, ServerState, client_key, server_key
from gradaudit.federation.setting import Weighting
from gradaudit.machine import device_count, over_units
from gradaudit.types import Key, PyTree


def client_weights(weighting: Weighting, sizes: jax.Array) -> jax.Array:
    """Returns each client's weight, (clients,) float32."""
    if weighting is Weighting.EXAMPLES:
        return sizes.astype(jnp.float32)
    return jnp.ones(sizes.shape, jnp.float32)


def weighted_sum(updates: PyTree, weights: jax.Array) -> PyTree:
    """Returns the weighted sum over clients of their updates."""
    return jax.tree.map(lambda update: jnp.tensordot(weights, update, axes=1), updates)


def aggregate(params: PyTree, total: PyTree, weight: jax.Array) -> PyTree:
    """Returns the new model from the weighted sum; no clients leave it unchanged."""

    def new(received: jax.Array, summed: jax.Array) -> jax.Array:
        mean = summed / jnp.maximum(weight, 1e-30)
        return jnp.where(weight > 0, received + mean, received)

    return jax.tree.map(new, params, total)


_CACHED_PARAMETERS = 250_000  # of clients that are vectorised together on a CPU core


def default_chunk(params: PyTree) -> int:
    """Returns how many clients are vectorised together.

    On CPU their work should stay in the core's cache; accelerators want width.
    """
    if jax.default_backend() != "cpu":
        return 128
    size = sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(params))
    return int(np.clip(_CACHED_PARAMETERS // size, 2, 32))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RoundInfo:
    """What a person wants to see of a round."""

    losses: jax.Array  # (clients,) mean loss of each client's local iterations
    norm_before: jax.Array  # (tensors,) first batch gradient without the defense
    norm_after: jax.Array  # (tensors,) first batch gradient as applied; client mean


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Totals:
    """Sums over clients; all that is kept of a chunk when nobody needs more."""

    weight: jax.Array
    sent: PyTree
    states: PyTree
    norm_before: jax.Array
    norm_after: jax.Array


def run_round(
    recipe: Recipe,
    population: Population,
    key: Key,
    state: ServerState,
    clients: NDArray[np.integer],
    chunk: int | None = None,
) -> tuple[ServerState, RoundInfo]:
    """Runs one round with these clients and returns the next state.

    `chunk` clients (see `default_chunk`) are vectorised together, chunk after chunk on
    every device: it changes the speed, never the mathematics. Guarantees: the order of
    `clients`, the chunk size and the number of devices change nothing but rounding; no
    clients leave the model unchanged.
    """
    if chunk is None:
        chunk = default_chunk(state.params)
    require(chunk >= 1, f"chunk must be at least 1, got {chunk}")
    clients = np.sort(np.asarray(clients, np.int32))
    if not len(clients):
        return _skipped(state)
    devices = device_count()
    chunk = min(chunk, -(-len(clients) // devices))
    padding = -len(clients) % (chunk * devices)
    padded = np.concatenate([clients, np.repeat(clients[:1], padding)])
    real = np.arange(len(padded)) < len(clients)
    result: tuple[ServerState, RoundInfo] = _round(
        recipe,
        chunk,
        len(clients),
        population,
        key,
        state,
        jnp.asarray(padded),
        jnp.asarray(real),
    )
    return result


def _skipped(state: ServerState) -> tuple[ServerState, RoundInfo]:
    tensors = len(jax.tree.leaves(state.params))
    nothing = jnp.zeros((tensors,), jnp.float32)
    info = RoundInfo(jnp.zeros((0,), jnp.float32), nothing, nothing)
    return dataclasses.replace(state, round=state.round + 1), info


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _round(
    recipe: Recipe,
    chunk: int,
    count: int,
    population: Population,
    key: Key,
    state: ServerState,
    clients: jax.Array,
    real: jax.Array,
) -> tuple[ServerState, RoundInfo]:
    on_devices = over_units(functools.partial(_on_one_device, recipe, chunk), shared=3)
    totals, losses, updates = on_devices(population, key, state, clients, real)
    totals = jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), totals)
    server_states = state.server
    if recipe.server:
        updates = jax.tree.map(lambda leaf: leaf[:count], updates)
        updates, server_states = run(
            recipe.server,
            server_key(key, state.round),
            updates,
            state.server,
            state.round,
        )
        weights = client_weights(recipe.weighting, population.sizes[clients[:count]])
        sent = weighted_sum(updates, weights)
        totals = dataclasses.replace(totals, sent=sent)
    per_example, update = _mean_states(
        (state.per_example, state.update), totals.states, count
    )
    following = ServerState(
        params=aggregate(state.params, totals.sent, totals.weight),
        per_example=per_example,
        update=update,
        server=server_states,
        round=state.round + 1,
    )
    info = RoundInfo(
        losses[:count], totals.norm_before / count, totals.norm_after / count
    )
    return following, info


def _on_one_device(
    recipe: Recipe,
    chunk: int,
    population: Population,
    key: Key,
    state: ServerState,
    clients: jax.Array,
    real: jax.Array,
) -> tuple[_Totals, jax.Array, PyTree]:
    """Sums over this device's clients; their losses and, if asked for, updates."""

    def one(client: jax.Array) -> ClientReport:
        own = client_key(key, state.round, client)
        return train_client(recipe, population, own, state, client)

    def one_chunk(
        totals: _Totals | None, part: tuple[jax.Array, jax.Array]
    ) -> tuple[_Totals, tuple[jax.Array, PyTree]]:
        ids, present = part
        reports = jax.vmap(one)(ids)
        weights = client_weights(recipe.weighting, population.sizes[ids]) * present
        added = _totals(recipe, state, reports, weights, present)
        if totals is not None:
            added = jax.tree.map(jnp.add, totals, added)
        kept = reports.update if recipe.server else ()
        return added, (jnp.mean(reports.steps.loss, axis=1), kept)

    parts = jax.tree.map(lambda leaf: leaf.reshape(-1, chunk), (clients, real))
    first = jax.tree.map(lambda leaf: leaf[0], parts)
    shapes = jax.eval_shape(functools.partial(one_chunk, None), first)[0]
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    totals, (losses, updates) = jax.lax.scan(one_chunk, zeros, parts)
    totals = jax.tree.map(lambda leaf: leaf[None], totals)  # an axis of devices
    updates = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), updates)
    return totals, losses.reshape(-1), updates


def _totals(
    recipe: Recipe,
    state: ServerState,
    reports: ClientReport,
    weights: jax.Array,
    present: jax.Array,
) -> _Totals:
    mask = present.astype(jnp.float32)

    def total(leaf: jax.Array) -> jax.Array:
        return jnp.tensordot(mask, leaf.astype(jnp.float32), axes=1)

    steps = reports.steps
    return _Totals(
        weight=jnp.sum(weights),
        sent=weighted_sum(reports.update, weights),
        states=jax.tree.map(total, (reports.per_example, reports.update_states)),
        norm_before=total(steps.norm_before[:, 0]),
        norm_after=total(steps.norm_after[:, 0]),
    )


def _mean_states(before: PyTree, totals: PyTree, count: int) -> PyTree:
    """What clients' transforms remember is averaged, as their models are."""
    return jax.tree.map(
        lambda old, total: (total / count).astype(old.dtype), before, totals
    )
