"""One round: the selected clients in vectorised chunks, then the server."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import NDArray

from gradaudit.data import Dataset
from gradaudit.defenses.transforms import States, run, run_alone
from gradaudit.errors import InputError, at_least
from gradaudit.federation.client import ClientReport, train_client
from gradaudit.federation.recipe import (
    Draw,
    Population,
    Recipe,
    ServerState,
    client_key,
    round_key,
)
from gradaudit.federation.setting import Weighting
from gradaudit.machine import device_count, over_units
from gradaudit.models.gradients import one_hot
from gradaudit.models.model import Model
from gradaudit.types import HostOrDevice, Key, PyTree


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


_CACHED_PARAMETERS = 120_000  # of clients that are vectorised together on a CPU core


def default_chunk(params: PyTree) -> int:
    """Returns how many clients are vectorised together.

    On CPU their work should stay in the core's cache; accelerators want width.
    """
    if jax.default_backend() != "cpu":
        return 128
    size = sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(params))
    return int(np.clip(_CACHED_PARAMETERS // size, 2, 32))


def at_server(
    recipe: Recipe, key: Key, state: ServerState, client: jax.Array, update: PyTree
) -> PyTree:
    """Returns one client's update after the server's transforms, client alone.

    For transforms that are all independent (see `Recipe.server_sees_round`). The
    noise is addressed by round and client: who else takes part, and who is computed
    together with whom, changes nothing.
    """
    own = jax.random.fold_in(round_key(key, state.round, Draw.SERVER), client)
    return run_alone(recipe.server, own, update, state.server, state.round)[0]


def at_server_together(
    recipe: Recipe, key: Key, state: ServerState, updates: PyTree
) -> tuple[PyTree, States]:
    """Returns all updates of a round after the server's transforms, and their states.

    `updates` lead with the participants in the order of their ids: all of the round,
    and nobody else, because the transforms may look at all of them.
    """
    common = round_key(key, state.round, Draw.SERVER)
    return run(recipe.server, common, updates, state.server, state.round)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RoundInfo:
    """What a person wants to see of a round."""

    losses: HostOrDevice  # (clients,) mean loss of each client's local iterations
    norm_before: jax.Array  # (tensors,) first batch gradient without the defense
    norm_after: jax.Array  # (tensors,) first batch gradient as applied; client mean


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Totals:
    """Sums over clients; all that is kept of a chunk when nobody needs more."""

    weight: jax.Array
    sent: PyTree  # () where the server must see the updates themselves
    buffers: PyTree  # how far they moved; () where training leaves them alone
    states: PyTree
    norm_before: jax.Array
    norm_after: jax.Array


_Chunk = tuple[_Totals, tuple[jax.Array, PyTree]]  # sums; losses and updates


def run_round(
    recipe: Recipe,
    population: Population,
    key: Key,
    state: ServerState,
    clients: NDArray[np.integer],
    chunk: int | None = None,
    width: int | None = None,
) -> tuple[ServerState, RoundInfo]:
    """Runs one round with these clients and returns the next state.

    `chunk` clients (see `default_chunk`) are vectorised together, chunk after chunk on
    every device; with a `width`, one program serves every round of at most so many
    clients: both change the speed, never the mathematics. Chunks without a client are
    not computed. Guarantees: the order of `clients`, the chunk size, the width and the
    number of devices change nothing but rounding; no clients leave the model
    unchanged. Only a server transform that must see the round as a whole is compiled
    for every number of clients, without the clients' training.
    """
    if chunk is None:
        chunk = default_chunk(state.params)
    at_least(1, chunk=chunk)
    clients = np.sort(np.asarray(clients, np.int32))
    if not len(clients):
        return _skipped(state)
    varies = width is not None
    chunk, ids, real = _laid_out(clients, chunk, width or len(clients))
    count = None if varies else len(clients)
    following, info, updates = _round(
        recipe, chunk, count, population, key, state, ids, real
    )
    if recipe.server_sees_round:
        updates = jax.tree.map(lambda leaf: leaf[np.flatnonzero(real)], updates)
        weights = client_weights(recipe.weighting, population.sizes[clients])
        params, states = _serve_together(recipe, key, state, updates, weights)
        following = dataclasses.replace(following, params=params, server=states)
    return following, dataclasses.replace(info, losses=np.asarray(info.losses)[real])


def _laid_out(
    clients: NDArray[np.integer], chunk: int, width: int
) -> tuple[int, NDArray[np.int32], NDArray[np.bool_]]:
    """Returns the chunk, the ids device after device, and which of them are real.

    Every device gets an equal share of the clients, in whole chunks, and room for its
    share of the width; more clients than the width make room for a multiple of it.
    """
    devices = device_count()
    width *= -(-len(clients) // width)
    chunk = min(chunk, -(-width // devices))
    room = -(-width // (chunk * devices)) * chunk
    share = -(-len(clients) // (chunk * devices)) * chunk
    ids = np.full((devices, room), clients[0], np.int32)
    real = np.zeros((devices, room), bool)
    for device in range(devices):
        own = clients[device * share : (device + 1) * share]
        ids[device, : len(own)] = own
        real[device, : len(own)] = True
    return chunk, ids.reshape(-1), real.reshape(-1)


def _skipped(state: ServerState) -> tuple[ServerState, RoundInfo]:
    tensors = len(jax.tree.leaves(state.params))
    nothing = jnp.zeros((tensors,), jnp.float32)
    info = RoundInfo(np.zeros((0,), np.float32), nothing, nothing)
    return dataclasses.replace(state, round=state.round + 1), info


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _round(
    recipe: Recipe,
    chunk: int,
    exactly: int | None,
    population: Population,
    key: Key,
    state: ServerState,
    clients: jax.Array,
    real: jax.Array,
) -> tuple[ServerState, RoundInfo, PyTree]:
    """Trains the clients and averages what they sent, or hands it out to be served.

    `exactly` is the number of clients if it is the same in every round.
    """
    skips = exactly is None
    train = functools.partial(_on_one_device, recipe, chunk, skips)
    on_devices = over_units(train, shared=3)
    totals, losses, updates = on_devices(population, key, state, clients, real)
    totals = jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), totals)
    count = exactly or jnp.sum(real)
    # What clients' transforms remember is averaged, as their models are.
    per_example, update = jax.tree.map(
        lambda old, total: (total / count).astype(old.dtype),
        (state.per_example, state.update),
        totals.states,
    )
    params, buffers = state.params, state.buffers
    if not recipe.server_sees_round:
        params = aggregate(params, totals.sent, totals.weight)
    if recipe.model.coupled:
        buffers = aggregate(buffers, totals.buffers, totals.weight)
    following = ServerState(
        params=params,
        per_example=per_example,
        update=update,
        server=state.server,
        round=state.round + 1,
        buffers=buffers,
    )
    info = RoundInfo(losses, totals.norm_before / count, totals.norm_after / count)
    return following, info, updates


@functools.partial(jax.jit, static_argnums=0)
def _serve_together(
    recipe: Recipe, key: Key, state: ServerState, updates: PyTree, weights: jax.Array
) -> tuple[PyTree, States]:
    updates, states = at_server_together(recipe, key, state, updates)
    total = weighted_sum(updates, weights)
    return aggregate(state.params, total, jnp.sum(weights)), states


def _on_one_device(
    recipe: Recipe,
    chunk: int,
    skips: bool,
    population: Population,
    key: Key,
    state: ServerState,
    clients: jax.Array,
    real: jax.Array,
) -> tuple[_Totals, jax.Array, PyTree]:
    """Sums over this device's clients; their losses and, if asked for, updates."""

    def one(client: jax.Array) -> ClientReport:
        own = client_key(key, state.round, client)
        report = train_client(recipe, population, own, state, client)
        if recipe.server and not recipe.server_sees_round:
            served = at_server(recipe, key, state, client, report.update)
            report = dataclasses.replace(report, update=served)
        return report

    def work(ids: jax.Array, present: jax.Array) -> _Chunk:
        reports = jax.vmap(one)(ids)
        weights = client_weights(recipe.weighting, population.sizes[ids]) * present
        kept = reports.update if recipe.server_sees_round else ()
        losses = jnp.mean(reports.steps.loss, axis=1)
        return _totals(recipe, state, reports, weights, present), (losses, kept)

    def one_chunk(totals: _Totals, part: tuple[jax.Array, jax.Array]) -> _Chunk:
        if skips:
            added, kept = jax.lax.cond(
                jnp.any(part[1]), work, lambda *unused: zeros, *part
            )
        else:
            added, kept = work(*part)
        return jax.tree.map(jnp.add, totals, added), kept

    parts = jax.tree.map(lambda leaf: leaf.reshape(-1, chunk), (clients, real))
    shapes = jax.eval_shape(work, *jax.tree.map(lambda leaf: leaf[0], parts))
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    totals, (losses, updates) = jax.lax.scan(one_chunk, zeros[0], parts)
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

    moved: PyTree = ()
    if recipe.model.coupled:
        moved = jax.tree.map(jnp.subtract, reports.buffers, state.buffers)
    return _Totals(
        weight=jnp.sum(weights),
        sent=() if recipe.server_sees_round else weighted_sum(reports.update, weights),
        buffers=weighted_sum(moved, weights),
        states=jax.tree.map(total, reports.states),
        norm_before=total(reports.steps.norm_before[:, 0]),
        norm_after=total(reports.steps.norm_after[:, 0]),
    )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PublicData:
    """The server's own examples, and how it learns from them (one epoch of SGD)."""

    inputs: jax.Array  # (examples, *input_shape)
    labels: jax.Array  # (examples,)
    batch_size: int = dataclasses.field(default=50, metadata={"static": True})
    learning_rate: float = dataclasses.field(default=0.05, metadata={"static": True})


@functools.partial(jax.jit, static_argnums=0)
def fine_tune(
    model: Model, key: Key, params: PyTree, buffers: PyTree, public: PublicData
) -> tuple[PyTree, PyTree]:
    """Returns parameters and buffers after one epoch in random order.

    A rest that does not fill a batch is left out.
    """
    size, held = public.batch_size, len(public.inputs)
    if held < size:
        raise InputError(f"{held} public examples are fewer than a batch of {size}")
    optimizer = optax.sgd(public.learning_rate)
    order = jax.random.permutation(key, held)
    batches = order[: held // size * size].reshape(held // size, size)

    def step(
        carry: tuple[PyTree, PyTree, optax.OptState], chosen: jax.Array
    ) -> tuple[tuple[PyTree, PyTree, optax.OptState], None]:
        params, buffers, memory = carry
        targets = one_hot(public.labels[chosen], model.classes)
        gradient, buffers = jax.grad(model.loss_and_buffers, has_aux=True)(
            params, buffers, public.inputs[chosen], targets
        )
        change, memory = optimizer.update(gradient, memory, params)
        return (optax.apply_updates(params, change), buffers, memory), None

    start = (params, buffers, optimizer.init(params))
    (params, buffers, _), _ = jax.lax.scan(step, start, batches)
    return params, buffers


def hold_out(data: Dataset, count: int, seed: int) -> tuple[PublicData | None, Dataset]:
    """Returns the server's own examples, and the others; no example is both."""
    if count == 0:
        return None, data
    if not 0 < count < len(data):
        raise InputError(f"public examples must lie in 1..{len(data) - 1}, got {count}")
    order = np.random.default_rng(seed).permutation(len(data))
    own = data.take(order[:count])
    public = PublicData(
        jnp.asarray(own.inputs), jnp.asarray(own.labels), batch_size=min(50, count)
    )
    return public, data.take(np.sort(order[count:]))
