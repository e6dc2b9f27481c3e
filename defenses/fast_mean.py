"""The mean over units in one pass, when nobody reads the units themselves.

The mean of B units, each with its own normal draw, has the law of the clipped mean
plus one normal draw of std / sqrt(B). Training uses that; an audit that reads the
units runs the transforms one by one.
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp

from gradaudit.defenses.base import State, Transform, run
from gradaudit.defenses.clipping import weighted_means
from gradaudit.models.gradients import Units, is_outer
from gradaudit.types import Key, PyTree


@runtime_checkable
class Scales(Protocol):
    """A transform that multiplies each unit's tensors by factors, and does no more."""

    def factors(
        self, leaves: Sequence[Units], state: State, t: jax.Array | int
    ) -> tuple[list[jax.Array], State]:
        """Returns the factors, (units,) for each tensor (units, ...)."""


@runtime_checkable
class Averages(Protocol):
    """A transform that can give the mean of its outputs without making them."""

    def noisy_mean(
        self,
        key: Key,
        leaves: Sequence[Units],
        factors: list[jax.Array],
        state: State,
        t: jax.Array | int,
    ) -> tuple[list[jax.Array], State]:
        """Returns the mean over units of the outputs for units factor * leaf."""


def takes_factors(transforms: tuple[Transform, ...]) -> bool:
    """Returns whether norms and weighted sums of the units are all that is needed."""
    alone = _fused_from(transforms) == 0
    return alone and all(getattr(part, "factored", False) for part in transforms)


def mean_of_units(
    transforms: tuple[Transform, ...],
    key: Key,
    tree: PyTree,
    states: tuple[State, ...],
    t: jax.Array | int,
) -> tuple[PyTree, tuple[State, ...]]:
    """Returns the mean over units of `run(transforms, ...)`, and the next states.

    Guarantee: equal in distribution to running and then averaging; without noise,
    equal up to rounding. A clip followed by Gaussian noise at the end of the
    transforms costs one contraction and one draw; everything else is run.
    """
    start = _fused_from(transforms)
    tree, states_before = run(transforms[:start], key, tree, states[:start], t)
    leaves, structure = jax.tree.flatten(tree, is_leaf=is_outer)
    fused, following = transforms[start:], list(states_before)
    if not fused:
        return jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), tree), states_before
    factors = [jnp.ones(leaf.shape[0], jnp.float32) for leaf in leaves]
    clip = fused[0]
    if isinstance(clip, Scales):
        factors, state = clip.factors(leaves, states[start], t)
        following.append(state)
    last = fused[-1]
    if isinstance(last, Averages):
        index = len(transforms) - 1
        draw = jax.random.fold_in(key, index)
        means, state = last.noisy_mean(draw, leaves, factors, states[index], t)
        following.append(state)
    else:
        means = weighted_means(leaves, factors)
    return jax.tree.unflatten(structure, means), tuple(following)


def _fused_from(transforms: tuple[Transform, ...]) -> int:
    """Returns where the fusible end starts: [Scales][Averages], or nothing."""
    start = len(transforms)
    if start and isinstance(transforms[start - 1], Averages):
        start -= 1
    if start and isinstance(transforms[start - 1], Scales):
        start -= 1
    return start
