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
from collections.abc import Callable

import jax
import jax.numpy as jnp

from gradaudit.attacks.base import Best
from gradaudit.attacks.lbfgs import Clock, Evaluate, Progress, Project
from gradaudit.errors import require

_GROWS, _SHRINKS = 4.0, 0.25  # of the damping, after a failure and a success
_GOOD = 0.25  # share of the promised fall that counts as a success
_DAMPING = (1e-9, 1e9)
_SLIGHT = 1e-12  # of the largest of D^2: what has no influence at all stays put
_TINY = 1e-30


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Damping:
    """What the next step needs."""

    damping: jax.Array  # ()


Linear = Callable[[jax.Array], jax.Array]
# The step, what is left of the residual, the direction, its size, and the products.
_Cgls = tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]


@dataclasses.dataclass(frozen=True)
class GaussNewton:
    """Levenberg-Marquardt; one attack iteration is one step, taken if it helps.

    A step is counted as one evaluation per product with J and its transpose, and one
    for its own value.
    """

    products: int = 60  # with J and its transpose, at most, in a step
    probes: int = 4  # for the scales of the unknowns
    explicit: int = 128  # unknowns up to which J is written out
    damping: float = 1e-2  # at first
    tolerance: float = 1e-3  # of the step's own equations

    def __post_init__(self) -> None:
        for name in ("products", "probes"):
            value = getattr(self, name)
            require(value >= 1, f"{name} must be at least 1, got {value}")
        require(self.damping > 0, f"damping must be positive, got {self.damping}")

    @property
    def updates(self) -> int:
        """About how many evaluations an attack iteration costs."""
        return self.products + self.probes + 1

    def init(self, position: jax.Array) -> Damping:
        """Returns the first damping."""
        return Damping(jnp.asarray(self.damping, position.dtype))

    def iterate(
        self,
        evaluate: Evaluate,
        project: Project,
        position: jax.Array,
        memory: Damping,
        best: Best,
        clock: Clock,
    ) -> Progress:
        """Runs one step; a step that does not help raises the damping instead."""
        residual, forward, backward = _linear(evaluate.residuals, position)
        value = jnp.vdot(residual, residual)
        if position.size <= self.explicit:
            step, spent = self._written_out(
                forward, residual, position.size, memory.damping
            )
        else:
            scale, slope = self._scales(backward, residual, clock.iteration)
            step, spent = self._by_products(
                forward, backward, residual, scale, -slope, memory.damping
            )
        moved = position + step
        if project is not None:
            moved = project(moved)
            step = moved - position
        after = evaluate.residuals(moved)
        reached = jnp.vdot(after, after)
        linear = residual + forward(step)
        promised = value - jnp.vdot(linear, linear)
        finite = jnp.isfinite(value) & jnp.all(jnp.isfinite(step))
        helps = finite & jnp.isfinite(reached) & (reached < value)
        good = helps & (value - reached > _GOOD * promised)
        factor = jnp.where(good, _SHRINKS, jnp.where(helps, 1.0, _GROWS))
        damping = jnp.clip(memory.damping * factor, *_DAMPING)
        best = best.improve(position, jnp.where(finite, value, jnp.inf))
        return Progress(
            position=jnp.where(helps, moved, position),
            memory=Damping(damping),  # type: ignore[arg-type]
            best=best.improve(moved, jnp.where(helps, reached, jnp.inf)),
            # Damped to a standstill: no step can help any more.
            active=finite & (helps | (damping < _DAMPING[1])),
            evaluations=spent + 1,
            value=jnp.where(helps, reached, value),
            diverged=~finite,
            first=value,
        )

    def _scales(
        self, backward: Linear, residual: jax.Array, iteration: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Returns about the diagonal of J^T J, and J^T times the residual, (n,) each.

        Together, because every product that is written here is compiled once more.
        """
        key = jax.random.fold_in(jax.random.key(0), iteration)
        shape = (self.probes, residual.size)
        signs = jax.random.rademacher(key, shape, residual.dtype)
        rows = jnp.concatenate([signs, residual[None]])
        images = jax.lax.map(backward, rows)
        mean = jnp.mean(jnp.square(images[:-1]), axis=0)
        return mean + _SLIGHT * jnp.max(mean) + _TINY, images[-1]

    def _by_products(
        self,
        forward: Linear,
        backward: Linear,
        residual: jax.Array,
        scale: jax.Array,
        start: jax.Array,
        damping: jax.Array,
    ) -> tuple[jax.Array, jax.Array]:
        """Returns the step by CGLS, and how many products it took."""
        first = jnp.vdot(start, start / scale)
        zero = jnp.zeros((), jnp.int32)
        state = (jnp.zeros_like(start), -residual, start / scale, first, zero)

        def goes_on(state: _Cgls) -> jax.Array:
            _, _, _, left, count = state
            enough = left <= self.tolerance**2 * first
            return (count < self.products) & ~enough & jnp.isfinite(left)

        def product(state: _Cgls) -> _Cgls:
            step, rest, direction, left, count = state
            image = forward(direction)
            weighed = scale * direction
            curvature = jnp.vdot(image, image) + damping * jnp.vdot(direction, weighed)
            length = left / (curvature + _TINY)
            step = step + length * direction
            rest = rest - length * image
            slope = backward(rest) - damping * scale * step
            after = jnp.vdot(slope, slope / scale)
            turned = slope / scale + after / (left + _TINY) * direction
            return step, rest, turned, after, count + 1

        step, *_, count = jax.lax.while_loop(goes_on, product, state)
        return step, count + self.probes

    def _written_out(
        self, forward: Linear, residual: jax.Array, size: int, damping: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Returns the step by QR, and how many products it took."""
        columns = jax.vmap(forward)(jnp.eye(size, dtype=residual.dtype))  # (n, rows)
        norms = jnp.sqrt(jnp.sum(jnp.square(columns), axis=1))
        scale = norms + jnp.sqrt(_SLIGHT) * jnp.max(norms) + _TINY
        damped = jnp.sqrt(damping) * jnp.eye(size, dtype=residual.dtype)
        matrix = jnp.concatenate([(columns / scale[:, None]).T, damped])
        right = jnp.concatenate([-residual, jnp.zeros(size, residual.dtype)])
        rotation, triangle = jnp.linalg.qr(matrix)
        solved = jax.scipy.linalg.solve_triangular(triangle, rotation.T @ right)
        return solved / scale, jnp.asarray(size, jnp.int32)


def _linear(function: Linear, position: jax.Array) -> tuple[jax.Array, Linear, Linear]:
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

    return value, forward, backward
