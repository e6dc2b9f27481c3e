"""Noise that is tied to a clip, and sentences on where the two are no guarantee."""

import dataclasses
import enum
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from gradaudit.defenses.clipping import (
    Clip,
    FixedSensitivity,
    LargestNorm,
    Scaled,
    Scope,
    Sensitivity,
    unit_norms,
)
from gradaudit.defenses.normal import noisy_sums, standard_normal
from gradaudit.defenses.schedules import Constant, Schedule, as_schedule
from gradaudit.defenses.transforms import (
    Applied,
    Bound,
    Release,
    Round,
    State,
    Stateless,
)
from gradaudit.evidence import Evidence
from gradaudit.mechanism import Mechanism, NoiseKind, Point
from gradaudit.models.gradients import Units
from gradaudit.types import Key, PyTree

NOT_CLIPPED = (
    "Nothing bounds what one unit can change, so the noise has no sensitivity and "
    "there is no differential privacy guarantee."
)

DATA_DEPENDENT = (
    "The noise scale is the largest norm in the private batch (l2-max): it depends on "
    "the data that it should hide, so the Gaussian mechanism's guarantee does not hold."
)

PER_TENSOR = (
    "Each of the M tensors is clipped to C on its own, so one unit can change the "
    "release by C * sqrt(M) jointly; the claim counts C."
)

ON_BATCH = (
    "One draw hides the batch sum; an adversary who reads single examples (type 2) is "
    "not covered by the claim."
)

UNTIED = (
    "The noise is scaled to {sensitivity:.6g} while the clip allows {clip:.6g}: the "
    "noise multiplier that holds is smaller than the one that is claimed."
)

WRONG_NORM = (
    "The clip bounds the L{clip} norm and the noise is calibrated for L{noise}."
)


def unbounded(t: int) -> None:
    """Returns None, the clip of a mechanism where nothing bounds a unit."""


def caveats(
    bound: Bound | None, sensitivity: Sensitivity, noise_norm: int, on_batch: bool
) -> tuple[str, ...]:
    """Returns the sentences that apply to noise of this sensitivity on such units."""
    if bound is None:
        return (NOT_CLIPPED,)
    found = []
    if sensitivity.data_dependent:
        found.append(DATA_DEPENDENT)
    if bound.per_tensor:
        found.append(PER_TENSOR)
    if on_batch:
        found.append(ON_BATCH)
    claimed, allowed = sensitivity.bound(0), bound.limit(0)
    if claimed < allowed * (1 - 1e-9):
        found.append(UNTIED.format(sensitivity=claimed, clip=allowed))
    if bound.norm > noise_norm:
        found.append(WRONG_NORM.format(clip=bound.norm, noise=noise_norm))
    return tuple(found)


Sampler = Callable[[Key, tuple[int, ...]], jax.Array]


def in_shapes(flat: jax.Array, leaves: Sequence[Units]) -> list[jax.Array]:
    """Returns the last axis cut into the shapes of one unit of the leaves."""
    sizes = [int(np.prod(leaf.shape[1:])) for leaf in leaves]
    parts = jnp.split(flat, np.cumsum(sizes)[:-1], axis=-1)
    return [
        part.reshape(flat.shape[:-1] + leaf.shape[1:])
        for part, leaf in zip(parts, leaves, strict=True)
    ]


def draw_like(
    key: Key, leaves: Sequence[Units], sampler: Sampler, units: int | None = None
) -> list[jax.Array]:
    """Returns standard noise in the shapes of one unit of the leaves (units, ...).

    With `units` there is a leading axis of that many independent draws.
    """
    size = sum(int(np.prod(leaf.shape[1:])) for leaf in leaves)
    shape = (size,) if units is None else (units, size)
    return in_shapes(sampler(key, shape), leaves)


class NoiseAt(enum.Enum):
    """Where papers and their released code put the noise.

    UNIT: an independent draw of std sigma * S for every unit (the text; default).
    BATCH: one draw of std sigma * S for the *sum* of the units, so sigma * S / B on
    their mean (the released code, and DP-SGD). Every unit of the batch then carries
    the same draw of std sigma * S / B, which protects the mean and not the units: an
    adversary of type 2 who reads two of them subtracts it away.
    """

    UNIT = "per_example"
    BATCH = "batch"


def add_noise(
    leaves: list[jax.Array], noise: list[jax.Array], scales: list[jax.Array]
) -> list[jax.Array]:
    """Returns leaf + scale * noise for each tensor, in the leaf's dtype."""
    return [
        (leaf + scale * draw).astype(leaf.dtype)
        for leaf, draw, scale in zip(leaves, noise, scales, strict=True)
    ]


def noisy_means(key: Key, units: Scaled, std: jax.Array) -> list[jax.Array]:
    """Returns each tensor's mean over units, with normal noise of this std."""
    if any(leaf.dtype != jnp.float32 for leaf in units.leaves):
        means, noise = units.means(), draw_like(key, units.leaves, standard_normal)
        return add_noise(means, noise, [std] * len(means))
    return in_shapes(noisy_sums(key, std, units.products()), units.leaves)


def bounds_itself(
    point: Point,
    multiplier: float,
    bound: float,
    kind: NoiseKind = NoiseKind.GAUSSIAN,
    **others: Any,
) -> Mechanism:
    """Returns the release of a part that bounds a unit's whole tree by itself."""
    return Mechanism(
        point=point,
        kind=kind,
        multiplier=Constant(multiplier),
        sensitivity=Constant(bound),
        clip=Constant(bound),
        per_tensor=False,
        **others,
    )


class _TiedNoise(Stateless):
    """Noise whose scale is S, the sensitivity, times or over a number of the round."""

    sensitivity: Sensitivity

    @property
    def additive(self) -> bool:
        """Whether the noise does not depend on the units."""
        return not self.sensitivity.data_dependent

    def _sensitivity(self, leaves: Sequence[Units], t: Round) -> jax.Array:
        read = self.sensitivity.data_dependent
        norms = [unit_norms(leaf) for leaf in leaves] if read else []
        return self.sensitivity.of(norms, t)

    def _release(
        self,
        point: Point,
        bound: Bound | None,
        kind: NoiseKind,
        multiplier: Schedule,
        norm: int,
        on_batch: bool = False,
    ) -> Release:
        """Returns what the noise claims, given what bounds the unit."""
        mechanism = Mechanism(
            point=point,
            kind=kind,
            multiplier=multiplier,
            sensitivity=self.sensitivity.bound,
            clip=bound.limit if bound else unbounded,
            norm=bound.norm if bound else norm,
            per_tensor=bound.per_tensor if bound else True,
            data_dependent=self.sensitivity.data_dependent,
            on_batch_sum=on_batch,
            caveats=caveats(bound, self.sensitivity, norm, on_batch),
        )
        return (mechanism,), None


@dataclasses.dataclass(frozen=True)
class GaussianNoise(_TiedNoise):
    """Adds N(0, (sigma_t * S)^2) to every coordinate.

    Guarantee: the noise of each unit is independent (NoiseAt.UNIT), or one draw for
    the batch (NoiseAt.BATCH, see there).
    """

    ends: ClassVar[bool] = True
    factored: ClassVar[bool] = True
    multiplier: Schedule
    sensitivity: Sensitivity
    at: NoiseAt = NoiseAt.UNIT

    @property
    def independent(self) -> bool:
        """Whether each unit gets a draw of its own, of a fixed scale."""
        return self.at is NoiseAt.UNIT and self.additive

    def apply(self, key: Key, tree: PyTree, state: State, t: Round) -> Applied:
        """Returns the noisy tree."""
        leaves, structure = jax.tree.flatten(tree)
        units = leaves[0].shape[0]
        std = jnp.asarray(self._sensitivity(leaves, t) * self.multiplier(t))
        if self.at is NoiseAt.BATCH:
            noise = draw_like(key, leaves, standard_normal)
            std = std / units
        else:
            noise = draw_like(key, leaves, standard_normal, units)
        noisy = add_noise(leaves, noise, [std] * len(leaves))
        return jax.tree.unflatten(structure, noisy), state

    def in_one_pass(
        self, key: Key, units: Scaled, state: State, t: Round
    ) -> tuple[list[jax.Array], State]:
        """Returns the mean over units of (unit + noise), with one draw."""
        count = units.leaves[0].shape[0]
        norms = units.norms() if self.sensitivity.data_dependent else []
        spread = count if self.at is NoiseAt.BATCH else count**0.5
        std = jnp.asarray(self.sensitivity.of(norms, t) * self.multiplier(t)) / spread
        return noisy_means(key, units, std), state

    def explain(self, evidence: Evidence, state: State, t: Round) -> Evidence:
        """Returns the evidence with the noise's variance; S is that of the guess."""
        leaves = jax.tree.leaves(evidence.expected)
        on_batch = self.at is NoiseAt.BATCH
        std = jnp.asarray(self._sensitivity(leaves, t) * self.multiplier(t))
        std = std / leaves[0].shape[0] if on_batch else std
        # The adversary takes the scale as it is: a guess must not explain itself
        # better by asking for more noise.
        variance = jax.lax.stop_gradient(jnp.square(std))
        return evidence.noisier([variance] * len(leaves), common=on_batch)

    def release(self, point: Point, bound: Bound | None) -> Release:
        """Returns what the noise claims, given what bounds the unit."""
        on_batch = self.at is NoiseAt.BATCH
        return self._release(
            point, bound, NoiseKind.GAUSSIAN, self.multiplier, 2, on_batch
        )


@dataclasses.dataclass(frozen=True)
class LaplaceNoise(_TiedNoise):
    """Adds Laplace(S / epsilon_t) to every coordinate, independently for each unit.

    The std of a coordinate is sqrt(2) * S / epsilon_t.
    """

    epsilon: Schedule
    sensitivity: Sensitivity

    @property
    def independent(self) -> bool:
        """Whether the scale is fixed: each unit has its own draw."""
        return self.additive

    def apply(self, key: Key, tree: PyTree, state: State, t: Round) -> Applied:
        """Returns the noisy tree."""
        leaves, structure = jax.tree.flatten(tree)
        scale = self._sensitivity(leaves, t) / self.epsilon(t)
        noise = draw_like(key, leaves, jax.random.laplace, leaves[0].shape[0])
        noisy = add_noise(leaves, noise, [scale] * len(leaves))
        return jax.tree.unflatten(structure, noisy), state

    def explain(self, evidence: Evidence, state: State, t: Round) -> Evidence:
        """Returns the evidence with the noise's variance, 2 b^2."""
        leaves = jax.tree.leaves(evidence.expected)
        scale = self._sensitivity(leaves, t) / self.epsilon(t)
        variance = jax.lax.stop_gradient(2 * jnp.square(scale))
        return evidence.noisier([variance] * len(leaves), peaked=True)

    def release(self, point: Point, bound: Bound | None) -> Release:
        """Returns what the noise claims, given what bounds the unit."""
        return self._release(point, bound, NoiseKind.LAPLACE, self.epsilon, 1)


def plain_gaussian(std: float) -> GaussianNoise:
    """Returns noise of this std that is tied to no clip."""
    return GaussianNoise(Constant(std), FixedSensitivity(Constant(1.0)))


def plain_laplace(scale: float) -> LaplaceNoise:
    """Returns noise of this scale b (std sqrt(2) * b) that is tied to no clip."""
    return LaplaceNoise(Constant(1.0), FixedSensitivity(Constant(scale)))


def sanitize(
    clip: float | Schedule,
    sigma: float | Schedule,
    l2_max: bool = False,
    noise_at: NoiseAt = NoiseAt.UNIT,
    scope: Scope = Scope.TENSOR,
) -> tuple[Clip, GaussianNoise]:
    """Returns a clip and the Gaussian noise that is tied to it.

    The noise has std sigma * S, where S is the clip's own bound or, with `l2_max`, the
    largest norm of the batch after the clip.
    """
    bound = as_schedule("clip", clip)
    multiplier = as_schedule("sigma", sigma, zero=True)
    sensitivity: Sensitivity = FixedSensitivity(bound)
    if l2_max:
        sensitivity = LargestNorm(bound)
    return Clip(bound, scope), GaussianNoise(multiplier, sensitivity, noise_at)
