"""Peeling: the dense layers in closed form, then one convolution after the other.

Of one example, the first dense layer tells in closed form what it read, h = dL/dW over
dL/db, and what flows back out of it, c = W dL/db. Below it the loss is the linear
function <c, features>: labels, softmax and every layer above are gone. What the last
convolution read is then an unknown of a problem with one layer in it, whose gradient
leaked and whose outputs h are known; what it read is the next h, and so on down to the
pixels. Zhu and Blaschko 2021 (R-GAP) solve each layer as a linear system; pooling
leaves open which of its inputs was the largest, so that each is a search here.

One layer with rectifiers and pooling still has dents: a population of starts, of which
the best are mixed place by place and searched again, finds its way out of most.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from gradaudit.attacks.base import Attack
from gradaudit.attacks.distances import RelativeL2, TensorCosine
from gradaudit.attacks.labels import LabelStrategy, LastLayer
from gradaudit.attacks.likelihood import TINY
from gradaudit.attacks.priors import TotalVariation
from gradaudit.errors import InputError, at_least
from gradaudit.models.gradients import dense_layers, one_hot
from gradaudit.models.model import Model
from gradaudit.types import Key, Observation, PyTree, Reconstruction, Status

_PARENTS = 8  # of every round's children
_CROSSED = 0.2  # of the places come from the second parent
_SHAKEN = 0.3  # of the places are moved, by half of what stands there
_FOUND = 1e-4  # relative misfit at which a layer's inputs are found
_RATE = 0.1  # of Adam, at first, as a share of how large the unknowns are
_VARIATION = TotalVariation(3e-3)


@dataclasses.dataclass(frozen=True)
class Peeling(Attack):
    """Rebuilds one example layer by layer, from the dense ones down to the pixels.

    `iterations` of Adam make a round, in which `starts` searches run side by side.
    """

    iterations: int = 800
    rounds: int = 10
    starts: int = 32
    labels: LabelStrategy = LastLayer()

    def __post_init__(self) -> None:
        at_least(1, iterations=self.iterations, rounds=self.rounds)
        at_least(_PARENTS, starts=self.starts)

    def budgeted(self, iterations: int | None, restarts: int | None) -> "Peeling":
        """Returns the attack with rounds of so many iterations."""
        if restarts is not None:
            raise InputError("peeling has starts of its own: leave restarts out")
        if iterations is None:
            return self
        return dataclasses.replace(self, iterations=iterations)

    def unfit(self, model: Model, observation: Observation) -> str:
        """Returns in words why there is nothing to peel, if so."""
        training = observation.training
        if not getattr(model.network, "stages", ()) or not dense_layers(model):
            return (
                "peeling takes convolutions with dense layers behind them apart, and "
                f"model {model.name!r} does not say where they are: choose --method "
                "strongest, or a network of `gradaudit list models` with convolutions"
            )
        if training.examples > 1:
            return (
                "peeling inverts the gradient of one example; this one mixes "
                f"{training.examples}: choose --method strongest"
            )
        if observation.told is not None:
            return (
                "peeling reads gradients as they are, and a defense has changed these: "
                "choose --method strongest"
            )
        return ""

    def misfit(self, found: Reconstruction, gradient: PyTree) -> float | None:
        """Returns the share of what leaked that the answer leaves unexplained."""
        return float(found.objective)

    def reconstruct(
        self, key: Key, model: Model, observation: Observation
    ) -> Reconstruction:
        """Returns the pixels, or raises in words why they can't be had this way."""
        why = self.unfit(model, observation)
        if why:
            raise InputError(why)
        network: Any = model.network
        gradient, params = observation.gradient, observation.params
        outputs, slope = _read_by(params, gradient, dense_layers(model)[0])
        rounds = 0
        for depth, stage in reversed(list(enumerate(network.stages))):
            shapes = _shapes(model, observation)
            layer = _Stage(model, stage, first=depth == 0)
            seen = _Seen(
                params[stage],
                gradient[stage],
                outputs.reshape(shapes[depth + 1]),
                slope.reshape(shapes[depth + 1]),
            )
            own = jax.random.fold_in(key, depth)
            inputs, took = _searched(self, layer, shapes[depth], own, seen)
            outputs, slope = inputs, layer.below(seen, inputs)
            rounds += int(took)
        labels = self.labels(jax.random.fold_in(key, len(shapes)), model, observation)
        assert labels is not None and labels.ndim == 1
        guess = jax.grad(model.loss)(
            params, observation.buffers, outputs[None], one_hot(labels, model.classes)
        )
        iterations = rounds * self.iterations
        return Reconstruction(
            inputs=outputs[None],
            labels=labels,
            objective=RelativeL2(weight=1.0)(guess, gradient),
            iterations=jnp.asarray(iterations, jnp.int32),
            evaluations=jnp.asarray(iterations * self.starts, jnp.int32),
            status=jnp.asarray(int(Status.BUDGET), jnp.int32),
        )


def peeling(iterations: int = 800, rounds: int = 10, starts: int = 32) -> Peeling:
    """Peeling: dense layers in closed form, then one convolution after the other."""
    return Peeling(iterations, rounds, starts)


def _read_by(
    params: PyTree, gradient: PyTree, layer: str
) -> tuple[jax.Array, jax.Array]:
    """Returns what a dense layer read of the one example, and the slope of the loss.

    dL/dW = h b^T with b = dL/db: the least-squares h of all its columns.
    """
    bias = gradient[layer]["bias"]
    read = gradient[layer]["kernel"] @ bias / (bias @ bias + TINY)
    return read, params[layer]["kernel"] @ bias


def _shapes(model: Model, observation: Observation) -> list[tuple[int, ...]]:
    """Returns the shapes of the pixels and of what every stage makes of them."""
    network: Any = model.network
    shapes = [model.input_shape]
    for stage in network.stages:
        values = np.zeros((1, *shapes[-1]), np.float32)
        made = functools.partial(network.stage, stage)
        shapes.append(jax.eval_shape(made, observation.params[stage], values).shape[1:])
    return shapes


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Seen:
    """What is known of one convolution."""

    params: PyTree
    gradient: PyTree
    outputs: jax.Array  # what it made of what is sought
    slope: jax.Array  # of the loss, by these outputs


@dataclasses.dataclass(frozen=True)
class _Stage:
    """One convolution: what is left of the problem when those above are known."""

    model: Model
    name: str
    first: bool  # it reads the pixels

    def _outputs(self, params: PyTree, inputs: jax.Array) -> jax.Array:
        network: Any = self.model.network
        made: jax.Array = network.stage(self.name, params, inputs[None])[0]
        return made

    def explained(self, seen: _Seen, inputs: jax.Array) -> tuple[PyTree, jax.Array]:
        """Returns the gradient and the outputs that these inputs would have."""

        def loss(params: PyTree) -> tuple[jax.Array, jax.Array]:
            outputs = self._outputs(params, inputs)
            return jnp.vdot(outputs, seen.slope), outputs

        explained: tuple[PyTree, jax.Array] = jax.grad(loss, has_aux=True)(seen.params)
        return explained

    def below(self, seen: _Seen, inputs: jax.Array) -> jax.Array:
        """Returns the slope of the loss by the inputs."""

        def loss(inputs: jax.Array) -> jax.Array:
            return jnp.vdot(self._outputs(seen.params, inputs), seen.slope)

        slope: jax.Array = jax.grad(loss)(inputs)
        return slope

    def misfit(self, seen: _Seen, inputs: jax.Array) -> jax.Array:
        """Returns how far inputs are from explaining what is known, tensor by tensor.

        Pixels are smooth, and what explains them was found by a search itself: there
        directions count, and not sizes.
        """
        found, wanted = self.explained(seen, inputs), (seen.gradient, seen.outputs)
        if self.first:
            return TensorCosine()(found, wanted) + _VARIATION(inputs[None])
        each = jax.tree.leaves(jax.tree.map(_relative, found, wanted))
        return sum(each, jnp.zeros(()))


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _searched(
    attack: Peeling, stage: _Stage, shape: tuple[int, ...], key: Key, seen: _Seen
) -> tuple[jax.Array, jax.Array]:
    """Returns the inputs of a stage that explain it best, and the rounds it took."""
    # Pixels end at 1; what a layer made is about as large as what it read.
    largest = 1.0 if stage.first else 2 * jnp.mean(jnp.abs(seen.outputs))
    limit = 1.0 if stage.first else jnp.inf
    # What is above the pixels is known by now: one round of starts is enough.
    rounds = 1 if stage.first else attack.rounds
    schedule = optax.cosine_decay_schedule(1.0, attack.iterations)
    adam = optax.scale_by_adam()

    def descend(start: jax.Array) -> tuple[jax.Array, jax.Array]:
        def step(state: Any, count: jax.Array) -> tuple[Any, None]:
            inputs, moments, best, least = state
            value, slope = jax.value_and_grad(stage.misfit, argnums=1)(seen, inputs)
            better = value < least
            best = jnp.where(better, inputs, best)
            least = jnp.where(better, value, least)
            update, moments = adam.update(slope, moments)
            rate = _RATE * largest * schedule(count)
            inputs = jnp.clip(inputs - rate * update, 0.0, limit)
            return (inputs, moments, best, least), None

        state = (start, adam.init(start), start, jnp.asarray(jnp.inf))
        (_, _, best, least), _ = jax.lax.scan(
            step, state, jnp.arange(attack.iterations)
        )
        return best, least

    def one_round(state: Any) -> Any:
        count, population, parents, values = state
        found, least = jax.vmap(descend)(population)
        everybody = jnp.concatenate([parents, found])
        values = jnp.concatenate([values, least])
        order = jnp.argsort(values)[:_PARENTS]
        parents, values = everybody[order], values[order]
        own = jax.random.fold_in(key, count + 1)
        children = _children(own, parents, attack.starts, shape)
        return count + 1, children, parents, values

    first = largest * jax.random.uniform(key, (attack.starts, *shape))
    state = (
        jnp.zeros((), jnp.int32),
        first,
        first[:_PARENTS],
        jnp.full(_PARENTS, jnp.inf),
    )
    count, _, parents, _ = jax.lax.while_loop(
        lambda state: (state[0] < rounds) & (state[3][0] > _FOUND), one_round, state
    )
    return parents[0], count


def _children(
    key: Key, parents: jax.Array, count: int, shape: tuple[int, ...]
) -> jax.Array:
    """Returns mixtures of two parents each, place by place, some places shaken."""
    pairs, crossed, shaken, noise = jax.random.split(key, 4)
    pick = jax.random.randint(pairs, (2, count), 0, len(parents))
    places = (count, *shape[:-1], 1)
    other = jax.random.uniform(crossed, places) < _CROSSED
    mixed = jnp.where(other, parents[pick[1]], parents[pick[0]])
    moved = jax.random.uniform(shaken, places) < _SHAKEN
    factor = 1 + 0.5 * jax.random.normal(noise, mixed.shape) * moved
    return jnp.maximum(mixed * factor, 0.0)


def _relative(found: jax.Array, wanted: jax.Array) -> jax.Array:
    return jnp.sum(jnp.square(found - wanted)) / (jnp.sum(jnp.square(wanted)) + TINY)
