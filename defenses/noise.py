"""Noise: what hides the unit that the clip has bounded."""

import dataclasses
import enum
from collections.abc import Sequence
from typing import ClassVar

import jax
import jax.numpy as jnp

from gradaudit.defenses.base import State
from gradaudit.defenses.caveats import caveats, unbounded
from gradaudit.defenses.clipping import Clip
from gradaudit.defenses.draws import draw_like, standard_normal
from gradaudit.defenses.norms import Scope, unit_norms, weighted_means
from gradaudit.defenses.schedules import Constant, Schedule
from gradaudit.defenses.sensitivity import FixedSensitivity, Sensitivity
from gradaudit.factored import Units
from gradaudit.mechanism import Mechanism, NoiseKind, Point
from gradaudit.types import Key, PyTree


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


@dataclasses.dataclass(frozen=True)
class GaussianNoise:
    """Adds N(0, (sigma_t * S)^2) to every coordinate.

    Guarantee: the noise of each unit is independent (NoiseAt.UNIT), or one draw for
    the batch (NoiseAt.BATCH, see there).
    """

    factored: ClassVar[bool] = True
    multiplier: Schedule
    sensitivity: Sensitivity
    at: NoiseAt = NoiseAt.UNIT

    def init(self, params: PyTree) -> State:
        """Returns no state."""
        return ()

    def _std(self, norms: list[jax.Array], t: jax.Array | int) -> jax.Array:
        return jnp.asarray(self.sensitivity.of(norms, t) * self.multiplier(t))

    def _norms(self, leaves: Sequence[Units]) -> list[jax.Array]:
        if not self.sensitivity.data_dependent:
            return []
        return [unit_norms(leaf) for leaf in leaves]

    def apply(
        self, key: Key, tree: PyTree, state: State, t: jax.Array | int
    ) -> tuple[PyTree, State]:
        """Returns the noisy tree."""
        leaves, structure = jax.tree.flatten(tree)
        units = leaves[0].shape[0]
        std = self._std(self._norms(leaves), t)
        if self.at is NoiseAt.BATCH:
            noise = draw_like(key, leaves, standard_normal)
            std = std / units
        else:
            noise = draw_like(key, leaves, standard_normal, units)
        noisy = add_noise(leaves, noise, [std] * len(leaves))
        return jax.tree.unflatten(structure, noisy), state

    def noisy_mean(
        self,
        key: Key,
        leaves: Sequence[Units],
        factors: list[jax.Array],
        state: State,
        t: jax.Array | int,
    ) -> tuple[list[jax.Array], State]:
        """Returns the mean over units of (factor * unit + noise), with one draw."""
        units = leaves[0].shape[0]
        norms = [
            norm * factor
            for norm, factor in zip(self._norms(leaves), factors, strict=False)
        ]
        spread = units if self.at is NoiseAt.BATCH else units**0.5
        std = self._std(norms, t) / spread
        means = weighted_means(leaves, factors)
        noise = draw_like(key, leaves, standard_normal)
        return add_noise(means, noise, [std] * len(means)), state

    def releases(self, point: Point, clip: Clip | None) -> tuple[Mechanism, ...]:
        """Returns what the noise claims, given what bounds the unit."""
        on_batch = self.at is NoiseAt.BATCH
        return (
            Mechanism(
                point=point,
                kind=NoiseKind.GAUSSIAN,
                multiplier=self.multiplier,
                sensitivity=self.sensitivity.bound,
                clip=clip.bound if clip else unbounded,
                norm=clip.norm.value if clip else 2,
                per_tensor=clip.scope is Scope.TENSOR if clip else True,
                data_dependent=self.sensitivity.data_dependent,
                on_batch_sum=on_batch,
                caveats=caveats(clip, self.sensitivity, 2, on_batch),
            ),
        )


@dataclasses.dataclass(frozen=True)
class LaplaceNoise:
    """Adds Laplace(S / epsilon_t) to every coordinate, independently for each unit.

    The std of a coordinate is sqrt(2) * S / epsilon_t.
    """

    epsilon: Schedule
    sensitivity: Sensitivity

    def init(self, params: PyTree) -> State:
        """Returns no state."""
        return ()

    def apply(
        self, key: Key, tree: PyTree, state: State, t: jax.Array | int
    ) -> tuple[PyTree, State]:
        """Returns the noisy tree."""
        leaves, structure = jax.tree.flatten(tree)
        norms = (
            [unit_norms(leaf) for leaf in leaves]
            if self.sensitivity.data_dependent
            else []
        )
        scale = self.sensitivity.of(norms, t) / self.epsilon(t)
        noise = draw_like(key, leaves, jax.random.laplace, leaves[0].shape[0])
        noisy = add_noise(leaves, noise, [scale] * len(leaves))
        return jax.tree.unflatten(structure, noisy), state

    def releases(self, point: Point, clip: Clip | None) -> tuple[Mechanism, ...]:
        """Returns what the noise claims, given what bounds the unit."""
        return (
            Mechanism(
                point=point,
                kind=NoiseKind.LAPLACE,
                multiplier=self.epsilon,
                sensitivity=self.sensitivity.bound,
                clip=clip.bound if clip else unbounded,
                norm=clip.norm.value if clip else 1,
                per_tensor=clip.scope is Scope.TENSOR if clip else True,
                data_dependent=self.sensitivity.data_dependent,
                caveats=caveats(clip, self.sensitivity, 1, on_batch=False),
            ),
        )


def plain_gaussian(std: float) -> GaussianNoise:
    """Returns noise of this std that is tied to no clip."""
    return GaussianNoise(Constant(std), FixedSensitivity(Constant(1.0)))


def plain_laplace(scale: float) -> LaplaceNoise:
    """Returns noise of this scale b (std sqrt(2) * b) that is tied to no clip."""
    return LaplaceNoise(Constant(1.0), FixedSensitivity(Constant(scale)))
