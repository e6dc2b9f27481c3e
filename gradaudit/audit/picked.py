"""Which of a file's candidates was it? Asked of one captured update, without a truth.

A candidate's own gradient either explains what was sent or it does not, whatever it
was scaled by. Where the noise is told, the likelihood says how sure that is.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

from gradaudit.audit.witness import unexplained_by
from gradaudit.data import Dataset
from gradaudit.defenses.base import Defense, init_states
from gradaudit.distinguish.line_up import scores_of, told
from gradaudit.errors import require
from gradaudit.federation.population import Population
from gradaudit.models.gradients import one_hot
from gradaudit.models.model import Model
from gradaudit.types import Observation


@dataclasses.dataclass(frozen=True)
class Picked:
    """The candidate that explains an update best, and the one after it."""

    candidate: int  # from 0, in the file's order
    candidates: int
    unexplained: float  # of what was sent, at the best scale
    next_unexplained: float
    posterior: float | None  # of the pick, where the noise is told

    def to_dict(self) -> dict[str, Any]:
        """Returns plain data."""
        return dataclasses.asdict(self)


def pick(
    model: Model, observation: Observation, candidates: Dataset, defense: Defense
) -> Picked:
    """Returns who it was: by likelihood where noise is told, else by what explains.

    Each candidate is as many examples in a row as the client used.
    """
    each = observation.training.examples
    count = len(candidates) // each
    require(
        count >= 2,
        f"a line-up needs 2 candidates of {each} examples each, and {candidates.name} "
        f"has {len(candidates)} examples",
    )
    plain = dataclasses.replace(observation, told=None, memory=())
    shape = (count, each)
    inputs = candidates.inputs[: count * each].reshape(*shape, *candidates.shape)
    labels = candidates.labels[: count * each].reshape(shape)
    left = np.asarray(_left(model, plain, jnp.asarray(inputs), jnp.asarray(labels)))
    order, posterior = left, None
    if defense.mechanisms:
        places = (defense.per_example, defense.update, defense.server)
        states = tuple(init_states(part, observation.params) for part in places)
        known = told(plain, places, states)  # type: ignore[arg-type]
        rows = np.arange(count * each).reshape(shape)
        people = Population.of(candidates, list(rows))
        likely = special.softmax(
            scores_of(model, plain, known, people)[0].astype(float)
        )
        order, posterior = -likely, float(likely.max())
    first, second = np.argsort(order, kind="stable")[:2].tolist()
    return Picked(first, count, float(left[first]), float(left[second]), posterior)


@functools.partial(jax.jit, static_argnums=0)
def _left(
    model: Model, observation: Observation, inputs: jax.Array, labels: jax.Array
) -> jax.Array:
    """Returns what each candidate leaves unexplained, (candidates,)."""

    def one(candidate: tuple[jax.Array, jax.Array]) -> jax.Array:
        images, known = candidate
        targets = one_hot(known, model.classes)
        # In which step a client used which example is not known: nothing to replay.
        return unexplained_by(model, observation, False, images, targets)[1]

    left: jax.Array = jax.lax.map(one, (inputs, labels))
    return left
