"""LDP-SGD: each client randomizes its own gradient (Matsumoto et al. 2022).

The client side is their Algorithm 1: clip, project onto the sphere of radius L with a
random sign (gradient norm projection), then report a uniform direction that agrees
with the result with probability e^eps / (1 + e^eps) (random gradient sampling).
"""

import dataclasses
import math
from typing import ClassVar

import jax
import jax.numpy as jnp

from gradaudit.defenses.clipping import unit_norms
from gradaudit.defenses.noise import bounds_itself
from gradaudit.defenses.transforms import (
    Applied,
    Bound,
    Release,
    Round,
    State,
    Stateless,
)
from gradaudit.errors import positive
from gradaudit.evidence import Evidence
from gradaudit.mechanism import NoiseKind, Point
from gradaudit.tree import flatten
from gradaudit.types import Key, PyTree


def randomize(key: Key, gradient: jax.Array, epsilon: float, clip: float) -> jax.Array:
    """Returns the randomized gradient, a unit vector, of a gradient (d,).

    Guarantee: epsilon-LDP in the gradient, whatever it is. A gradient that is not
    finite gives NaN; the zero gradient gives a uniform direction.
    """
    norm_key, direction_key, answer_key = jax.random.split(key, 3)
    norm = unit_norms(gradient[None])[0]
    # 1/2 + |x| / 2L for the clipped x: the smaller the norm, the fairer the coin.
    agree = 0.5 + jnp.minimum(norm, clip) / (2 * clip)
    sign = jnp.where(jax.random.uniform(norm_key) < agree, 1.0, -1.0)
    normal = jax.random.normal(direction_key, gradient.shape)
    direction = normal / jnp.linalg.norm(normal)
    unit = gradient / jnp.where(norm > 0, norm, 1.0)
    side = jnp.where(sign * jnp.vdot(unit, direction) >= 0, 1.0, -1.0)
    truthful = jax.random.uniform(answer_key) < jax.nn.sigmoid(epsilon)
    answer = jnp.where(truthful, side, -side) * direction
    return jnp.where(jnp.isfinite(norm), answer, jnp.nan).astype(gradient.dtype)


def debias_factor(
    size: int, epsilon: float, clip: float, as_printed: bool = False
) -> float:
    """Returns what the server multiplies the mean of d-dimensional answers with.

    The mean is then unbiased for the clipped gradients. As printed (Algorithm 2, line
    4) the factor lacks a d, so that the step is d times too short.
    """
    gammas = math.lgamma((size - 1) / 2 + 1) - math.lgamma(size / 2 + 1)
    printed = clip * math.sqrt(math.pi) / 2 * math.exp(gammas)
    scale = printed / math.tanh(epsilon / 2)  # (e^eps + 1) / (e^eps - 1)
    return scale if as_printed else size * scale


@dataclasses.dataclass(frozen=True)
class LdpRandomizer(Stateless):
    """Replaces each unit's tree by the LDP-SGD answer of the flattened tree."""

    independent: ClassVar[bool] = True
    epsilon: float
    clip: float = 1.0

    def __post_init__(self) -> None:
        positive(epsilon=self.epsilon, clip=self.clip)

    def apply(self, key: Key, tree: PyTree, state: State, t: Round) -> Applied:
        """Returns one unit vector per unit, in the structure of the tree."""
        units = jax.tree.leaves(tree)[0].shape[0]

        def answer(unit_key: Key, unit: PyTree) -> PyTree:
            single = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), unit)
            flat, unflatten = flatten(single)
            reply = unflatten(randomize(unit_key, flat, self.epsilon, self.clip))
            return jax.tree.map(lambda new, leaf: new.astype(leaf.dtype), reply, unit)

        return jax.vmap(answer)(jax.random.split(key, units), tree), state

    def explain(self, evidence: Evidence, state: State, t: Round) -> Evidence:
        """Says why no more is to be had: an answer is one noisy bit about the guess."""
        words = (
            "an LDP-SGD answer tells on which side of a random direction the gradient "
            "lies, one noisy bit: its direction is followed, there is no more to match"
        )
        return dataclasses.replace(evidence, opaque=words)

    def release(self, point: Point, bound: Bound | None) -> Release:
        """Returns the epsilon-LDP randomizer."""
        return (
            bounds_itself(point, self.epsilon, self.clip, NoiseKind.RANDOMIZER),
        ), None


@dataclasses.dataclass(frozen=True)
class Debias(Stateless):
    """Scales the answers so that their mean estimates the mean clipped gradient."""

    independent: ClassVar[bool] = True
    epsilon: float
    clip: float = 1.0
    as_printed: bool = False

    def apply(self, key: Key, tree: PyTree, state: State, t: Round) -> Applied:
        """Returns the scaled tree."""
        factor = self._factor(tree)
        scaled = jax.tree.map(lambda leaf: (leaf * factor).astype(leaf.dtype), tree)
        return scaled, state

    def explain(self, evidence: Evidence, state: State, t: Round) -> Evidence:
        """Returns the scaled guess."""
        leaves = jax.tree.leaves(evidence.expected)
        return evidence.scaled([self._factor(leaves)] * len(leaves))

    def _factor(self, units: PyTree) -> float:
        size = sum(leaf[0].size for leaf in jax.tree.leaves(units))
        return debias_factor(size, self.epsilon, self.clip, self.as_printed)
