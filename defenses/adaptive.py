"""Clips that adapt: to a quantile of the norms, or to each coordinate."""

import dataclasses
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from gradaudit.defenses.clipping import (
    Scaled,
    clip_factors,
    joint_norms,
    scale_units,
    smooth_norms,
    unit_norms,
    weighted_means,
)
from gradaudit.defenses.noise import (
    add_noise,
    bounds_itself,
    draw_like,
    noisy_means,
)
from gradaudit.defenses.normal import standard_normal
from gradaudit.defenses.transforms import Applied, Bound, Release, Round, State
from gradaudit.errors import InputError, not_negative, positive, within_unit
from gradaudit.evidence import Evidence
from gradaudit.mechanism import Point
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

    ends: ClassVar[bool] = True
    factored: ClassVar[bool] = True
    clip: float  # the first bound
    sigma: float
    quantile: float = 0.5
    rate: float = 0.2
    count_sigma: float = 5.0

    def __post_init__(self) -> None:
        positive(clip=self.clip)
        not_negative(sigma=self.sigma)
        within_unit(quantile=self.quantile)
        if not self.rate > 0:
            raise InputError(f"rate must be positive, got {self.rate}")
        if not self.sigma < 2 * self.count_sigma:
            raise InputError(
                f"sigma must be below 2 * count_sigma = {2 * self.count_sigma}, got "
                f"{self.sigma}; the noisy count alone would spend more than sigma "
                "allows"
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

    def apply(self, key: Key, tree: PyTree, state: State, t: Round) -> Applied:
        """Returns the clipped and noisy tree, and the next bound."""
        count_key, noise_key = jax.random.split(key)
        leaves, structure = jax.tree.flatten(tree)
        norms = joint_norms([unit_norms(leaf) for leaf in leaves])
        factors = clip_factors(norms, state)
        clipped = [scale_units(leaf, factors) for leaf in leaves]
        noise = draw_like(noise_key, leaves, standard_normal, len(norms))
        std = self.gradient_sigma * state
        noisy = add_noise(clipped, noise, [std] * len(leaves))
        return jax.tree.unflatten(structure, noisy), self._next(count_key, norms, state)

    def in_one_pass(
        self, key: Key, units: Scaled, state: State, t: Round
    ) -> tuple[list[jax.Array], State]:
        """Returns the mean over units of the output, with one draw."""
        count_key, noise_key = jax.random.split(key)
        norms = joint_norms(units.norms())
        clip = clip_factors(norms, state)
        clipped = units.times([clip] * len(units.leaves))
        std = self.gradient_sigma * state / len(norms) ** 0.5
        noisy = noisy_means(noise_key, clipped, std)
        return noisy, self._next(count_key, norms, state)

    def _next(self, key: Key, norms: jax.Array, bound: jax.Array) -> jax.Array:
        std = self.count_sigma if self.sigma > 0 else 0.0
        count = jnp.sum(norms <= bound) + std * jax.random.normal(key)
        share = count / len(norms)
        return bound * jnp.exp(-self.rate * (share - self.quantile))

    def explain(self, evidence: Evidence, state: State, t: Round) -> Evidence:
        """Returns the guess clipped to the tracked bound, and the noise tied to it."""
        leaves = jax.tree.leaves(evidence.expected)
        norms = joint_norms([smooth_norms(leaf) for leaf in leaves])
        clipped = evidence.scaled([clip_factors(norms, state)] * len(leaves))
        variance = jnp.square(self.gradient_sigma * state)
        return clipped.noisier([variance] * len(leaves))

    def release(self, point: Point, bound: Bound | None) -> Release:
        """Returns the two releases: the gradients, and the count (sensitivity 1/2)."""
        gradients = bounds_itself(
            point, self.gradient_sigma, self.clip, caveats=(MOVING_BOUND,)
        )
        count = bounds_itself(
            point,
            2 * self.count_sigma,
            0.5,
            on_batch_sum=True,
            coordinates="the count of units inside the bound",
        )
        return (gradients, count), None


LEARNED_SCALE = (
    "Bound and noise hold for the shifted and scaled gradient; shift and scale are "
    "learned from earlier noisy releases."
)


class Moments(NamedTuple):
    """The state of AdaClip: mean and variance of every coordinate."""

    mean: list[jax.Array]
    variance: list[jax.Array]


@dataclasses.dataclass(frozen=True)
class AdaClip:
    """Coordinate-wise adaptive clipping (Pichapati et al. 2019, Algorithm 2).

    With m and s the running mean and standard deviation of each coordinate and
    b_i = sqrt(s_i * sum(s)), the unit (g - m) / b is clipped to norm 1, gets noise of
    std sigma, and is mapped back, so that coordinates that vary little get little
    noise. The first s is even and such that the first bound on |g| is `clip`.
    The variance is read from the clipped mean, as published, so that with little noise
    s shrinks towards its floor over many rounds.
    Not what Opacus calls AdaClip: that is `QuantileClip`.
    """

    ends: ClassVar[bool] = True
    factored: ClassVar[bool] = False  # it shifts every coordinate
    clip: float
    sigma: float
    mean_decay: float = 0.99  # beta_1
    variance_decay: float = 0.9  # beta_2
    smallest_variance: float = 1e-12  # h_1
    largest_variance: float = 10.0  # h_2

    def __post_init__(self) -> None:
        positive(clip=self.clip)
        not_negative(sigma=self.sigma)
        for name in ("mean_decay", "variance_decay"):
            value = getattr(self, name)
            if not 0 <= value < 1:
                raise InputError(f"{name} must lie in [0, 1), got {value}")
        if not 0 < self.smallest_variance < self.largest_variance:
            raise InputError(
                "smallest_variance must lie in (0, largest_variance="
                f"{self.largest_variance}), got {self.smallest_variance}"
            )

    def init(self, params: PyTree) -> State:
        """Returns mean zero and an even variance."""
        leaves = jax.tree.leaves(params)
        size = sum(jnp.size(leaf) for leaf in leaves)
        shapes = [jnp.shape(leaf) for leaf in leaves]
        return Moments(
            [jnp.zeros(shape, jnp.float32) for shape in shapes],
            [jnp.full(shape, self.clip**2 / size, jnp.float32) for shape in shapes],
        )

    def apply(self, key: Key, tree: PyTree, state: State, t: Round) -> Applied:
        """Returns the noisy tree and the next moments."""
        leaves, structure = jax.tree.flatten(tree)
        units = leaves[0].shape[0]
        scales = _scales(state)
        clipped = _shifted(leaves, state, _factors(leaves, state, scales, unit_norms))
        noise = draw_like(key, leaves, standard_normal, units)
        noisy = add_noise(clipped, noise, [self.sigma * scale for scale in scales])
        means = [jnp.mean(leaf, axis=0) for leaf in noisy]
        following = self._next(means, state, scales, units)
        return jax.tree.unflatten(structure, noisy), following

    def in_one_pass(
        self, key: Key, units: Scaled, state: State, t: Round
    ) -> tuple[list[jax.Array], State]:
        """Returns the mean over units of the output, with one draw."""
        leaves = units.made()
        count = leaves[0].shape[0]
        scales = _scales(state)
        clip = _factors(leaves, state, scales, unit_norms)
        means = jax.tree.map(
            lambda mean, kept: mean + kept - jnp.mean(clip) * mean,
            state.mean,
            weighted_means(leaves, [clip] * len(leaves)),
        )
        noise = draw_like(key, leaves, standard_normal)
        stds = [self.sigma * scale / count**0.5 for scale in scales]
        noisy = jax.tree.map(
            lambda mean, leaf: mean.astype(leaf.dtype),
            add_noise(means, noise, stds),
            leaves,
        )
        return noisy, self._next(noisy, state, scales, count)

    def _next(
        self,
        released: list[jax.Array],
        state: Moments,
        scales: list[jax.Array],
        units: int,
    ) -> Moments:
        keep, blend = self.variance_decay, self.mean_decay
        least, most = self.smallest_variance, self.largest_variance

        def mean(old: jax.Array, value: jax.Array) -> jax.Array:
            return blend * old + (1 - blend) * value.astype(jnp.float32)

        def variance(
            old: jax.Array, value: jax.Array, mean: jax.Array, scale: jax.Array
        ) -> jax.Array:
            noise = jnp.square(self.sigma * scale) / units
            seen = jnp.clip(jnp.square(value - mean) - noise, least, most)
            return keep * old + (1 - keep) * seen

        return Moments(
            jax.tree.map(mean, state.mean, released),
            jax.tree.map(variance, state.variance, released, state.mean, scales),
        )

    def explain(self, evidence: Evidence, state: State, t: Round) -> Evidence:
        """Returns the guess clipped on the learned scales, and their noise."""
        leaves, structure = jax.tree.flatten(evidence.expected)
        scales = _scales(state)
        clipped = _shifted(leaves, state, _factors(leaves, state, scales, smooth_norms))
        told = dataclasses.replace(
            evidence, expected=jax.tree.unflatten(structure, clipped)
        )
        return told.noisier([jnp.square(self.sigma * scale) for scale in scales])

    def release(self, point: Point, bound: Bound | None) -> Release:
        """Returns the Gaussian release of the scaled gradient, whose bound is 1."""
        mechanism = bounds_itself(
            point,
            self.sigma,
            1.0,
            coordinates="all, each on its own learned scale",
            caveats=(LEARNED_SCALE,),
        )
        return (mechanism,), None


def _scales(state: Moments) -> list[jax.Array]:
    """Returns b, the scale of each coordinate."""
    deviations = [jnp.sqrt(variance) for variance in state.variance]
    total = sum(jnp.sum(deviation) for deviation in deviations)
    return [jnp.sqrt(deviation * total) for deviation in deviations]


def _factors(
    leaves: list[jax.Array],
    state: Moments,
    scales: list[jax.Array],
    norms: Callable[[jax.Array], jax.Array],
) -> jax.Array:
    """Returns what clips each unit on its scales to norm 1, (units,)."""
    scaled = jax.tree.map(
        lambda leaf, mean, scale: norms((leaf - mean) / scale),
        leaves,
        state.mean,
        scales,
    )
    return clip_factors(joint_norms(scaled), 1.0)


def _shifted(
    leaves: list[jax.Array], state: Moments, factors: jax.Array
) -> list[jax.Array]:
    """Returns the units with their distance from the mean times their factors."""
    shifted: list[jax.Array] = jax.tree.map(
        lambda leaf, mean: (mean + scale_units(leaf - mean, factors)).astype(
            leaf.dtype
        ),
        leaves,
        state.mean,
    )
    return shifted
