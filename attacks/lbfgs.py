"""L-BFGS with torch's semantics, in fixed shapes, for hundreds of victims under vmap.

No library does this: optax.lbfgs has other rules (a line search, which doubles the
cost under vmap), jaxopt is archived. One attack iteration is one `step()` of
`torch.optim.LBFGS`: up to 20 updates without line search, the memory kept between
steps, every stop a mask.

The two-loop recursion is written in its compact form (Byrd, Nocedal and Schnabel
1994). With R the upper triangle of S Y^T in the order of arrival, D its diagonal,

    alpha = R^-1 S g,   w = R^-T (D alpha - gamma (Y g - Y Y^T alpha)),
    H g   = gamma (g - Y^T alpha) + S^T w,

which is the same direction with four matrix-vector products in place of 200
dependent steps. R^-1 itself is kept: a new pair adds a column to it, and the pair
that leaves takes its row along, so that slots never have to be sorted.
"""

import dataclasses

import jax
import jax.numpy as jnp

from gradaudit.attacks.objective import Objective
from gradaudit.attacks.optimizers import Progress, Project, Standing
from gradaudit.errors import InputError, at_least

_CURVATURE = 1e-10  # torch keeps a pair only if y.s exceeds this


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Pairs:
    """The last m steps s and gradient changes y, in ring order."""

    steps: jax.Array  # (m, n) S
    changes: jax.Array  # (m, n) Y
    inverse: jax.Array  # (m, m) transposed R^-1; rows of empty slots are 0
    gram: jax.Array  # (m, m) Y Y^T
    curvature: jax.Array  # (m,) D
    gamma: jax.Array  # () y.s / y.y of the newest pair
    count: jax.Array  # () pairs ever kept


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Products:
    """The history times the latest gradient."""

    steps: jax.Array  # (m,) S g
    changes: jax.Array  # (m,) Y g


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Memory:
    """What the next update needs."""

    pairs: Pairs
    step: jax.Array  # (n,) what the previous update moved
    gradient: jax.Array  # (n,) at the previous update
    products: Products  # of that gradient
    value: jax.Array  # () at the previous update
    updates: jax.Array  # () over all iterations


@dataclasses.dataclass(frozen=True)
class LBFGS:
    """torch.optim.LBFGS without line search; the defaults are torch's."""

    learning_rate: float = 1.0
    updates: int = 20  # per attack iteration
    tolerance_gradient: float = 1e-7
    tolerance_change: float = 1e-9
    history: int = 100

    def __post_init__(self) -> None:
        if not self.learning_rate > 0:
            raise InputError(
                f"learning_rate must be positive, got {self.learning_rate}"
            )
        at_least(1, updates=self.updates, history=self.history)

    def init(self, position: jax.Array) -> Memory:
        """Returns an empty memory."""
        m, n, dtype = self.history, position.size, position.dtype
        pairs = Pairs(
            steps=jnp.zeros((m, n), dtype),
            changes=jnp.zeros((m, n), dtype),
            inverse=jnp.zeros((m, m), dtype),
            gram=jnp.zeros((m, m), dtype),
            curvature=jnp.zeros((m,), dtype),
            gamma=jnp.ones((), dtype),
            count=jnp.zeros((), jnp.int32),
        )
        products = Products(jnp.zeros((m,), dtype), jnp.zeros((m,), dtype))
        blank, none = jnp.zeros_like(position), jnp.zeros((), jnp.int32)
        return Memory(pairs, blank, blank, products, jnp.zeros((), dtype), none)

    def iterate(self, evaluate: Objective, project: Project, at: Standing) -> Progress:
        """Runs one attack iteration: up to `updates` evaluations and updates."""
        start = Progress(
            at.position,
            at.memory,
            at.best,
            active=jnp.asarray(True),
            evaluations=jnp.zeros((), jnp.int32),
            value=jnp.asarray(jnp.inf, at.position.dtype),
            diverged=jnp.asarray(False),
            first=jnp.asarray(jnp.inf, at.position.dtype),
        )

        def update(progress: Progress, index: jax.Array) -> tuple[Progress, None]:
            return self._update(evaluate, project, progress, index), None

        end, _ = jax.lax.scan(update, start, jnp.arange(self.updates))
        return end

    def _update(
        self,
        evaluate: Objective,
        project: Project,
        progress: Progress,
        index: jax.Array,
    ) -> Progress:
        memory, position = progress.memory, progress.position
        value, gradient = evaluate(position)
        finite = jnp.isfinite(value) & jnp.all(jnp.isfinite(gradient))
        evaluated = progress.active
        best = progress.best.improve(
            position, jnp.where(evaluated & finite, value, jnp.inf)
        )
        # torch checks these after an evaluation inside a step, so not at its first.
        moved = jnp.max(jnp.abs(memory.step))
        small = (moved <= self.tolerance_change) | (
            jnp.abs(value - memory.value) < self.tolerance_change
        )
        flat = jnp.max(jnp.abs(gradient)) <= self.tolerance_gradient
        active = evaluated & finite & ~flat & ~((index > 0) & small)

        first = memory.updates == 0
        pairs, products, image = _remember_and_apply(
            memory.pairs,
            memory.products,
            memory.step,
            gradient - memory.gradient,
            gradient,
            active & ~first,
        )
        direction = -image
        first_length = jnp.minimum(1.0, 1.0 / jnp.sum(jnp.abs(gradient)))
        length = self.learning_rate * jnp.where(first, first_length, 1.0)
        descends = jnp.vdot(gradient, direction) <= -self.tolerance_change
        step = length * direction
        stepped = position + step
        if project is not None:
            # The pair must hold what was moved, or its curvature is another point's.
            stepped = project(stepped)
            step = stepped - position
        fresh = Memory(pairs, step, gradient, products, value, memory.updates + 1)
        # The pairs were written under the mask already.
        kept = jax.tree.map(
            lambda new, old: new if new is old else jnp.where(active, new, old),
            fresh,
            dataclasses.replace(memory, pairs=pairs),
        )
        moves = active & descends
        return Progress(
            position=jnp.where(moves, stepped, position),
            memory=kept,
            best=best,
            active=moves,
            evaluations=progress.evaluations + evaluated,
            value=jnp.where(evaluated, value, progress.value),
            diverged=progress.diverged | (evaluated & ~finite),
            first=jnp.where(index == 0, value, progress.first),
        )


def _remember_and_apply(
    pairs: Pairs,
    before: Products,
    step: jax.Array,
    change: jax.Array,
    gradient: jax.Array,
    wanted: jax.Array,
) -> tuple[Pairs, Products, jax.Array]:
    """Stores the pair in the oldest slot, unless masked or of no curvature.

    Returns the pairs, their products with the gradient, and H g, which is g itself
    while there are no pairs.
    """
    curvature = jnp.vdot(change, step)
    keep = wanted & (curvature > _CURVATURE)
    m = pairs.curvature.size
    # A slot beyond the end is dropped by the scatter: no copy of the history.
    slot = jnp.where(keep, pairs.count % m, m)
    steps = pairs.steps.at[slot].set(step, mode="drop")
    changes = pairs.changes.at[slot].set(change, mode="drop")
    # Reading the history is what costs. Its products with the change are differences
    # of those with the gradients; the change itself is no more exact than they are.
    products = Products(steps @ gradient, changes @ gradient)
    is_slot = jnp.arange(m) == slot
    square = jnp.vdot(change, change)
    s_change = products.steps - before.steps
    y_change = jnp.where(is_slot, square, products.changes - before.changes)
    column = -jnp.where(is_slot, 0.0, s_change) @ pairs.inverse / curvature
    inverse = jnp.where(
        is_slot[:, None],
        jnp.where(is_slot, 1.0 / curvature, column)[None, :],
        jnp.where(is_slot[None, :], 0.0, pairs.inverse),
    )
    gram = jnp.where(
        is_slot[:, None],
        y_change[None, :],
        jnp.where(is_slot[None, :], y_change[:, None], pairs.gram),
    )
    diagonal = jnp.where(is_slot, curvature, pairs.curvature)
    gamma = jnp.where(keep, curvature / square, pairs.gamma)

    alpha = products.steps @ inverse  # stored transposed
    residual = products.changes - gram @ alpha
    weights = inverse @ (diagonal * alpha - gamma * residual)
    image = gamma * (gradient - alpha @ changes) + weights @ steps
    count = pairs.count + keep
    kept = Pairs(steps, changes, inverse, gram, diagonal, gamma, count)
    return kept, products, image
