"""What an attack shows without the truth: does its answer explain what was sent?

Nobody but the client can say whether a picture is right. But an answer that explains
what was sent to the last digits, and that independent starts agree on, is what the
gradient determines. Both are needed: a prior can make starts agree on a blur, and a
batch can be explained by pictures that nobody has.
"""

import dataclasses
import functools
import math
from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from scipy import special

from gradaudit import tree
from gradaudit.attacks.objective import guessed_gradient
from gradaudit.data import Dataset
from gradaudit.defenses.transforms import Defense, init_states
from gradaudit.distinguish.line_up import scores_of, told
from gradaudit.errors import InputError
from gradaudit.federation.population import Population
from gradaudit.models.gradients import one_hot
from gradaudit.models.model import Model
from gradaudit.report import metrics
from gradaudit.types import Observation, Reconstruction, Status

EXPLAINED = 0.01  # of what was sent may stay unexplained, in squares, at any scale
AGREEING = 0.5  # of the other starts must agree with the answer
_DIFFERENT = 1e-3  # RMSE between starts that count as different ones


@dataclasses.dataclass(frozen=True)
class Weighed:
    """What is known of one captured update after the attack; a row of evidence.csv."""

    victim: int
    folder: str
    round: int | None
    client: str | None
    residual: float  # squared distance of the answer's gradient, of |g|^2
    unexplained: float  # the same at the best scale: 1 - cos^2
    starts: int
    agreement: float | None  # share of the other starts that ended at the answer;
    # 1 for a closed form, which has one answer; None if the starts were not different
    spread: float | None  # median RMSE of the other starts to the answer
    labels: tuple[int, ...]  # as the attacker takes them
    label_confidence: float | None  # share of the starts with these labels
    objective: float
    iterations: int
    evaluations: int
    status: str

    @property
    def determined(self) -> bool:
        """Whether the answer is what the gradient determines: explained and agreed."""
        agreed = self.agreement is not None and self.agreement >= AGREEING
        return agreed and self.unexplained <= EXPLAINED


@dataclasses.dataclass(frozen=True)
class Answer:
    """The chosen answer of one victim, and what can be said of it."""

    weighed: Weighed
    inputs: NDArray[np.float32]  # (examples, *shape)


def weigh(
    victim: int,
    about: dict[str, Any],
    model: Model,
    observation: Observation,
    begun: NDArray[np.float32],
    found: Reconstruction,
    threshold: float,
) -> Answer | None:
    """Returns the best of a victim's starts by its own objective; None if none began.

    `found` is stacked over the starts; `begun` is where each of them began (NaN if
    nobody looked).
    """
    mine: Any = jax.tree.map(np.asarray, found)
    there = np.flatnonzero(mine.status != Status.MISSING)
    if not len(there):
        return None
    best = there[np.argmin(np.nan_to_num(mine.objective[there], nan=np.inf))]
    inputs, labels = mine.inputs[best], mine.labels[best]
    residual, unexplained = explained(model, observation, inputs, labels)
    others = [int(i) for i in there if i != best]
    apart = [distance(inputs, mine.inputs[i]) for i in others]
    different = _different(begun[there])
    named = Counter(tuple(sorted(row.tolist())) for row in mine.labels[there])
    chosen = tuple(sorted(labels.tolist()))
    weighed = Weighed(
        victim=victim,
        **about,
        residual=residual,
        unexplained=unexplained,
        starts=len(there),
        agreement=_agreement(apart, threshold, int(mine.iterations[best]), different),
        spread=float(np.median(apart)) if apart else None,
        labels=tuple(int(label) for label in labels),
        label_confidence=named[chosen] / len(there) if len(there) > 1 else None,
        objective=float(mine.objective[best]),
        iterations=int(mine.iterations[best]),
        evaluations=int(mine.evaluations[there].sum()),
        status=Status(int(mine.status[best])).name.lower(),
    )
    return Answer(weighed, inputs)


def _agreement(
    apart: list[float], threshold: float, iterations: int, different: bool
) -> float | None:
    if iterations == 0:
        return 1.0
    return float(np.mean([d <= threshold for d in apart])) if different else None


def _different(begun: NDArray[np.float32]) -> bool:
    """Whether the starts were different ones: else their agreement says nothing."""
    if len(begun) < 2 or not np.isfinite(begun).all():
        return False
    flat = begun.reshape(len(begun), -1)
    return bool(
        (np.sqrt(np.mean((flat[1:] - flat[0]) ** 2, axis=1)) > _DIFFERENT).all()
    )


def distance(one: NDArray[np.float32], other: NDArray[np.float32]) -> float:
    """Returns the RMSE of two answers in [0, 1], their examples in the best order."""
    if not (np.isfinite(one).all() and np.isfinite(other).all()):
        return math.inf
    first, second = metrics.clipped(one), metrics.clipped(other)
    matched = second[metrics.match(first, second)]
    return float(np.sqrt(np.mean(np.square(first - matched))))


def explained(
    model: Model, observation: Observation, inputs: Any, labels: Any
) -> tuple[float, float]:
    """Returns |g(x) - g|^2 / |g|^2, and the same at the best scale of g(x).

    The second is what an adversary is left with that does not know how much the
    client's clipping shrank the update.
    """
    if not np.isfinite(inputs).all() or (np.asarray(labels) < 0).any():
        return math.inf, 1.0
    plain = dataclasses.replace(observation, told=None, memory=())
    found = _explained(model, plain, jnp.asarray(inputs), jnp.asarray(labels))
    residual, unexplained = (float(value) for value in found)
    return residual, min(max(unexplained, 0.0), 1.0)


@functools.partial(jax.jit, static_argnums=0)
def _explained(
    model: Model, observation: Observation, inputs: jax.Array, labels: jax.Array
) -> tuple[jax.Array, jax.Array]:
    replays = observation.training.local_steps > 1
    targets = one_hot(labels, model.classes)
    return unexplained_by(model, observation, replays, inputs, targets)


def unexplained_by(
    model: Model,
    observation: Observation,
    replays: bool,
    inputs: jax.Array,
    targets: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Returns the squared residual of |g|^2, as it is and at the best scale."""
    guess = guessed_gradient(model, observation, replays, inputs, targets)
    true = observation.gradient
    error = tree.subtract(guess, true)
    size, length = tree.dot(true, true), tree.dot(guess, guess)
    residual = tree.dot(error, error) / size
    # What is left at the best scale, from the difference: 1 - cos^2 would cancel.
    scale = tree.dot(guess, true) / jnp.maximum(length, 1e-30)
    rest = tree.subtract(tree.scale(scale, guess), true)
    return residual, tree.dot(rest, rest) / size


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
    if not count >= 2:
        raise InputError(
            f"a line-up needs 2 candidates of {each} examples each, and "
            f"{candidates.name} has {len(candidates)} examples"
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
