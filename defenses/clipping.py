"""Clipping: what bounds the influence of one unit."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import jax

from gradaudit.defenses.base import State
from gradaudit.defenses.norms import (
    Norm,
    Scope,
    clip_factors,
    joint_norms,
    scale_units,
    unit_norms,
)
from gradaudit.defenses.schedules import Schedule
from gradaudit.factored import Units
from gradaudit.types import Key, PyTree


@dataclasses.dataclass(frozen=True)
class Clip:
    """Scales each unit so that its norm is at most the bound of the round.

    Guarantee: the norm of every tensor (or of the whole tree, for Scope.GLOBAL) is at
    most `bound(t)`; units inside the bound pass unchanged; NaN stays NaN.
    Wei et al. 2021, Algorithm 2 line 10 (L2, per tensor, at each example); Zhu et al.
    2021, equation 2 (L1, global, at the client).
    """

    factored: ClassVar[bool] = True
    bound: Schedule
    scope: Scope = Scope.TENSOR
    norm: Norm = Norm.L2

    def init(self, params: PyTree) -> State:
        """Returns no state."""
        return ()

    def factors(
        self, leaves: Sequence[Units], state: State, t: jax.Array | int
    ) -> tuple[list[jax.Array], State]:
        """Returns the factor of each unit, (units,), for every tensor."""
        norms = [unit_norms(leaf, self.norm) for leaf in leaves]
        if self.scope is Scope.GLOBAL:
            joint = joint_norms(norms, self.norm)
            norms = [joint] * len(norms)
        bound = self.bound(t)
        return [clip_factors(norm, bound) for norm in norms], state

    def apply(
        self, key: Key, tree: PyTree, state: State, t: jax.Array | int
    ) -> tuple[PyTree, State]:
        """Returns the clipped tree."""
        del key
        leaves, structure = jax.tree.flatten(tree)
        factors, state = self.factors(leaves, state, t)
        scaled = map(scale_units, leaves, factors)
        return jax.tree.unflatten(structure, list(scaled)), state
