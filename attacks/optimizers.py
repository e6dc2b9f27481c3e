"""Optimizers over one flat position; one call of `iterate` is one attack iteration.

L-BFGS with torch's rules is in `lbfgs`, Gauss-Newton in `gauss_newton`; those that are
here wrap optax.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import optax

from gradaudit.attacks.objective import Objective
from gradaudit.errors import InputError

Project = Callable[[jax.Array], jax.Array] | None  # None: there is no box


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Best:
    """The iterate that the attacker would hand in: lowest own objective so far."""

    position: jax.Array
    value: jax.Array

    @classmethod
    def start(cls, position: jax.Array) -> "Best":
        """Returns a best that any finite value improves on."""
        return cls(position, jnp.asarray(jnp.inf, position.dtype))

    def improve(self, position: jax.Array, value: jax.Array) -> "Best":
        """Returns the better of the two; NaN never wins."""
        better = value < self.value
        return Best(
            jnp.where(better, position, self.position),
            jnp.where(better, value, self.value),
        )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Standing:
    """Where a search stands before an iteration."""

    position: jax.Array
    memory: Any  # the optimizer's own
    best: Best
    iteration: jax.Array  # () attack iterations done
    budget: jax.Array | int  # () attack iterations at most


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Progress:
    """The carry of one attack iteration."""

    position: jax.Array
    memory: Any  # the optimizer's own
    best: Best
    active: jax.Array  # whether the last update moved
    evaluations: jax.Array  # in this iteration
    value: jax.Array  # at the last evaluation
    diverged: jax.Array  # an evaluation was not finite
    first: jax.Array  # at the first evaluation of this iteration


class Optimizer(Protocol):
    """A frozen dataclass that moves one victim's position."""

    def init(self, position: jax.Array) -> Any:
        """Returns the memory before the first iteration."""

    def iterate(self, evaluate: Objective, project: Project, at: Standing) -> Progress:
        """Runs one attack iteration."""


@dataclasses.dataclass(frozen=True)
class Adam:
    """Adam, on the gradient or (signed) on its sign (Geiping et al. 2020).

    With `decays` the rate is multiplied by 0.1 at 3/8, 5/8 and 7/8 of the budget,
    whatever the budget is.
    """

    learning_rate: float = 0.1
    signed: bool = False
    decays: bool = False

    def __post_init__(self) -> None:
        if not self.learning_rate > 0:
            raise InputError(
                f"learning_rate must be positive, got {self.learning_rate}"
            )

    def init(self, position: jax.Array) -> Any:
        """Returns optax's state."""
        return optax.scale_by_adam().init(position)

    def iterate(self, evaluate: Objective, project: Project, at: Standing) -> Progress:
        """Runs one step."""
        value, gradient = evaluate(at.position)
        direction = jnp.sign(gradient) if self.signed else gradient
        scaled, memory = optax.scale_by_adam().update(direction, at.memory)
        moved = at.position - self._rate(at) * scaled
        return _one_evaluation(at, moved, project, value, gradient, memory)

    def _rate(self, at: Standing) -> jax.Array:
        rate = jnp.asarray(self.learning_rate, jnp.float32)
        for eighths in (3, 5, 7) if self.decays else ():
            reached = at.iteration >= at.budget * eighths // 8
            rate = jnp.where(reached, 0.1 * rate, rate)
        return rate


@dataclasses.dataclass(frozen=True)
class LineSearchLBFGS:
    """optax.lbfgs with its zoom line search: steadier, about twice the cost."""

    history: int = 20
    search_steps: int = 15

    def init(self, position: jax.Array) -> Any:
        """Returns optax's state."""
        return self._transformation().init(position)

    def iterate(self, evaluate: Objective, project: Project, at: Standing) -> Progress:
        """Runs one update with its line search."""

        # The objective has its own gradient; the search differentiates through it.
        @jax.custom_jvp
        def value_of(where: jax.Array) -> jax.Array:
            return evaluate(where)[0]

        @value_of.defjvp
        def _(primals: Any, tangents: Any) -> Any:
            value, gradient = evaluate(primals[0])
            return value, jnp.vdot(gradient, tangents[0])

        value, gradient = evaluate(at.position)
        updates, memory = self._transformation().update(
            gradient,
            at.memory,
            at.position,
            value=value,
            grad=gradient,
            value_fn=value_of,
        )
        searched = optax.tree.get(memory, "num_linesearch_steps")
        moved = at.position + updates
        progress = _one_evaluation(at, moved, project, value, gradient, memory)
        return dataclasses.replace(
            progress, evaluations=progress.evaluations + searched.astype(jnp.int32)
        )

    def _transformation(self) -> Any:
        search = optax.scale_by_zoom_linesearch(max_linesearch_steps=self.search_steps)
        return optax.lbfgs(memory_size=self.history, linesearch=search)


def _one_evaluation(
    at: Standing,
    after: jax.Array,
    project: Project,
    value: jax.Array,
    gradient: jax.Array,
    memory: Any,
) -> Progress:
    after = after if project is None else project(after)
    finite = jnp.isfinite(value) & jnp.all(jnp.isfinite(gradient))
    return Progress(
        position=jnp.where(finite, after, at.position),
        memory=memory,
        best=at.best.improve(at.position, jnp.where(finite, value, jnp.inf)),
        active=finite,
        evaluations=jnp.ones((), jnp.int32),
        value=value,
        diverged=~finite,
        first=value,
    )
