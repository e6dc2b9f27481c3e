"""A clip that follows a quantile of the norms, with the noise that is tied to it."""

import dataclasses
import math
from collections.abc import Sequence
from typing import ClassVar

import jax
import jax.numpy as jnp

from gradaudit.defenses.base import State
from gradaudit.defenses.draws import draw_like, standard_normal
from gradaudit.defenses.noise import add_noise
from gradaudit.defenses.norms import (
    clip_factors,
    joint_norms,
    scale_units,
    unit_norms,
    weighted_means,
)
from gradaudit.defenses.schedules import Constant
from gradaudit.errors import require
from gradaudit.factored import Units
from gradaudit.mechanism import Mechanism, NoiseKind, Point
from gradaudit.types import Key, PyTree

MOVING_BOUND = (
    "The clipping bound follows a noisy count of the data; the noise keeps its ratio "
    "to the bound, and the count is a release of its own."
)


@dataclasses.dataclass(frozen=True)
class QuantileClip:
    """Clips to a tracked quantile of the norms, and adds noise (Andrew et al. 2021).

    After each call C <- C * exp(-rate * (b - quantile)), where b is the share of the
    units with norm at most C, computed with noise of std `count_sigma` on the count.
    The gradients get noise of multiplier (sigma^-2 - (2 count_sigma)^-2)^-1/2, so that
    both releases together cost as much as one of multiplier sigma.
    """

    factored: ClassVar[bool] = True
    clip: float  # the first bound
    sigma: float
    quantile: float = 0.5
    rate: float = 0.2
    count_sigma: float = 5.0

    def __post_init__(self) -> None:
        require(
            math.isfinite(self.clip) and self.clip > 0,
            f"clip must be positive and finite, got {self.clip}",
        )
        require(self.sigma >= 0, f"sigma must not be negative, got {self.sigma}")
        require(
            0 < self.quantile < 1,
            f"quantile must lie in (0, 1), got {self.quantile}",
        )
        require(self.rate > 0, f"rate must be positive, got {self.rate}")
        require(
            self.sigma < 2 * self.count_sigma,
            f"sigma must be below 2 * count_sigma = {2 * self.count_sigma}, got "
            f"{self.sigma}; the noisy count alone would spend more than sigma allows",
        )

    @property
    def gradient_sigma(self) -> float:
        """Returns the multiplier of the noise on the gradients."""
        if self.sigma == 0:
            return 0.0
        return float((self.sigma**-2 - (2 * self.count_sigma) ** -2) ** -0.5)

    def init(self, params: PyTree) -> State:
        """Returns the bound."""
        return jnp.asarray(self.clip, jnp.float32)

    def apply(
        self, key: Key, tree: PyTree, state: State, t: jax.Array | int
    ) -> tuple[PyTree, State]:
        """Returns the clipped and noisy tree, and the next bound."""
        del t
        count_key, noise_key = jax.random.split(key)
        leaves, structure = jax.tree.flatten(tree)
        norms = joint_norms([unit_norms(leaf) for leaf in leaves])
        factors = clip_factors(norms, state)
        clipped = [scale_units(leaf, factors) for leaf in leaves]
        noise = draw_like(noise_key, leaves, standard_normal, len(norms))
        std = self.gradient_sigma * state
        noisy = add_noise(clipped, noise, [std] * len(leaves))
        return jax.tree.unflatten(structure, noisy), self._next(count_key, norms, state)

    def noisy_mean(
        self,
        key: Key,
        leaves: Sequence[Units],
        factors: list[jax.Array],
        state: State,
        t: jax.Array | int,
    ) -> tuple[list[jax.Array], State]:
        """Returns the mean over units of the output, with one draw."""
        del t
        count_key, noise_key = jax.random.split(key)
        scaled = [unit_norms(leaf) * f for leaf, f in zip(leaves, factors, strict=True)]
        norms = joint_norms(scaled)
        clip = clip_factors(norms, state)
        means = weighted_means(leaves, [factor * clip for factor in factors])
        noise = draw_like(noise_key, leaves, standard_normal)
        std = self.gradient_sigma * state / len(norms) ** 0.5
        noisy = add_noise(means, noise, [std] * len(means))
        return noisy, self._next(count_key, norms, state)

    def _next(self, key: Key, norms: jax.Array, bound: jax.Array) -> jax.Array:
        std = self.count_sigma if self.sigma > 0 else 0.0
        count = jnp.sum(norms <= bound) + std * jax.random.normal(key)
        share = count / len(norms)
        return bound * jnp.exp(-self.rate * (share - self.quantile))

    def releases(self, point: Point, clip: object) -> tuple[Mechanism, ...]:
        """Returns the two releases: the gradients, and the count (sensitivity 1/2)."""
        del clip  # it clips by itself
        return (
            Mechanism(
                point=point,
                kind=NoiseKind.GAUSSIAN,
                multiplier=Constant(self.gradient_sigma),
                sensitivity=Constant(self.clip),
                clip=Constant(self.clip),
                per_tensor=False,
                caveats=(MOVING_BOUND,),
            ),
            Mechanism(
                point=point,
                kind=NoiseKind.GAUSSIAN,
                multiplier=Constant(2 * self.count_sigma),
                sensitivity=Constant(0.5),
                clip=Constant(0.5),
                per_tensor=False,
                on_batch_sum=True,
                coordinates="the count of units inside the bound",
            ),
        )
