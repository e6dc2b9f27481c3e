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
from gradaudit.defenses.schedules import Constant
from gradaudit.defenses.transforms import Bound, State, Stateless
from gradaudit.errors import positive
from gradaudit.evidence import Evidence
from gradaudit.mechanism import Mechanism, NoiseKind, Point
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

    def apply(
        self, key: Key, tree: PyTree, state: State, t: jax.Array | int
    ) -> tuple[PyTree, State]:
        """Returns one unit vector per unit, in the structure of the tree."""
        del t
        units = jax.tree.leaves(tree)[0].shape[0]

        def answer(unit_key: Key, unit: PyTree) -> PyTree:
            leaves, structure = jax.tree.flatten(unit)
            flat = jnp.concatenate(
                [leaf.ravel().astype(jnp.float32) for leaf in leaves]
            )
            reply = randomize(unit_key, flat, self.epsilon, self.clip)
            parts = jnp.split(reply, _ends([leaf.size for leaf in leaves]))
            shaped = [
                part.reshape(leaf.shape).astype(leaf.dtype)
                for part, leaf in zip(parts, leaves, strict=True)
            ]
            return jax.tree.unflatten(structure, shaped)

        return jax.vmap(answer)(jax.random.split(key, units), tree), state

    def explain(self, evidence: Evidence, state: State, t: jax.Array | int) -> Evidence:
        """Says why no more is to be had: an answer is one noisy bit about the guess."""
        del state, t
        words = (
            "an LDP-SGD answer tells on which side of a random direction the gradient "
            "lies, one noisy bit: its direction is followed, there is no more to match"
        )
        return dataclasses.replace(evidence, opaque=words)

    def release(
        self, point: Point, bound: Bound | None
    ) -> tuple[tuple[Mechanism, ...], None]:
        """Returns the epsilon-LDP randomizer."""
        del bound  # it clips by itself
        mechanism = Mechanism(
            point=point,
            kind=NoiseKind.RANDOMIZER,
            multiplier=Constant(self.epsilon),
            sensitivity=Constant(self.clip),
            clip=Constant(self.clip),
            per_tensor=False,
        )
        return (mechanism,), None


@dataclasses.dataclass(frozen=True)
class Debias(Stateless):
    """Scales the answers so that their mean estimates the mean clipped gradient."""

    independent: ClassVar[bool] = True
    epsilon: float
    clip: float = 1.0
    as_printed: bool = False

    def apply(
        self, key: Key, tree: PyTree, state: State, t: jax.Array | int
    ) -> tuple[PyTree, State]:
        """Returns the scaled tree."""
        del key, t
        size = sum(leaf[0].size for leaf in jax.tree.leaves(tree))
        factor = debias_factor(size, self.epsilon, self.clip, self.as_printed)
        return jax.tree.map(
            lambda leaf: (leaf * factor).astype(leaf.dtype), tree
        ), state

    def explain(self, evidence: Evidence, state: State, t: jax.Array | int) -> Evidence:
        """Returns the scaled guess."""
        del state, t
        leaves = jax.tree.leaves(evidence.expected)
        size = sum(leaf[0].size for leaf in leaves)
        factor = debias_factor(size, self.epsilon, self.clip, self.as_printed)
        return evidence.scaled([factor] * len(leaves))


def _ends(sizes: list[int]) -> list[int]:
    return [sum(sizes[: index + 1]) for index in range(len(sizes) - 1)]
