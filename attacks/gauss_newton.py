"""Damped Gauss-Newton (Levenberg-Marquardt): for what L-BFGS can't resolve.

Matching is a nonlinear least-squares problem with far more equations than unknowns:
its objective is |r(x)|^2, with r the residuals. Where some directions of x matter a
million times less than others (a saturated example of a batch, a dark corner) a
quasi-Newton memory of a hundred pairs never sees them; the step

    min over d of |r + J d|^2 + damping |D d|^2

does. Few unknowns: J is written out and solved by QR. Many: J is never formed, and
conjugate gradients on the least-squares problem (CGLS, Bjorck 1996, section 7.4) take
one product with J and one with its transpose a step, on x scaled by D. D^2 is the
diagonal of J^T J, estimated from a few products with random signs (Bekas et al. 2007).
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from gradaudit import machine
from gradaudit.attacks.objective import Objective
from gradaudit.attacks.optimizers import Progress, Project, Standing
from gradaudit.errors import InputError, at_least

_GROWS, _SHRINKS = 4.0, 0.25  # of the damping, after a failure and a success
_GOOD = 0.25  # share of the promised fall that counts as a success
_DAMPING = (1e-9, 1e9)
_SLIGHT = 1e-12  # of the largest of D^2: what has no influence at all stays put
_TINY = 1e-30
_NUDGE = 1e-3  # how far a coordinate is moved to see whether a border holds it


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Damping:
    """What the next step needs."""

    damping: jax.Array  # ()
    scales: jax.Array  # (n,) the diagonal of J^T J, as the last steps estimated it
    steps: jax.Array  # () that it was estimated in


Linear = Callable[[jax.Array], jax.Array]


class Linearised(NamedTuple):
    """The residual at a point, and products with J and with its transpose."""

    residual: jax.Array
    forward: Linear
    backward: Linear


# The step, what is left of the residual, the direction, its size, and the products.
_Cgls = tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]
# Where it leads, what is free to move, products for the next time, those that it took.
_Cut = tuple[jax.Array, jax.Array, jax.Array, jax.Array]


@dataclasses.dataclass(frozen=True)
class GaussNewton:
    """Levenberg-Marquardt; one attack iteration is one step, taken if it helps.

    A step is counted as one evaluation per product with J and its transpose, and one
    for its own value.
    """

    products: int = 60  # with J and its transpose, at most, in a step
    probes: int = 8  # for the scales of the unknowns, in each step
    window: int = 8  # steps whose probes are averaged
    again: int = 2  # times that a step is mended where a border cut it off
    explicit: int = 128  # unknowns up to which J is written out
    damping: float = 1e-2  # at first
    tolerance: float = 1e-3  # of the step's own equations

    def __post_init__(self) -> None:
        at_least(1, products=self.products, probes=self.probes, window=self.window)
        if not self.damping > 0:
            raise InputError(f"damping must be positive, got {self.damping}")

    @property
    def updates(self) -> int:
        """About how many evaluations an attack iteration costs."""
        return self.products + self.probes + 1

    def init(self, position: jax.Array) -> Damping:
        """Returns the first damping."""
        return Damping(
            jnp.asarray(self.damping, position.dtype),
            jnp.zeros_like(position),
            jnp.zeros((), jnp.int32),
        )

    def iterate(self, evaluate: Objective, project: Project, at: Standing) -> Progress:
        """Runs one step; a step that does not help raises the damping instead."""
        position, memory = at.position, at.memory
        here = _linear(evaluate.residuals, position)
        value = jnp.vdot(here.residual, here.residual)
        if position.size <= self.explicit:
            step, spent = _written_out(here, position.size, memory.damping)
            moved = position + step if project is None else project(position + step)
        else:
            memory, slope = self._probed(here, memory, at.iteration)
            moved, spent = self._moved(here, memory, slope, position, project)
        step = moved - position
        after = evaluate.residuals(moved)
        reached = jnp.vdot(after, after)
        linear = here.residual + here.forward(step)
        promised = value - jnp.vdot(linear, linear)
        finite = jnp.isfinite(value) & jnp.all(jnp.isfinite(step))
        helps = finite & jnp.isfinite(reached) & (reached < value)
        good = helps & (value - reached > _GOOD * promised)
        factor = jnp.where(good, _SHRINKS, jnp.where(helps, 1.0, _GROWS))
        damping = jnp.clip(memory.damping * factor, *_DAMPING)
        best = at.best.improve(position, jnp.where(finite, value, jnp.inf))
        return Progress(
            position=jnp.where(helps, moved, position),
            memory=dataclasses.replace(memory, damping=damping),
            best=best.improve(moved, jnp.where(helps, reached, jnp.inf)),
            # Damped to a standstill: no step can help any more.
            active=finite & (helps | (damping < _DAMPING[1])),
            evaluations=spent + 1,
            value=jnp.where(helps, reached, value),
            diverged=~finite,
            first=value,
        )

    def _probed(
        self, at: Linearised, memory: Damping, iteration: jax.Array
    ) -> tuple[Damping, jax.Array]:
        """Returns about the diagonal of J^T J, averaged, and J^T times the residual.

        Together, because every product that is written here is compiled once more. The
        few probes of one step leave an estimate that differs tenfold between equal
        unknowns, and scaling by that makes the equations worse.
        """
        key = jax.random.fold_in(jax.random.key(0), iteration)
        shape = (self.probes, at.residual.size)
        signs = jax.random.rademacher(key, shape, at.residual.dtype)
        rows = jnp.concatenate([signs, at.residual[None]])
        images = jax.lax.map(at.backward, rows)
        fresh = jnp.mean(jnp.square(images[:-1]), axis=0)
        fresh = jnp.where(jnp.isfinite(fresh), fresh, memory.scales)
        steps = jnp.minimum(memory.steps + 1, self.window)
        scales = memory.scales + (fresh - memory.scales) / steps
        return dataclasses.replace(memory, scales=scales, steps=steps), images[-1]

    def _moved(
        self,
        at: Linearised,
        memory: Damping,
        slope: jax.Array,
        position: jax.Array,
        project: Project,
    ) -> tuple[jax.Array, jax.Array]:
        """Returns where a step leads, within the borders, and the products it took.

        What a border cuts off a step is made up for by the others: they are solved for
        again, with those that it holds where they are (Bertsekas 1982).
        """
        scale = memory.scales + _SLIGHT * jnp.max(memory.scales) + _TINY
        solve = functools.partial(
            self._by_products, scale=scale, damping=memory.damping
        )
        if project is None:
            step, spent = solve(at, self.products)
            return position + step, spent + self.probes
        # Those that a border holds can't descend, and a step that counts on their
        # moving is none once it is projected; most pixels of a digit are at a border.
        free = project(position - _NUDGE * jnp.sign(slope)) != position
        half = jnp.asarray(self.products // 2, jnp.int32)

        def mended(_: jax.Array, state: _Cut) -> _Cut:
            moved, free, products, spent = state
            left = at.residual + at.forward(moved - position)
            step, took = solve(_restricted(at, left, free), products)
            aimed, moved = moved + step, project(moved + step)
            more = jnp.where(jnp.any(moved != aimed), half, 0)
            return moved, free & (moved == aimed), more, spent + took

        counts = jnp.asarray([self.products, self.probes], jnp.int32)
        state = (position, free, counts[0], counts[1])
        moved, _, _, spent = jax.lax.fori_loop(0, 1 + self.again, mended, state)
        return moved, spent

    def _by_products(
        self,
        at: Linearised,
        products: jax.Array | int,
        scale: jax.Array,
        damping: jax.Array,
    ) -> tuple[jax.Array, jax.Array]:
        """Returns the step by CGLS, and how many products it took."""
        start = -at.backward(at.residual)
        first = jnp.vdot(start, start / scale)
        zero = jnp.zeros((), jnp.int32)
        state = (jnp.zeros_like(start), -at.residual, start / scale, first, zero)

        def goes_on(state: _Cgls) -> jax.Array:
            _, _, _, left, count = state
            enough = left <= self.tolerance**2 * first
            return (count < products) & ~enough & jnp.isfinite(left)

        def product(state: _Cgls) -> _Cgls:
            step, rest, direction, left, count = state
            image = at.forward(direction)
            weighed = scale * direction
            curvature = jnp.vdot(image, image) + damping * jnp.vdot(direction, weighed)
            length = left / (curvature + _TINY)
            step = step + length * direction
            rest = rest - length * image
            slope = at.backward(rest) - damping * scale * step
            after = jnp.vdot(slope, slope / scale)
            turned = slope / scale + after / (left + _TINY) * direction
            return step, rest, turned, after, count + 1

        step, *_, count = jax.lax.while_loop(goes_on, product, state)
        return step, count


def _written_out(
    at: Linearised, size: int, damping: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Returns the step by QR, and how many products it took."""
    dtype = at.residual.dtype
    columns = jax.vmap(at.forward)(jnp.eye(size, dtype=dtype))  # (n, rows)
    norms = jnp.sqrt(jnp.sum(jnp.square(columns), axis=1))
    scale = norms + jnp.sqrt(_SLIGHT) * jnp.max(norms) + _TINY
    damped = jnp.sqrt(damping) * jnp.eye(size, dtype=dtype)
    matrix = jnp.concatenate([(columns / scale[:, None]).T, damped])
    right = jnp.concatenate([-at.residual, jnp.zeros(size, dtype)])
    return _least_squares(matrix, right) / scale, jnp.asarray(size, jnp.int32)


@machine.alone
def _least_squares(matrix: jax.Array, right: jax.Array) -> jax.Array:
    """Returns the solution by QR: the matrix has more rows than columns."""
    rotation, triangle = jnp.linalg.qr(matrix)
    solved: jax.Array = jax.scipy.linalg.solve_triangular(triangle, rotation.T @ right)
    return solved


def _restricted(at: Linearised, left: jax.Array, free: jax.Array) -> Linearised:
    """Returns what is left, and the products of a J whose other columns are 0."""
    return Linearised(
        left,
        lambda direction: at.forward(jnp.where(free, direction, 0.0)),
        lambda rows: jnp.where(free, at.backward(rows), 0.0),
    )


def _linear(function: Linear, position: jax.Array) -> Linearised:
    """Returns the value at a position, and products with J and with its transpose.

    J v is the derivative of u -> J^T u, transposed: reverse mode is all that it takes,
    which networks with rules of their own for it have.
    """
    value, pull = jax.vjp(function, position)

    def backward(rows: jax.Array) -> jax.Array:
        moved: jax.Array = pull(rows)[0]
        return moved

    push = jax.vjp(backward, value)[1]

    def forward(direction: jax.Array) -> jax.Array:
        rows: jax.Array = push(direction)[0]
        return rows

    return Linearised(value, forward, backward)
