"""The white-box game: the distinguisher reads the randomized gradient itself."""

import dataclasses
from collections.abc import Iterator
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np

from gradaudit.defenses.local import randomize
from gradaudit.distinguish.game import Trials, pool
from gradaudit.distinguish.law import PairLaw, sample_products
from gradaudit.types import Key

CHUNK = 2**18  # trials at a time: a few MB, and a fraction of a second


FULL_CHUNK = 2**8  # the full sampler holds this many whole gradients


class WhiteRule(Protocol):
    """A decision from the answer's cosines with g1 and g2; score >= 0 guesses g1."""

    def score(self, products: jax.Array) -> jax.Array:
        """Returns one score, (n,), per row of cosines, (n, 2)."""


@dataclasses.dataclass(frozen=True)
class Cosine:
    """g1 when the answer is at least as similar to g1 (equation 5)."""

    def score(self, products: jax.Array) -> jax.Array:
        """Returns cos(answer, g1) - cos(answer, g2)."""
        return products[..., 0] - products[..., 1]


@dataclasses.dataclass(frozen=True)
class LikelihoodRatio:
    """g1 only when the answer lies on g1's side and not on g2's.

    The likelihood ratio is largest there: with both norms at the clip it is e^epsilon
    whatever the angle, where the cosine rule reaches epsilon for opposite gradients
    only. (Not in Matsumoto et al. 2022.)
    """

    def score(self, products: jax.Array) -> jax.Array:
        """Returns a number that is not negative exactly on that set."""
        opposed = jnp.minimum(products[..., 0], -products[..., 1])
        return jnp.where(products[..., 1] < 0, opposed, -1.0)


def play(key: Key, law: PairLaw, rule: WhiteRule, trials: int) -> Trials:
    """Plays with the exact two-dimensional sampler: O(1) per trial, whatever d."""
    parts = []
    for part_key, count, size in _chunks(key, trials, CHUNK):
        first, products = sample_products(part_key, law, size)
        parts.append(_trials(first, rule.score(products), count))
    return pool(parts)


def play_in_full(
    key: Key,
    gradients: jax.Array,
    epsilon: float,
    clip: float,
    rule: WhiteRule,
    trials: int,
) -> Trials:
    """Plays with the real randomizer on whole gradients, (2, d): the oracle of `play`.

    Same law, O(d) per trial.
    """
    parts = []
    for part_key, count, size in _chunks(key, trials, FULL_CHUNK):
        keys = jax.random.split(part_key, size)
        first, products = _full_products(keys, gradients, epsilon, clip)
        parts.append(_trials(first, rule.score(products), count))
    return pool(parts)


@jax.jit
def _full_products(
    keys: jax.Array, gradients: jax.Array, epsilon: float, clip: float
) -> tuple[jax.Array, jax.Array]:
    norms = jnp.linalg.norm(gradients, axis=1, keepdims=True)
    units = gradients / jnp.where(norms > 0, norms, 1.0)

    def trial(key: Key) -> tuple[jax.Array, jax.Array]:
        choice_key, answer_key = jax.random.split(key)
        first = jax.random.bernoulli(choice_key)
        gradient = jnp.where(first, gradients[0], gradients[1])
        return first, units @ randomize(answer_key, gradient, epsilon, clip)

    return jax.vmap(trial)(keys)


def _chunks(key: Key, trials: int, largest: int) -> Iterator[tuple[Key, int, int]]:
    """Yields a key, the trials that count and the size to draw: one shape, one jit."""
    size = min(trials, largest)
    for index, start in enumerate(range(0, trials, size)):
        yield jax.random.fold_in(key, index), min(size, trials - start), size


def _trials(first: jax.Array, scores: jax.Array, count: int) -> Trials:
    return Trials(np.asarray(first)[:count], np.asarray(scores)[:count])
