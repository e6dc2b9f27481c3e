"""The objective of gradient matching: how far dummy data is from explaining a leak.

A guess explains each look at a victim, and an `Account` says how well, by a distance
and without a prior; the objective adds up the looks and what is believed of inputs.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from gradaudit import tree
from gradaudit.attacks.distances import Distance
from gradaudit.attacks.likelihood import truth_in_nats
from gradaudit.attacks.priors import Prior, in_nats, told
from gradaudit.attacks.priors import residuals as of_prior
from gradaudit.attacks.starts import Layout
from gradaudit.evidence import Evidence
from gradaudit.models.gradients import unrolled_update
from gradaudit.models.model import Model
from gradaudit.types import Observation, PyTree

_held = jax.lax.stop_gradient


def guessed_gradient(
    model: Model,
    observation: Observation,
    replays: bool,
    inputs: jax.Array,
    targets: jax.Array,
) -> PyTree:
    """Returns what these inputs would have leaked, on the scale of a gradient."""
    training = observation.training
    if not replays:
        # Without replay, L steps count as one gradient that was added L times.
        gradient = jax.grad(model.loss)(
            observation.params, observation.buffers, inputs, targets
        )
        return tree.scale(training.local_steps, gradient)
    images, weights = (
        leaf.reshape(training.local_steps, -1, *leaf.shape[1:])
        for leaf in (inputs, targets)
    )
    rate = training.learning_rate
    update = unrolled_update(
        model, observation.params, observation.buffers, images, weights, rate
    )
    return tree.scale(-1.0 / rate, update)


def expected_evidence(
    model: Model,
    observation: Observation,
    replays: bool,
    inputs: jax.Array,
    targets: jax.Array,
) -> Evidence:
    """Returns what the told defense makes of these inputs, on a gradient's scale."""
    told, memory = observation.told, observation.memory
    training, rate = observation.training, observation.training.learning_rate

    def of_batch(params: PyTree, batch: tuple[jax.Array, jax.Array]) -> Evidence:
        def one(example: jax.Array, target: jax.Array) -> PyTree:
            return jax.grad(model.loss)(
                params, observation.buffers, example[None], target[None]
            )

        units = Evidence.exact(jax.vmap(one)(*batch))
        return told.per_example(units, memory)  # type: ignore[no-any-return]

    if not told.reads_updates:
        return of_batch(observation.params, (inputs, targets))
    steps = training.local_steps if replays else 1
    batches = [leaf.reshape(steps, -1, *leaf.shape[1:]) for leaf in (inputs, targets)]
    # Without replay, L steps count as one gradient that was added L times.
    repeated = 1 if replays else training.local_steps
    params, total = observation.params, None
    for step in range(steps):
        mean = of_batch(params, (batches[0][step], batches[1][step])).mean()
        moved = mean.scaled([-rate * repeated] * len(jax.tree.leaves(mean.expected)))
        params = jax.tree.map(lambda p, e: p + e[0], params, moved.expected)
        total = moved if total is None else total.plus(moved)
    assert total is not None
    arrived = told.update(total, memory)
    count = len(jax.tree.leaves(arrived.expected))
    return arrived.scaled([-1.0 / rate] * count)  # type: ignore[no-any-return]


@dataclasses.dataclass(frozen=True)
class Account:
    """What a guess explains of one look, by a distance, without a prior.

    `guess` is its gradient or, if the defense is told, `known` is evidence about it.
    """

    distance: Distance
    read: PyTree
    guess: PyTree
    known: Evidence | None

    @property
    def misfit(self) -> jax.Array:
        """How far the guess is from explaining what leaked."""
        if self.known is None:
            return self.distance(self.guess, self.read)
        return self.distance.misfit(self.known, self.read)

    @property
    def residuals(self) -> list[jax.Array]:
        """Arrays whose squares add up to the misfit."""
        if self.known is None:
            return self.distance.residuals(self.guess, self.read)
        return self.distance.unexplained(self.known, self.read)

    @property
    def nat(self) -> jax.Array:
        """By how much the misfit grows if the look is e times less likely."""
        return _held(self.distance.nat(self.known, self.read))

    @property
    def expected(self) -> jax.Array:
        """How many nats noise of any size costs the truth."""
        return truth_in_nats(self.known, self.read)


def accounts(
    distance: Distance,
    model: Model,
    observation: Observation,
    replays: bool,
    inputs: jax.Array,
    targets: jax.Array,
) -> list[Account]:
    """Returns what these inputs explain of every look at a victim."""

    def of(look: Observation) -> Account:
        asked = model, look, replays, inputs, targets
        if look.told is None:
            return Account(distance, look.gradient, guessed_gradient(*asked), None)
        return Account(distance, look.gradient, None, expected_evidence(*asked))

    return [of(look) for look in observation.looks]


def shares(looks: list[Account]) -> list[jax.Array | float]:
    """Returns by what each look's misfit counts in their joint one.

    In proportion to what a nat of it is worth: then the looks' log likelihoods add up.
    n looks with the same parameters and noise are one of a variance n times smaller.
    """
    if len(looks) == 1:
        return [1.0]
    return [looks[0].nat / (len(looks) * look.nat) for look in looks]


def misfit(looks: list[Account]) -> jax.Array:
    """Returns how far a guess is from explaining all looks, in units of the first."""
    parts = zip(looks, shares(looks), strict=True)
    return jnp.sum(jnp.stack([share * look.misfit for look, share in parts]))


@dataclasses.dataclass(frozen=True)
class Objective:
    """What a search makes small: a function of its position, for any optimizer.

    `residuals` is for optimizers that ask for it: a vector whose squared norm is the
    objective (nearly, where a prior is no sum of squares).
    """

    total: Callable[[jax.Array], jax.Array]
    residuals: Callable[[jax.Array], jax.Array]

    def __call__(self, position: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns the objective and its gradient.

        Reverse over reverse: the two passes share the network's forward and backward
        values, which a directional derivative along the residual computes twice.
        """
        return jax.value_and_grad(self.total)(position)

    def moving(self, mask: jax.Array) -> "Objective":
        """Returns the objective of a search in which only these coordinates move."""

        def held(
            function: Callable[[jax.Array], jax.Array],
        ) -> Callable[[jax.Array], jax.Array]:
            def of(position: jax.Array) -> jax.Array:
                still = jax.lax.stop_gradient(position)
                return function(jnp.where(mask, position, still))

            return of

        return Objective(held(self.total), held(self.residuals))


def objective(
    distance: Distance,
    priors: tuple[Prior, ...],
    layout: Layout,
    model: Model,
    observation: Observation,
    replays: bool,
    labels: jax.Array,
    weights: jax.Array | None = None,
) -> Objective:
    """Returns the objective of one victim; `weights` multiply the priors, one each."""
    beliefs = [told(prior, model, observation) for prior in priors]

    def explained(position: jax.Array) -> tuple[jax.Array, list[Account]]:
        images, targets = layout.unpack(position, labels)
        return images, accounts(distance, model, observation, replays, images, targets)

    def priced(found: jax.Array, looks: list[Account]) -> list[jax.Array]:
        """Returns by what each prior is multiplied.

        What a guess leaves unexplained counts as noise whose size nobody tells, so that
        a prior in nats is strong at first and fades as the search gets nearer, down to
        the noise that is told.
        """
        given = jnp.ones(len(priors)) if weights is None else weights
        expected = sum(look.expected for look in looks)
        nat = jnp.maximum(looks[0].nat / len(looks), _held(found) / expected)
        unit = [nat if in_nats(prior) else 1.0 for prior in priors]
        return [given[i] * unit[i] for i in range(len(priors))]

    def total(position: jax.Array) -> jax.Array:
        images, looks = explained(position)
        value = found = misfit(looks)
        for belief, factor in zip(beliefs, priced(found, looks), strict=True):
            value = value + factor * belief(images)
        return value.astype(position.dtype)  # whatever a part computes in

    def residuals(position: jax.Array) -> jax.Array:
        images, looks = explained(position)
        parts = [
            jnp.sqrt(share) * part
            for look, share in zip(looks, shares(looks), strict=True)
            for part in look.residuals
        ]
        found = jnp.sum(jnp.stack([jnp.sum(jnp.square(part)) for part in parts]))
        for belief, factor in zip(beliefs, priced(found, looks), strict=True):
            parts.append(jnp.sqrt(factor) * of_prior(belief, images))
        flat = jnp.concatenate([part.reshape(-1) for part in parts])
        return flat.astype(position.dtype)

    return Objective(total, residuals)
