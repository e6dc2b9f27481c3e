"""How likely what was read is, given evidence about a guess: for aware adversaries.

Gaussian noise gives weighted squares and Laplace noise weighted magnitudes; what was
left out is no evidence, or bounded; signs are matched as signs. Everything is in units
of what leaked, so that the size of a gradient does not matter.
"""

import jax
import jax.numpy as jnp

from gradaudit import tree
from gradaudit.errors import InputError
from gradaudit.evidence import Evidence
from gradaudit.types import PyTree

TINY = 1e-20
# A share of what leaked that is rounding. In float32 the truth itself leaves 1e-13 to
# 1e-10 unexplained: an update is a small difference of large parameters.
ROUNDING = 1e-11
_EXACT = 1e-6  # variance, in units of a mean square coordinate, that counts as none
_STEEP = 4.0  # of the penalty on coordinates whose sign is wrong
_SMALL = 1e-4  # of a mean magnitude: below it an absolute value counts as a square
_held = jax.lax.stop_gradient


def unlikelihood(
    evidence: Evidence, target: PyTree, layers: tuple[str, ...] = ()
) -> jax.Array:
    """Returns -log p(target | evidence), divided so that an empty guess has about 1.

    Gaussian noise gives weighted squares and Laplace noise weighted magnitudes, each
    tensor weighted by its own noise. Coordinates that were left out are no evidence,
    or bounded by the smallest that was sent. Signs are matched as signs.
    """
    rows = _evidence_rows(evidence, target, layers)
    if evidence.signs:
        return jnp.mean(jnp.stack([_wrong_signs(e, o) for e, o, _ in rows]))
    total, whole = jnp.zeros(()), jnp.zeros(())
    for residual, read, weight in _weighed(evidence, rows):
        if evidence.peaked:
            root = jnp.sqrt(weight)
            total += jnp.sum(root * jnp.abs(residual))
            whole += jnp.sum(root * jnp.abs(read))
        else:
            total += jnp.sum(weight * jnp.square(residual))
            whole += jnp.sum(weight * jnp.square(read))
    return total / (whole + TINY)


def nat(
    evidence: Evidence | None, target: PyTree, layers: tuple[str, ...] = ()
) -> jax.Array:
    """Returns how much `unlikelihood` is worth one nat of log likelihood.

    Of exact evidence as if what was read had been rounded.
    """
    rounded = ROUNDING / truth_in_nats(evidence, target, layers)
    if evidence is None:
        return rounded
    if evidence.signs:  # as many coins as coordinates
        return 0.5 / truth_in_nats(evidence, target, layers)
    terms = _weighed(evidence, _evidence_rows(evidence, target, layers))
    if evidence.peaked:  # the deviation is the root of 2 times Laplace's scale
        whole = [jnp.sum(jnp.sqrt(2.0 * w) * jnp.abs(read)) for _, read, w in terms]
    else:
        whole = [0.5 * jnp.sum(w * jnp.square(read)) for _, read, w in terms]
    noisy = noise_share(evidence, target, layers) > 0
    told = 1.0 / (jnp.sum(jnp.stack(whole)) + TINY)
    return _held(jnp.where(noisy, told, rounded))


def truth_in_nats(
    evidence: Evidence | None, target: PyTree, layers: tuple[str, ...] = ()
) -> jax.Array:
    """Returns how many nats noise of any size is expected to cost the truth.

    A half for each coordinate that was sent, or one if the noise is Laplace.
    """
    rows = [read for (read,) in chosen(layers, target)]
    if evidence is None or not evidence.sparse:
        sent = jnp.asarray(float(sum(read.size for read in rows)))
    else:
        sent = jnp.sum(jnp.stack([jnp.sum(read != 0) for read in rows])) + 1.0
    return sent * (1.0 if evidence is not None and evidence.peaked else 0.5)


def noise_share(
    evidence: Evidence, target: PyTree, layers: tuple[str, ...] = ()
) -> jax.Array:
    """Returns the `unlikelihood` that is expected of the truth; 0 without noise."""
    rows = _evidence_rows(evidence, target, layers)
    terms = _weighed(evidence, rows)
    share = [
        jnp.sum(jnp.broadcast_to(variance * weight, read.shape))
        for (_, read, weight), (_, _, variance) in zip(terms, rows, strict=True)
    ]
    whole = [jnp.sum(weight * jnp.square(read)) for _, read, weight in terms]
    return jnp.sum(jnp.stack(share)) / (jnp.sum(jnp.stack(whole)) + TINY)


def unexplained(
    evidence: Evidence, target: PyTree, layers: tuple[str, ...] = ()
) -> list[jax.Array]:
    """Returns arrays whose squares add up to `unlikelihood`.

    Magnitudes become squares over the magnitude at the point itself, which counts as
    constant: the reweighting of Gauss-Newton for what is not squared.
    """
    rows = _evidence_rows(evidence, target, layers)
    if evidence.signs:
        parts = [_wrong_sign_parts(e, o) for e, o, _ in rows]
        return times(
            jnp.sqrt(jnp.asarray(1.0 / len(rows))),
            [part for smooth, size in parts for part in (jnp.sqrt(smooth), size)],
        )
    terms = _weighed(evidence, rows)
    if not evidence.peaked:
        whole = sum(jnp.sum(weight * jnp.square(read)) for _, read, weight in terms)
        return times(
            1.0 / jnp.sqrt(whole + TINY),
            [jnp.sqrt(weight) * residual for residual, _, weight in terms],
        )
    whole = sum(jnp.sum(jnp.sqrt(weight) * jnp.abs(read)) for _, read, weight in terms)
    squares = []
    for residual, read, weight in terms:
        size = _held(jnp.abs(residual) + _SMALL * jnp.mean(jnp.abs(read)))
        squares.append(jnp.sqrt(jnp.sqrt(weight) / size) * residual)
    return times(1.0 / jnp.sqrt(whole + TINY), squares)


def _weighed(
    evidence: Evidence, rows: list[tuple[jax.Array, jax.Array, jax.Array]]
) -> list[tuple[jax.Array, jax.Array, jax.Array]]:
    """Returns (residual, what was read, 1 / variance) of each tensor."""
    squares = jnp.sum(jnp.stack([jnp.sum(jnp.square(o)) for _, o, _ in rows]))
    floor = _EXACT * squares / sum(o.size for _, o, _ in rows) + TINY
    limit = _smallest_sent([o for _, o, _ in rows]) if evidence.thresholded else None
    terms = []
    for expected, read, variance in rows:
        residual = read - expected
        if evidence.sparse:
            beyond = jnp.zeros(())
            if limit is not None:
                beyond = jnp.maximum(jnp.abs(expected) - limit, 0.0)
            residual = jnp.where(jnp.abs(read) > 0, residual, beyond)
        terms.append((residual, read, 1.0 / (variance + floor)))
    return terms


def seen(evidence: Evidence, target: PyTree) -> tuple[PyTree, PyTree]:
    """Returns (expected, read) without the coordinates that were left out."""
    expected = jax.tree.map(lambda leaf: leaf[0], evidence.expected)
    if not evidence.sparse:
        return expected, target
    kept = jax.tree.map(lambda e, o: jnp.where(o != 0, e, 0.0), expected, target)
    return kept, target


def _evidence_rows(
    evidence: Evidence, target: PyTree, layers: tuple[str, ...]
) -> list[tuple[jax.Array, jax.Array, jax.Array]]:
    """Returns (expected, read, variance) of each tensor that counts."""
    expected = jax.tree.map(lambda leaf: leaf[0], evidence.expected)
    return [
        (e, o, v[0] if v.ndim > e.ndim else v)
        for e, o, v in chosen(layers, expected, target, evidence.spread())
    ]


def _smallest_sent(read: list[jax.Array]) -> jax.Array:
    sizes = [jnp.min(jnp.where(o != 0, jnp.abs(o), jnp.inf)) for o in read]
    return jnp.min(jnp.stack(sizes))


def _wrong_signs(expected: jax.Array, read: jax.Array) -> jax.Array:
    """Returns a smooth share of wrong signs, and how far the mean magnitude is off."""
    smooth, size = _wrong_sign_parts(expected, read)
    return jnp.sum(smooth) + jnp.square(size)


def _wrong_sign_parts(
    expected: jax.Array, read: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Returns each coordinate's part of it, and the root of the magnitude's."""
    size = jnp.mean(jnp.abs(expected)) + TINY
    agreement = jnp.sign(read) * expected / size
    told = jnp.mean(jnp.abs(read)) + TINY
    smooth = jax.nn.softplus(-_STEEP * agreement) / (_STEEP * read.size)
    return smooth, jnp.log(size / told) / jnp.sqrt(10.0)


def times(factor: jax.Array, rows: list[jax.Array]) -> list[jax.Array]:
    """Returns each array times a factor."""
    return [factor * row for row in rows]


def chosen(layers: tuple[str, ...], *trees: PyTree) -> list[tuple[jax.Array, ...]]:
    """Returns the tensors of each tree whose path starts with one of these names."""
    paths = tree.names(trees[0])
    rows = zip(paths, *map(jax.tree.leaves, trees), strict=True)
    counted = [row for path, *row in rows if not layers or path.startswith(layers)]
    if not counted:
        raise InputError(
            f"no tensor starts with {' or '.join(layers)}; the model has "
            f"{', '.join(paths)}"
        )
    return list(map(tuple, counted))
