"""One client's local training: L defended steps, then a defended update."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from gradaudit import tree
from gradaudit.defenses.clipping import mean_of_units, takes_factors, weighted_means
from gradaudit.defenses.transforms import Round, States, Transforms, run, run_alone
from gradaudit.federation.recipe import (
    Population,
    Recipe,
    ServerState,
    iteration_keys,
    update_key,
)
from gradaudit.federation.setting import Batches, Optimizer
from gradaudit.models.gradients import (
    dense_layers,
    factored_gradients,
    is_outer,
    one_hot,
)
from gradaudit.models.model import Model
from gradaudit.types import Key, PyTree

_OPTIMIZERS = {Optimizer.SGD: optax.sgd, Optimizer.ADAM: optax.adam}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Local:
    """A client in the middle of its local training."""

    params: PyTree
    optimizer: optax.OptState
    states: States  # of the per-example transforms
    buffers: PyTree


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Step:
    """What a person wants to see of one local iteration.

    Norms are zero after the first iteration: it is the one that sees the server's
    model, and measuring all of them would cost a fifth of the training.
    """

    loss: jax.Array  # () mean loss of the batch
    norm_before: jax.Array  # (tensors,) of the batch gradient without the defense
    norm_after: jax.Array  # (tensors,) of the batch gradient that was applied


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ClientReport:
    """A finished client: what it sends, and what is measured about it."""

    update: PyTree  # after the `update` transforms
    states: PyTree  # of the `per_example` and of the `update` transforms
    steps: Step  # leaves lead with (local_steps,)
    buffers: PyTree  # after local training; sent beside the update where they move


def example_gradients(
    model: Model,
    params: PyTree,
    buffers: PyTree,
    inputs: jax.Array,
    targets: jax.Array,
) -> tuple[jax.Array, PyTree]:
    """Returns every example's loss and gradient, with a leading example axis."""

    def one(example: jax.Array, target: jax.Array) -> tuple[jax.Array, PyTree]:
        return jax.value_and_grad(model.loss)(
            params, buffers, example[None], target[None]
        )

    losses, gradients = jax.vmap(one)(inputs, targets)
    return losses, gradients


def _mean(units: PyTree) -> PyTree:
    leaves, structure = jax.tree.flatten(units, is_leaf=is_outer)
    alike = [jnp.ones(leaf.shape[0], jnp.float32) for leaf in leaves]
    return jax.tree.unflatten(structure, weighted_means(leaves, alike))


def _norms(
    first: jax.Array,
    gradient: PyTree,
    read: Callable[[PyTree], PyTree] = lambda gradient: gradient,
) -> jax.Array:
    """Returns the tensors' norms, or zeros without the work after the first step."""

    def measure(gradient: PyTree) -> jax.Array:
        return jnp.stack(jax.tree.leaves(tree.tensor_norms(read(gradient))))

    tensors = len(jax.tree.leaves(gradient, is_leaf=is_outer))
    nothing = jnp.zeros(tensors, jnp.float32)
    measured: jax.Array = jax.lax.cond(
        first, measure, lambda gradient: nothing, gradient
    )
    return measured


def _averaged(
    transforms: Transforms, key: Key, gradients: PyTree, states: States, t: Round
) -> tuple[PyTree, States]:
    """The transforms one by one, then the mean: what a type 2 tap reads from."""
    gradients, states = run(transforms, key, gradients, states, t)
    return _mean(gradients), states


def _batch_gradient(
    recipe: Recipe,
    key: Key,
    local: Local,
    batch: tuple[jax.Array, jax.Array],
    t: jax.Array,
    first: jax.Array,
    tapped: bool,
) -> tuple[PyTree, Local, Step]:
    """Returns the defended gradient of a batch, and the client's memory after it."""
    model, (inputs, labels) = recipe.model, batch
    data = (local.params, local.buffers, inputs, one_hot(labels, model.classes))
    if not recipe.per_example:  # the mean of the examples' gradients, without them
        (loss, buffers), gradient = jax.value_and_grad(
            model.loss_and_buffers, has_aux=True
        )(*data)
        norms = _norms(first, gradient)
        after = dataclasses.replace(local, buffers=buffers)
        return gradient, after, Step(loss, norms, norms)
    factorable = dense_layers(model) and takes_factors(recipe.per_example)
    read = factored_gradients if factorable and not tapped else example_gradients
    losses, gradients = read(model, *data)
    before = _norms(first, gradients, read=_mean)
    average = _averaged if tapped else mean_of_units
    gradient, states = average(recipe.per_example, key, gradients, local.states, t)
    step = Step(jnp.mean(losses), before, _norms(first, gradient))
    return gradient, dataclasses.replace(local, states=states), step


def _poisson_gradient(
    recipe: Recipe,
    key: Key,
    local: Local,
    batch: tuple[jax.Array, jax.Array, jax.Array],
    t: jax.Array,
    first: jax.Array,
    tapped: bool,
) -> tuple[PyTree, Local, Step]:
    """Returns the defended gradient of a Poisson batch: sums over B, as DP-SGD's.

    With B the expected size: (sum over the drawn examples of their transformed
    gradients) / B, plus noise as for a batch of exactly B, whatever was drawn, so
    that neither its scale nor its absence tells the size. NoiseAt.BATCH: one draw of
    std sigma * S on the sum, sigma * S / B on the result. NoiseAt.UNIT: as B draws
    of std sigma * S, together sigma * S / sqrt(B) on the result.
    """
    inputs, labels, present = batch
    weights = present / recipe.batch_size

    def total(units: PyTree) -> PyTree:
        return jax.tree.map(lambda leaf: jnp.tensordot(weights, leaf, axes=1), units)

    targets = one_hot(labels, recipe.model.classes)
    if not recipe.per_example:

        def loss_of(params: PyTree) -> jax.Array:
            losses = recipe.model.losses(params, local.buffers, inputs, targets)
            return jnp.vdot(weights, losses)

        loss, gradient = jax.value_and_grad(loss_of)(local.params)
        norms = _norms(first, gradient)
        return gradient, local, Step(loss, norms, norms)
    losses, gradients = example_gradients(
        recipe.model, local.params, local.buffers, inputs, targets
    )
    before = _norms(first, gradients, read=total)
    cut = len(recipe.unitwise)
    units, states = run(recipe.unitwise, key, gradients, local.states[:cut], t)
    gradient = total(units)
    if recipe.added:
        # B equal units with this mean: what adds noise to units needs no others.
        alike = jax.tree.map(
            lambda leaf: jnp.broadcast_to(leaf, (recipe.batch_size, *leaf.shape)),
            gradient,
        )
        average = _averaged if tapped else mean_of_units
        last = jax.random.fold_in(key, cut)
        gradient, after = average(recipe.added, last, alike, local.states[cut:], t)
        states = (*states, *after)
    step = Step(jnp.vdot(weights, losses), before, _norms(first, gradient))
    return gradient, dataclasses.replace(local, states=states), step


def local_steps(
    recipe: Recipe,
    population: Population,
    key: Key,
    start: ServerState,
    client: jax.Array,
    steps: int,
    tapped: bool,
) -> tuple[Local, Step]:
    """Runs the first `steps` local iterations of a client; `key` is the client's."""
    optimizer = _OPTIMIZERS[recipe.optimizer](recipe.learning_rate)
    poisson = recipe.batches is Batches.POISSON
    drawn = population.poisson_batch if poisson else population.batch
    gradient_of: Callable[..., tuple[PyTree, Local, Step]] = (
        _poisson_gradient if poisson else _batch_gradient
    )

    def iterate(local: Local, step: jax.Array) -> tuple[Local, Step]:
        batch_key, noise_key = iteration_keys(key, step)
        batch = drawn(batch_key, client, recipe.batch_size)
        gradient, local, seen = gradient_of(
            recipe, noise_key, local, batch, start.round, step == 0, tapped
        )
        change, memory = optimizer.update(gradient, local.optimizer, local.params)
        params = optax.apply_updates(local.params, change)
        return dataclasses.replace(local, params=params, optimizer=memory), seen

    first = Local(
        start.params, optimizer.init(start.params), start.per_example, start.buffers
    )
    local, seen = jax.lax.scan(iterate, first, jnp.arange(steps))
    return local, seen


def train_client(
    recipe: Recipe,
    population: Population,
    key: Key,
    start: ServerState,
    client: jax.Array,
    tapped: bool = False,
) -> ClientReport:
    """Returns a client's update after its local training and `update` transforms.

    `tapped` runs the per-example transforms one by one, as an adversary inside the
    client sees them, instead of their mean in one pass: equal in distribution, and
    without noise equal up to rounding.
    """
    local, seen = local_steps(
        recipe, population, key, start, client, recipe.local_steps, tapped
    )
    update, states = run_alone(
        recipe.update,
        update_key(key),
        tree.subtract(local.params, start.params),
        start.update,
        start.round,
    )
    return ClientReport(update, (local.states, states), seen, local.buffers)
