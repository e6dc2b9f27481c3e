"""The white-box game: the distinguisher reads the randomized gradient itself.

Its law is exact, because everything happens in the plane of g1 and g2. An LDP-SGD
answer is a uniform direction v of R^d, turned to the side of the gradient with
probability keep = 1/2 + (|x|/L) (e^eps/(1+e^eps) - 1/2), where x is the clipped
gradient: the coins of lines 2 and 3 of Algorithm 1 (Matsumoto et al. 2022) are one
coin. What a distinguisher sees of v are its products with g1 and g2, which by symmetry
are those of two normals and one chi-square with d - 2 degrees of freedom.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from gradaudit.distinguish.bounds import empirical_epsilon, mean, spread
from gradaudit.distinguish.game import Advance, Trials, ignore, play_in_chunks
from gradaudit.errors import InputError
from gradaudit.types import Key

CHUNK = 2**18  # trials at a time: a few MB, and a fraction of a second


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PairLaw:
    """All of g1, g2, epsilon and the clip that the white-box game depends on."""

    directions: jax.Array  # (2, 2): g1 and g2 as unit vectors of a plane, 0 if g is 0
    # (2,) probability that the answer lies on the gradient's side; in double precision,
    # because the exact loss is read from 1 - keep
    keep: NDArray[np.float64]
    dimension: jax.Array  # () the number d of coordinates of a gradient


def pair_law(
    gradients: jax.Array | NDArray[np.floating], epsilon: float, clip: float
) -> PairLaw:
    """Returns the law for the pair of gradients, (2, d)."""
    pair = np.asarray(gradients, np.float64)
    norms = np.linalg.norm(pair, axis=1)
    # np.where would still divide by the zero norm.
    units = np.divide(
        pair, norms[:, None], out=np.zeros_like(pair), where=norms[:, None] > 0
    )
    cosine = float(np.clip(units[0] @ units[1], -1.0, 1.0))
    # The length of the part of g2 that is orthogonal to g1, without cancellation.
    sine = float(np.linalg.norm(units[1] - cosine * units[0]))
    first, second = bool(norms[0] > 0), bool(norms[1] > 0)
    along = [cosine, sine] if first else [float(second), 0.0]
    truthful = 1 / (1 + math.exp(-epsilon))
    return PairLaw(
        directions=jnp.array([[float(first), 0.0], along], jnp.float32),
        keep=0.5 + np.minimum(norms / clip, 1.0) * (truthful - 0.5),
        dimension=jnp.asarray(pair.shape[1]),
    )


@functools.partial(jax.jit, static_argnames="trials")
def sample_products(key: Key, law: PairLaw, trials: int) -> tuple[jax.Array, jax.Array]:
    """Returns which gradient was randomized and the answer's cosines with both.

    Shapes: (trials,) True where it was g1, and (trials, 2). Exact for every d >= 1.
    """
    choice_key, plane_key, rest_key, answer_key = jax.random.split(key, 4)
    first = jax.random.bernoulli(choice_key, shape=(trials,))
    plane = jax.random.normal(plane_key, (trials, 2))
    plane = plane * jnp.stack([jnp.ones(()), law.dimension > 1])  # R^1 has no plane
    degrees = jnp.maximum(law.dimension - 2, 1).astype(jnp.float32)
    rest = jax.random.chisquare(rest_key, degrees, shape=(trials,))
    rest = jnp.where(law.dimension > 2, rest, 0.0)
    length = jnp.sqrt(jnp.sum(plane**2, axis=1) + rest)
    products = (plane @ law.directions.T) / length[:, None]  # of v with g1 and g2
    own = jnp.where(first, products[:, 0], products[:, 1])
    keep = jnp.where(first, law.keep[0], law.keep[1])
    kept = jax.random.uniform(answer_key, (trials,)) < keep
    turn = jnp.where((own >= 0) == kept, 1.0, -1.0)
    return first, products * turn[:, None]


def cosine_rates(law: PairLaw) -> tuple[float, float]:
    """Returns the exact (FP, FN) of the cosine rule, equation 5.

    The answer is uniform on a half circle of the plane with probability `keep`, else
    on the opposite one; the rule accepts the half circle around u1 - u2.
    """
    directions = np.asarray(law.directions, np.float64)
    towards_first = directions[0] - directions[1]
    if not np.any(towards_first):
        return 0.0, 1.0  # equal directions: the rule always says g1
    accepted = []
    for direction, keep in zip(directions, np.asarray(law.keep), strict=True):
        if not np.any(direction):
            accepted.append(0.5)
            continue
        overlap = 1 - _angle(direction, towards_first) / math.pi
        accepted.append(float(keep * overlap + (1 - keep) * (1 - overlap)))
    return 1 - accepted[0], accepted[1]


def exact_epsilon(law: PairLaw) -> float:
    """Returns equation 3 of the cosine rule's exact rates."""
    return empirical_epsilon(*cosine_rates(law))


def attainable_epsilon(law: PairLaw) -> float:
    """Returns the exact privacy loss of this pair: what the best distinguisher reaches.

    The answer's density is keep / (1 - keep) times larger on the gradient's side, so
    the largest likelihood ratio is found on one of the four sides of g1 and g2 that
    directions can lie on.
    """
    first, second = (float(keep) for keep in law.keep)
    cosine = float(np.dot(law.directions[0], law.directions[1]))
    sides = []
    if cosine > -1 + 1e-6:  # some directions lie on the side of both
        sides += [(first, second), (1 - first, 1 - second)]
    if cosine < 1 - 1e-6:
        sides += [(first, 1 - second), (1 - first, second)]
    return max(abs(math.log(left / right)) for left, right in sides)


def _angle(left: NDArray[np.float64], right: NDArray[np.float64]) -> float:
    cross = left[0] * right[1] - left[1] * right[0]
    return math.atan2(abs(cross), float(left @ right))


# (n, 2), an answer's cosines with g1 and g2 -> scores, (n,); if >= 0 the guess is g1
WhiteRule = Callable[[jax.Array], jax.Array]


def by_cosine(products: jax.Array) -> jax.Array:
    """Returns cos(answer, g1) - cos(answer, g2) (equation 5)."""
    return products[..., 0] - products[..., 1]


def by_likelihood(products: jax.Array) -> jax.Array:
    """Returns what is not negative where the answer is on g1's side, not on g2's.

    The likelihood ratio is largest there: with both norms at the clip it is e^epsilon
    whatever the angle, where the cosine rule reaches epsilon for opposite gradients
    only. (Not in Matsumoto et al. 2022.)
    """
    opposed = jnp.minimum(products[..., 0], -products[..., 1])
    return jnp.where(products[..., 1] < 0, opposed, -1.0)


WHITE_RULES: dict[str, WhiteRule] = {"cosine": by_cosine, "likelihood": by_likelihood}


def play_white(key: Key, law: PairLaw, rule: WhiteRule, trials: int) -> Trials:
    """Plays with the exact two-dimensional sampler: O(1) per trial, whatever d."""

    def chunk(part_key: Key, size: int) -> tuple[jax.Array, jax.Array]:
        first, products = sample_products(part_key, law, size)
        return first, rule(products)

    (played,) = play_in_chunks(key, trials, CHUNK, chunk)
    return played


@dataclasses.dataclass(frozen=True)
class NormPoint:
    """White-box epsilon of a dummy gradient of one norm."""

    norm: float  # in units of the clip
    epsilon: float  # the theoretical one
    mean: float
    spread: float
    exact: float  # equation 3 of the exact rates


def norm_sweep(
    key: Key,
    size: int,
    epsilons: Sequence[float],
    norms: Sequence[float],
    trials: int = 10_000,
    measurements: int = 10,
    advance: Advance = ignore,
) -> tuple[NormPoint, ...]:
    """Returns a point for every norm and epsilon, for gradients of `size` numbers."""
    check_norms(norms)
    points = []
    for row, norm in enumerate(norms):
        gradient = np.full(size, norm / size**0.5)
        for column, epsilon in enumerate(epsilons):
            law = pair_law(np.stack([gradient, -gradient]), epsilon, clip=1.0)
            values = []
            for index in range(measurements):
                game_key = jax.random.fold_in(
                    key, (row * len(epsilons) + column) * measurements + index
                )
                errors = play_white(game_key, law, by_cosine, trials).errors()
                values.append(empirical_epsilon(errors.fp, errors.fn))
                advance(trials)
            exact = exact_epsilon(law)
            points.append(NormPoint(norm, epsilon, mean(values), spread(values), exact))
    return tuple(points)


def check_norms(norms: Sequence[float]) -> None:
    """Raises unless dummy gradients can have these norms."""
    for norm in norms:
        if not (math.isfinite(norm) and norm > 0):
            raise InputError(
                f"the norm of a dummy gradient must be positive and finite, got {norm}"
            )
