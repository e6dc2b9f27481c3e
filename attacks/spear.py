"""Exact inversion of whole batches through a dense ReLU layer (SPEAR).

For z = W x + b the batch's gradient of [W; b] is A^T D with A = [x, 1] (examples,
features + 1) and D = dL/dz (examples, units): a matrix of rank B. A singular value
decomposition gives A^T = L Q and D = Q^-1 R with an unknown invertible Q (B, B). Where
a ReLU is off, D is exactly zero: the rows of Q^-1 are the few directions q for which
q R has many zeros (Dimitrov et al. 2024). The last column of A is 1, which gives every
row its scale: where all B directions are found, the batch is found exactly.

The paper finds directions by drawing B - 1 columns at random and hoping that one
example is off in all of them, which takes about 2^B draws. Here most come from a search
(reweighted least squares for a concave penalty of q R), which needs tens of starts
where the layer is wide; draws are left for narrow layers.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from gradaudit.attacks.base import ClosedForm, handed_in
from gradaudit.errors import at_least
from gradaudit.models.gradients import one_hot, per_example_gradients
from gradaudit.models.model import Model
from gradaudit.types import Key, Observation, PyTree, Reconstruction, Status

Matrix = NDArray[np.float64]

_FLOOR = 10.0  # singular values above so many times the noise are signal
_LIVE = 1e-4  # of the largest column's norm: units that saw nothing say nothing
_ZERO = 1e-4  # |q r| of a unit column that counts as zero, without noise
_SAME = 1e-3  # 1 - |cosine| of two directions that are one
_MORE = 3  # zeros beyond the B - 1 that any direction can have: it is no accident
_APART = 1e-3  # of a unit direction, outside of those that were chosen before
_AGREES = 0.95  # share of units whose rebuilt sign explains the zero, or its absence
_EDGE = 1e-4  # of an activation: rounding may turn its sign
_EXPLAINED = 1e-4  # of the gradient may be left: rounding of an update leaves 1e-6
_TRUSTED = 0.7  # of the most zeros: a mixture of two rows has about half of theirs
_STARTS, _STEPS = 64, 40  # of one round of the search
_POWER = 0.5  # of the penalty
_DRAWS = 4096  # of columns, in one round
_DRAWN = 14  # the largest batch for which draws are tried
_KEPT = 64  # directions of a round that are looked at, those with most zeros
_POLISH = 50  # alternating least squares at the end


@dataclasses.dataclass(frozen=True)
class Spear(ClosedForm):
    """SPEAR: whole batches, exactly, from a dense first layer with bias and ReLU."""

    rounds: int = 60  # of the search for directions

    def __post_init__(self) -> None:
        at_least(1, rounds=self.rounds)

    def unfit(self, model: Model, observation: Observation) -> str:
        """Returns in words why there is nothing to invert, if so."""
        layer, training = model.input_layer, observation.training
        if layer is None:
            return (
                "SPEAR inverts a dense layer that reads the input, and model "
                f"{model.name!r} has none: choose --method strongest, or --model mlp"
            )
        if "bias" not in observation.params[layer]:
            return f"SPEAR needs the bias of layer {layer!r}, and there is none"
        if training.local_steps > 1:
            return (
                "SPEAR factors one gradient; an update of "
                f"{training.local_steps} local steps is a sum of several: choose "
                "--method strongest"
            )
        units = observation.params[layer]["kernel"].shape[1]
        if units <= training.examples:
            return (
                f"SPEAR needs more units in layer {layer!r} than examples in the "
                f"batch, and it has {units} for {training.examples}"
            )
        return ""

    def solve(self, key: Key, model: Model, observation: Observation) -> Reconstruction:
        """Returns the batch, exactly, or nothing."""
        assert model.input_layer is not None
        factors = _factors(model, observation)
        if not len(factors[1]):  # nothing of it rises above the noise
            return _answer(model, observation, None, 0)
        seed = np.asarray(jax.random.key_data(key)).ravel()
        search = _Search(np.random.default_rng(seed), *factors)
        weights = observation.params[model.input_layer]
        solution, rounds = search.run(self.rounds, weights)
        return _answer(model, observation, solution, rounds)


@dataclasses.dataclass(frozen=True)
class _Solution:
    """Rebuilt examples, and how much of the gradient they leave unexplained.

    That is a share where the ReLUs of the inputs explain the zeros that were found,
    and above 1 where they don't.
    """

    inputs: Matrix  # (rank, features)
    slopes: Matrix  # (rank, units) dL/dz
    unexplained: float


def _factors(model: Model, observation: Observation) -> tuple[Matrix, Matrix, float]:
    """Returns L (features + 1, rank), R (rank, units) and the noise relative to them.

    Examples that left nothing in the gradient are not among the rank.
    """
    layer = observation.gradient[model.input_layer]
    stacked = np.concatenate([layer["kernel"], layer["bias"][None]]).astype(np.float64)
    left, sizes, right = np.linalg.svd(stacked, full_matrices=False)
    examples = observation.training.examples
    # The gradient of so many examples has no higher rank: what is beyond it is noise.
    noise = max(sizes[examples], np.finfo(np.float32).eps * 1e-2 * sizes[0])
    rank = int(np.sum(sizes[:examples] > _FLOOR * noise))
    weakest = sizes[max(rank, 1) - 1]
    return left[:, :rank] * sizes[:rank], right[:rank], float(noise / weakest)


class _Search:
    """Looks for the directions q in which q R is sparse."""

    def __init__(
        self, rng: np.random.Generator, left: Matrix, right: Matrix, noise: float
    ) -> None:
        norms = np.linalg.norm(right, axis=0)
        live = norms > _LIVE * norms.max()
        self._rng, self._left, self._right = rng, left, right
        self._columns = right[:, live] / norms[live]
        # A column that is small beside the others has more noise than they.
        rough = np.median(norms[live]) / norms[live]
        self._zero = np.clip(_FLOOR * noise * np.maximum(rough, 1.0), _ZERO, 0.05)
        self._live = live
        # One example has one direction, zeros or not.
        self._pool = np.ones((1, 1)) if len(right) == 1 else np.zeros((0, len(right)))
        self._zeros = np.zeros(len(self._pool), int)
        self._seen: set[bytes] = set()

    @property
    def rank(self) -> int:
        """The number of examples that can be told apart."""
        return len(self._columns)

    def run(self, rounds: int, weights: PyTree) -> tuple[_Solution | None, int]:
        """Returns the best solution and the rounds that it took."""
        best: _Solution | None = None
        for number in range(1, rounds + 1):
            if self.rank > 1:
                self._keep(self._descend(self._chosen(trusted=True)))
            if 1 < self.rank <= _DRAWN:
                self._keep(self._draw())
            chosen = self._chosen()
            if len(chosen) == self.rank:
                found = self._solve(chosen, weights)
                if best is None or found.unexplained < best.unexplained:
                    best = found
                if best.unexplained <= _EXPLAINED:
                    return best, number
        return best, rounds

    def _descend(self, chosen: Matrix) -> Matrix:
        """Reweighted least squares from random starts, away from what is known."""
        rng, columns = self._rng, self._columns
        starts = rng.standard_normal((_STARTS, self.rank))
        if len(chosen):
            basis = np.linalg.qr(chosen.T)[0]
            share = rng.uniform(0.5, 1.0, (_STARTS, 1))
            starts = starts - share * (starts @ basis @ basis.T)
        found = _unit(starts)
        for width in np.geomspace(0.1, 1e-4, _STEPS):
            penalty = np.square(found @ columns) + width**2
            weights = penalty ** (_POWER / 2 - 1)
            moments = (columns * weights[:, None]) @ columns.T
            found = np.linalg.eigh(moments)[1][:, :, 0]
        return found

    def _draw(self) -> Matrix:
        """The directions that vanish on random columns, as in the paper."""
        rng, count = self._rng, self.rank - 1
        shuffled = rng.random((_DRAWS, self._columns.shape[1]))
        drawn = np.argpartition(shuffled, count, axis=1)[:, :count]
        vanishing = np.moveaxis(self._columns[:, drawn], 0, -1)
        gauge = rng.standard_normal((_DRAWS, 1, self.rank))
        system = np.concatenate([vanishing, gauge], axis=1)
        sides = np.zeros((_DRAWS, self.rank, 1))
        sides[:, -1] = 1.0
        system = system + 1e-12 * np.eye(self.rank)  # no exactly singular one
        return _unit(np.linalg.solve(system, sides)[..., 0])

    def _keep(self, found: Matrix) -> None:
        """Adds directions with more zeros than chance gives, refined, once each."""
        zero = np.abs(found @ self._columns) < self._zero
        counts = zero.sum(axis=1)
        least = self.rank - 1 + _MORE
        for row in np.argsort(-counts, kind="stable")[:_KEPT]:
            pattern = zero[row].tobytes()
            if counts[row] < least or pattern in self._seen:
                continue
            self._seen.add(pattern)
            direction, count = self._refined(zero[row])
            known = np.abs(self._pool @ direction) > 1 - _SAME
            if count >= least and not known.any():
                self._pool = np.vstack([self._pool, direction])
                self._zeros = np.append(self._zeros, count)

    def _refined(self, zero: NDArray[np.bool_]) -> tuple[Matrix, int]:
        """Returns the direction that fits all of its zeros best, and their number."""
        direction = np.zeros(self.rank)
        for _ in range(2):
            own = self._columns[:, zero]
            direction = np.linalg.eigh(own @ own.T)[1][:, 0]
            zero = np.abs(direction @ self._columns) < self._zero
        return direction, int(zero.sum())

    def _chosen(self, trusted: bool = False) -> Matrix:
        """Returns directions that are independent, those with most zeros first.

        A mixture of two rows is zero only where both are: it comes after them, and
        adds nothing to them. `trusted` leaves out what may be one of unknown rows.
        """
        chosen: list[Matrix] = []
        basis = np.zeros((0, self.rank))
        least = _TRUSTED * self._zeros.max(initial=0) * trusted
        for index in np.argsort(-self._zeros, kind="stable"):
            if self._zeros[index] < least:
                break
            direction = self._pool[index]
            rest = direction - basis.T @ (basis @ direction)
            size = np.linalg.norm(rest)
            if size > _APART and len(chosen) < self.rank:
                chosen.append(direction)
                basis = np.vstack([basis, rest / size])
        return np.asarray(chosen).reshape(-1, self.rank)

    def _solve(self, chosen: Matrix, weights: PyTree) -> _Solution:
        """Returns the examples behind these directions."""
        kernel, bias = (np.asarray(weights[k], np.float64) for k in ("kernel", "bias"))
        rows = self._left @ np.linalg.inv(chosen)  # (features + 1, rank)
        scale = np.where(np.abs(rows[-1]) > 0, rows[-1], np.nan)
        inputs, slopes = (rows[:-1] / scale).T, scale[:, None] * (chosen @ self._right)
        if not np.isfinite(inputs).all():
            return _Solution(inputs, slopes, 0.0)
        off = np.ones(slopes.shape, bool)
        off[:, self._live] = np.abs(chosen @ self._columns) < self._zero
        on = inputs @ kernel + bias > 0
        agreement = np.mean((on != off)[:, self._live], axis=1).min()
        if agreement < _AGREES:
            return _Solution(inputs, slopes, 1.0 + float(1.0 - agreement))
        whole = self._left @ self._right
        inputs = _polished(whole, inputs, on | ~off)  # zero is what both say is zero
        slopes = _slopes(whole, inputs, inputs @ kernel + bias > -_EDGE)
        rest = whole - _with_ones(inputs).T @ slopes
        left = np.linalg.norm(rest) / np.linalg.norm(whole)
        return _Solution(inputs, slopes, float(left))


def _polished(gradient: Matrix, inputs: Matrix, on: NDArray[np.bool_]) -> Matrix:
    """Fits the inputs to the whole gradient: it averages the rounding out.

    Alternating least squares; a slope stays zero where its unit is off.
    """
    for _ in range(_POLISH):
        slopes = _slopes(gradient, inputs, on)
        rows = np.linalg.lstsq(slopes.T, gradient.T, rcond=None)[0]
        inputs = rows[:, :-1] / rows[:, -1:]
    return inputs


def _slopes(gradient: Matrix, inputs: Matrix, on: NDArray[np.bool_]) -> Matrix:
    """Returns dL/dz (rank, units) of these inputs, zero where units are off."""
    rows = _with_ones(inputs)
    masks = on.T[:, :, None] & on.T[:, None, :]  # of every unit's own equations
    others = np.eye(len(rows)) * ~on.T[:, None, :]
    systems = np.where(masks, rows @ rows.T, 0.0) + others
    sides = (rows @ gradient * on).T[..., None]
    found: Matrix = np.linalg.solve(systems, sides)[..., 0].T.astype(np.float64)
    return found


def _with_ones(inputs: Matrix) -> Matrix:
    return np.hstack([inputs, np.ones((len(inputs), 1))])


def _unit(rows: Matrix) -> Matrix:
    unit: Matrix = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return unit


def _answer(
    model: Model, observation: Observation, solution: _Solution | None, rounds: int
) -> Reconstruction:
    examples = observation.training.examples
    inputs = np.full((examples, *model.input_shape), 0.5, np.float32)
    labels = np.zeros(examples, np.int32)
    objective, status = np.inf, Status.BUDGET
    if solution is not None and np.isfinite(solution.inputs).all():
        rank = len(solution.inputs)
        inputs[:rank] = solution.inputs.reshape(rank, *model.input_shape)
        labels[:rank] = _labels(model, observation, inputs[:rank], solution.slopes)
        objective = solution.unexplained
        if solution.unexplained <= _EXPLAINED:
            status = Status.CONVERGED
    evaluations = rounds * _STARTS * _STEPS
    return handed_in(inputs, labels, objective, status, evaluations)


def _labels(
    model: Model, observation: Observation, inputs: Any, slopes: Matrix
) -> NDArray[np.int32]:
    """Returns for each example the class whose dL/dz points most like the found one."""
    expected = np.asarray(
        _slopes_by_class(
            model, observation.params, observation.buffers, jnp.asarray(inputs)
        ),
        np.float64,
    )
    sizes = np.linalg.norm(expected, axis=2) * np.linalg.norm(slopes, axis=1)[:, None]
    cosine = np.einsum("icu,iu->ic", expected, slopes) / np.maximum(sizes, 1e-300)
    labels: NDArray[np.int32] = np.argmax(cosine, axis=1).astype(np.int32)
    return labels


@functools.partial(jax.jit, static_argnums=0)
def _slopes_by_class(
    model: Model, params: PyTree, buffers: PyTree, inputs: jax.Array
) -> jax.Array:
    """Returns dL/dz of every example under every label, (examples, classes, units)."""
    classes = jnp.arange(model.classes)

    def under(label: jax.Array) -> jax.Array:
        targets = one_hot(jnp.full(len(inputs), label), model.classes)
        gradients = per_example_gradients(model, params, buffers, inputs, targets)
        slopes: jax.Array = gradients[model.input_layer]["bias"]
        return slopes

    return jnp.moveaxis(jax.vmap(under)(classes), 0, 1)
