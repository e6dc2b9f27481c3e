"""The mean over units in one pass, when nobody reads the units themselves.

The mean of B units, each with its own normal draw, has the law of the clipped mean
plus one normal draw of std / sqrt(B). Training uses that; an audit that reads the
units runs the transforms one by one.
"""

from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp

from gradaudit.defenses.clipping import Scaled
from gradaudit.defenses.transforms import State, Transform, run
from gradaudit.models.gradients import is_outer
from gradaudit.text import users_code
from gradaudit.types import Key, PyTree


@runtime_checkable
class OnePass(Protocol):
    """A transform that can act on units which are never made.

    `ends`: it gives the mean over units of its outputs (it adds noise, say); else it
    only scales each unit's tensors. `factored`: norms and weighted sums are all that it
    reads of the units, so that they may come as `Outer`.
    """

    @property
    def ends(self) -> bool:
        """Whether `in_one_pass` returns means."""

    @property
    def factored(self) -> bool:
        """Whether it can read units that are kept as factors."""

    def in_one_pass(
        self, key: Key, units: Scaled, state: State, t: jax.Array | int
    ) -> tuple[Scaled | list[jax.Array], State]:
        """Returns the mean of each tensor over units if it `ends`, else the units.

        Guarantee: the law of the mean over units of what `apply` returns.
        """


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
    tree, following = run(transforms[:start], key, tree, states[:start], t)
    if start == len(transforms):
        return jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), tree), following
    leaves, structure = jax.tree.flatten(tree, is_leaf=is_outer)
    ones = [jnp.ones(leaf.shape[0], jnp.float32) for leaf in leaves]
    units: Scaled | list[jax.Array] = Scaled(leaves, ones)
    for index in range(start, len(transforms)):
        part = transforms[index]
        assert isinstance(part, OnePass) and isinstance(units, Scaled)
        with users_code():
            units, state = part.in_one_pass(
                jax.random.fold_in(key, index), units, states[index], t
            )
        following += (state,)
    means = units.means() if isinstance(units, Scaled) else units
    return jax.tree.unflatten(structure, means), following


def _fused_from(transforms: tuple[Transform, ...]) -> int:
    """Returns where the fusible end starts: [one that scales][one that ends]."""
    start = len(transforms)
    if start and _ends(transforms[start - 1]) is True:
        start -= 1
    if start and _ends(transforms[start - 1]) is False:
        start -= 1
    return start


def _ends(transform: Transform) -> bool | None:
    return transform.ends if isinstance(transform, OnePass) else None
