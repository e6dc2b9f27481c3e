"""Clips: the norm of each unit bounded, safe for huge values, loud for broken ones.

And the mean over units in one pass, when nobody reads the units themselves. The mean of
B units, each with its own normal draw, has the law of the clipped mean plus one normal
draw of std / sqrt(B). Training uses that; an audit that reads the units runs the
transforms one by one.
"""

import dataclasses
import enum
import functools
from collections.abc import Sequence
from typing import ClassVar, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from gradaudit import machine
from gradaudit.defenses.schedules import Schedule
from gradaudit.defenses.transforms import (
    Applied,
    Bound,
    Release,
    Round,
    State,
    Stateless,
    States,
    Transform,
    Transforms,
    run,
)
from gradaudit.errors import not_negative
from gradaudit.evidence import Evidence
from gradaudit.mechanism import Point
from gradaudit.models.gradients import Outer, Units, is_outer
from gradaudit.text import users_code
from gradaudit.types import Key, PyTree

# Scaling by a power of two before squaring moves the range of float32 norms from
# 1e-19..1e19 to 1e-13..1e25 at the price of one multiplication.
_SCALE = 2.0**-20

TARGET = "gradaudit_unit_norms"  # the name by which XLA knows the C

# Few units are summed term by term: one pass over memory instead of a small matmul.
_MOST_UNROLLED = 16

_SMALLEST_NORMAL = float(np.finfo(np.float32).tiny)


class Norm(enum.Enum):
    """The norm that a clip bounds."""

    L1 = 1
    L2 = 2


class Scope(enum.Enum):
    """What a clip bounds: each tensor on its own, or a unit's whole tree."""

    TENSOR = "tensor"
    GLOBAL = "global"


def unit_norms(leaf: Units, norm: Norm = Norm.L2) -> jax.Array:
    """Returns the norm of each unit, (units,), of a tensor (units, ...).

    NaN and infinity in a unit, and an L2 norm beyond 1e25, give a norm that is NaN or
    infinite.
    """
    if isinstance(leaf, Outer):  # either norm of an outer product is a product
        return unit_norms(leaf.left, norm) * unit_norms(leaf.right, norm)
    # On CPU a reduction of a matrix over its rows is twice as fast as one over axes.
    rows = leaf.reshape(leaf.shape[0], -1).astype(jnp.float32)
    if norm is Norm.L1:
        return jnp.sum(jnp.abs(rows), axis=1)
    scaled = rows * _SCALE
    # A dot product: on CPU several times faster than a sum of squares.
    return jnp.sqrt(jnp.einsum("ui,ui->u", scaled, scaled)) / _SCALE


def told_norms(leaf: Units, norm: Norm = Norm.L2) -> jax.Array:
    """Returns `unit_norms`, on CPU in one pass of C; without a derivative."""
    if isinstance(leaf, Outer):
        return told_norms(leaf.left, norm) * told_norms(leaf.right, norm)
    slowly = functools.partial(unit_norms, norm=norm)
    if norm is Norm.L1 or leaf.dtype != jnp.float32 or not compiled():
        return slowly(leaf)
    rows = leaf.reshape(leaf.shape[0], -1)
    return machine.in_c(TARGET, leaf.shape[:1], slowly)(rows)


@functools.cache
def compiled() -> bool:
    """Returns whether the C was built with the package, and loads."""
    return machine.offer_to_xla(machine.UNIT_NORMS, {TARGET: "unit_norms"})


def smooth_norms(leaf: jax.Array, norm: Norm = Norm.L2) -> jax.Array:
    """Returns `unit_norms` with a derivative of 0 where a unit is 0."""
    empty = jnp.all(leaf == 0, axis=tuple(range(1, leaf.ndim)), keepdims=True)
    norms = unit_norms(jnp.where(empty, 1.0, leaf), norm)
    return jnp.where(empty.reshape(-1), 0.0, norms)


def joint_norms(norms: list[jax.Array], norm: Norm = Norm.L2) -> jax.Array:
    """Returns each unit's norm over all tensors from the norms of the tensors."""
    return unit_norms(jnp.stack(norms, axis=1), norm)


def clip_factors(norms: jax.Array, bound: jax.Array | float) -> jax.Array:
    """Returns min(1, bound / norm) per unit.

    A norm that is NaN, infinite, or so large that the factor is not a normal number
    gives NaN: a broken gradient stays visible and is never clipped to zero.
    """
    above = norms > bound
    factors = bound / jnp.where(above, norms, bound)
    lost = above & (factors < _SMALLEST_NORMAL)
    return jnp.where(lost | jnp.isnan(norms), jnp.nan, factors)


def scale_units(leaf: jax.Array, factors: jax.Array) -> jax.Array:
    """Returns each unit of a tensor (units, ...) times its factor, (units,)."""
    shape = (-1,) + (1,) * (leaf.ndim - 1)
    return (leaf * factors.reshape(shape)).astype(leaf.dtype)


def weighted_means(
    leaves: Sequence[Units], factors: Sequence[jax.Array]
) -> list[jax.Array]:
    """Returns sum_u factor[u] * leaf[u] / units for each tensor (units, ...)."""

    def mean(leaf: Units, factor: jax.Array) -> jax.Array:
        units = leaf.shape[0]
        if isinstance(leaf, Outer):
            return leaf.left.T @ (leaf.right * (factor / units)[:, None])
        if units > _MOST_UNROLLED:
            total = jnp.tensordot(factor, leaf, axes=1)
        else:
            total = factor[0] * leaf[0]
            for unit in range(1, units):
                total += factor[unit] * leaf[unit]
        return (total / units).astype(leaf.dtype)

    return [mean(leaf, factor) for leaf, factor in zip(leaves, factors, strict=True)]


@dataclasses.dataclass(frozen=True)
class Scaled:
    """Units that are not made: unit u of a tensor is factor[u] * leaf[u]."""

    leaves: Sequence[Units]  # (units, ...) each
    factors: list[jax.Array]  # (units,) each

    def norms(self, norm: Norm = Norm.L2) -> list[jax.Array]:
        """Returns the norms of each unit, (units,), for every tensor."""
        return [
            told_norms(leaf, norm) * factor
            for leaf, factor in zip(self.leaves, self.factors, strict=True)
        ]

    def times(self, factors: Sequence[jax.Array]) -> "Scaled":
        """Returns the units scaled once more."""
        both = zip(self.factors, factors, strict=True)
        return Scaled(self.leaves, [old * new for old, new in both])

    def made(self) -> list[jax.Array]:
        """Returns the units themselves, (units, ...) for every tensor."""
        plain = [x.written_out() if isinstance(x, Outer) else x for x in self.leaves]
        return list(map(scale_units, plain, self.factors))

    def means(self) -> list[jax.Array]:
        """Returns the mean over units of every tensor."""
        return weighted_means(self.leaves, self.factors)

    def products(self) -> list[tuple[jax.Array, jax.Array]]:
        """Returns left (units, rows) and right (units, columns) of every tensor.

        The sum over units of left[u] right[u]^T is the mean of the tensor, row by row.
        """

        def one(leaf: Units, factor: jax.Array) -> tuple[jax.Array, jax.Array]:
            weight = (factor / leaf.shape[0])[:, None]
            if isinstance(leaf, Outer):
                return leaf.left, leaf.right * weight
            return weight, leaf.reshape(leaf.shape[0], -1)

        return list(map(one, self.leaves, self.factors))


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
        self, key: Key, units: Scaled, state: State, t: Round
    ) -> tuple[Scaled | list[jax.Array], State]:
        """Returns the mean of each tensor over units if it `ends`, else the units.

        Guarantee: the law of the mean over units of what `apply` returns.
        """


def takes_factors(transforms: Transforms) -> bool:
    """Returns whether norms and weighted sums of the units are all that is needed."""
    alone = _fused_from(transforms) == 0
    return alone and all(getattr(part, "factored", False) for part in transforms)


def mean_of_units(
    transforms: Transforms, key: Key, tree: PyTree, states: States, t: Round
) -> tuple[PyTree, States]:
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


def _fused_from(transforms: Transforms) -> int:
    """Returns where the fusible end starts: [one that scales][one that ends]."""
    start = len(transforms)
    if start and _ends(transforms[start - 1]) is True:
        start -= 1
    if start and _ends(transforms[start - 1]) is False:
        start -= 1
    return start


def _ends(transform: Transform) -> bool | None:
    return transform.ends if isinstance(transform, OnePass) else None


@dataclasses.dataclass(frozen=True)
class Clip(Stateless):
    """Scales each unit so that its norm is at most the bound of the round.

    Guarantee: the norm of every tensor (or of the whole tree, for Scope.GLOBAL) is at
    most `bound(t)`; units inside the bound pass unchanged; NaN stays NaN.
    Wei et al. 2021, Algorithm 2 line 10 (L2, per tensor, at each example); Zhu et al.
    2021, equation 2 (L1, global, at the client).
    """

    independent: ClassVar[bool] = True
    ends: ClassVar[bool] = False
    factored: ClassVar[bool] = True
    bound: Schedule
    scope: Scope = Scope.TENSOR
    norm: Norm = Norm.L2

    def apply(self, key: Key, tree: PyTree, state: State, t: Round) -> Applied:
        """Returns the clipped tree."""
        leaves, structure = jax.tree.flatten(tree)
        factors = self._factors([unit_norms(leaf, self.norm) for leaf in leaves], t)
        scaled = map(scale_units, leaves, factors)
        return jax.tree.unflatten(structure, list(scaled)), state

    def in_one_pass(
        self, key: Key, units: Scaled, state: State, t: Round
    ) -> tuple[Scaled, State]:
        """Returns the clipped units."""
        return units.times(self._factors(units.norms(self.norm), t)), state

    def _factors(self, norms: list[jax.Array], t: Round) -> list[jax.Array]:
        """Returns the factor of each unit, (units,), for every tensor."""
        if self.scope is Scope.GLOBAL:
            norms = [joint_norms(norms, self.norm)] * len(norms)
        bound = self.bound(t)
        return [clip_factors(norm, bound) for norm in norms]

    def explain(self, evidence: Evidence, state: State, t: Round) -> Evidence:
        """Returns the guess clipped like the truth was."""
        leaves = jax.tree.leaves(evidence.expected)
        norms = [smooth_norms(leaf, self.norm) for leaf in leaves]
        return evidence.scaled(list(self._factors(norms, t)))

    def release(self, point: Point, bound: Bound | None) -> Release:
        """Releases nothing, and bounds a unit whatever bounded it before."""
        per_tensor = self.scope is Scope.TENSOR
        return (), Bound(self.bound, self.norm.value, per_tensor)


@dataclasses.dataclass(frozen=True)
class FixedSensitivity:
    """S = C, the clipping bound of the round (Wei et al. 2021, Algorithms 1 and 2)."""

    data_dependent: ClassVar[bool] = False
    bound: Schedule

    def of(self, norms: list[jax.Array], t: Round) -> jax.Array:
        """Returns S in round t, ()."""
        return jnp.asarray(self.bound(t), jnp.float32)


@dataclasses.dataclass(frozen=True)
class LargestNorm:
    """S = the largest norm over units and tensors after clipping (l2-max).

    Wei et al. 2023, section 5.2; Wei & Liu 2022, section IV-A. S is at most the
    clipping bound, and it depends on the private batch, so that the noise scale is
    itself a leak: accounting says so. `smallest` keeps a vanishing batch noisy.
    """

    data_dependent: ClassVar[bool] = True
    bound: Schedule  # the clip before it
    smallest: float = 0.0

    def __post_init__(self) -> None:
        not_negative(smallest=self.smallest)

    def of(self, norms: list[jax.Array], t: Round) -> jax.Array:
        """Returns S, (), for clipped tensors with these norms, (units,) each."""
        return jnp.maximum(jnp.max(jnp.stack(norms)), self.smallest)


Sensitivity = FixedSensitivity | LargestNorm
