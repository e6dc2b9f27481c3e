"""A captured observation and n candidates: which of them was it?"""

import dataclasses
import functools
import pathlib
import statistics
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from scipy import special

from gradaudit import machine, tree
from gradaudit.attacks.objective import guessed_gradient
from gradaudit.audit.captured_files import read_capture
from gradaudit.audit.captured_scenario import observation_of
from gradaudit.audit.scenario import one_round
from gradaudit.data import Dataset, load_dataset
from gradaudit.defenses import parse as parse_defense
from gradaudit.defenses.transforms import Defense
from gradaudit.distinguish.line_up import scores_of, told
from gradaudit.errors import InputError
from gradaudit.federation.recipe import Population
from gradaudit.models.adapters import model_for
from gradaudit.models.gradients import one_hot
from gradaudit.models.model import Model
from gradaudit.privacy.certificate import Certificate, certificate
from gradaudit.privacy.plan import PrivacyPlan
from gradaudit.report.result import RunResult
from gradaudit.spec import Spec
from gradaudit.types import Leakage, Observation


@dataclasses.dataclass(frozen=True)
class Picked:
    """The candidate that explains an update best, and the one after it."""

    candidate: int  # from 0, in the file's order
    candidates: int
    unexplained: float  # of what was sent, at the best scale
    next_unexplained: float
    posterior: float | None  # of the pick, where the noise is told


def pick(
    model: Model, observation: Observation, candidates: Dataset, defense: Defense
) -> Picked:
    """Returns who it was: by likelihood where noise is told, else by what explains.

    Each candidate is as many examples in a row as the client used.
    """
    plain = dataclasses.replace(observation, told=None, memory=())
    rows = _rows(candidates, observation.training.examples)
    inputs, labels = candidates.inputs[rows], candidates.labels[rows]
    left = np.asarray(_left(model, plain, jnp.asarray(inputs), jnp.asarray(labels)))
    order, posterior = left, None
    if defense.mechanisms:
        likely = special.softmax(_log_likely(model, plain, defense, candidates, rows))
        order, posterior = -likely, float(likely.max())
    first, second = np.argsort(order, kind="stable")[:2].tolist()
    return Picked(first, len(rows), float(left[first]), float(left[second]), posterior)


def line_up_of(picked: Sequence[Picked]) -> dict[str, Any] | None:
    """Returns who was picked for each update, as result.json has it."""
    if not picked:
        return None
    return {
        "candidates": picked[0].candidates,
        "unexplained": statistics.median(each.unexplained for each in picked),
        "next_unexplained": statistics.median(each.next_unexplained for each in picked),
        "picks": [dataclasses.asdict(each) for each in picked],
    }


def _rows(candidates: Dataset, examples: int) -> NDArray[np.int64]:
    """Returns the rows of each candidate, so many in a row, (candidates, examples)."""
    rows = np.arange(len(candidates) // examples * examples).reshape(-1, examples)
    if len(rows) < 2:
        raise InputError(
            f"a line-up needs 2 candidates of {examples} examples each, and "
            f"{candidates.name} has {len(candidates)} examples"
        )
    return rows


def _log_likely(
    model: Model,
    observation: Observation,
    defense: Defense,
    candidates: Dataset,
    rows: NDArray[np.int64],
) -> NDArray[np.float64]:
    """Returns log p of what was read for each candidate, up to what all share."""
    people = Population.of(candidates, list(rows))
    scores = scores_of(model, told(observation, defense), people)
    return np.asarray(scores[0], np.float64)


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


@dataclasses.dataclass(frozen=True)
class IdentifyResult(RunResult):
    """How likely each candidate is, given what was captured."""

    posterior: NDArray[np.float64]  # (candidates,) equal priors
    certified: Certificate
    looks: int

    @property
    def picked(self) -> int:
        """The likeliest candidate."""
        return int(self.posterior.argmax())

    def content(self) -> dict[str, Any]:
        """Returns what came out, as result.json has it."""
        order = np.argsort(-self.posterior, kind="stable")[:10]
        return {
            "metrics": {
                "candidates": len(self.posterior),
                "looks": self.looks,
                "picked": self.picked,
                "likeliest": [
                    {"candidate": int(i), "posterior": float(self.posterior[i])}
                    for i in order
                ],
                "certified": self.certified.to_dict(),
            },
        }

    def rows(self) -> dict[str, list[dict[str, Any]]]:
        """Returns posterior.csv."""
        found = enumerate(self.posterior.tolist())
        return {"posterior.csv": [{"candidate": i, "posterior": p} for i, p in found]}


def identify(
    captured: str | Sequence[str],
    candidates: str | Dataset,
    defense: str | Defense = "none",
    model: str | Model | None = None,
) -> IdentifyResult:
    """Picks out of a file's candidates the one that a captured observation is of.

    Args:
      captured: a folder with an observation, or several of the same victim.
      candidates: a dataset or its file; each example is a candidate for type 2, and
        as many in a row as the client used for types 0 and 1.
      defense: the one that the client used, told to the adversary.
      model: the client's model; by default `cpl` for images and `mlp` for tables.
    """
    asked = dict(locals())
    machine.configure()
    data, guard = load_dataset(candidates), parse_defense(defense)
    net = model_for(model, data.shape, data.classes)
    folders = [captured] if isinstance(captured, str) else list(captured)
    if not len(folders):
        raise InputError("there is no captured observation to look at")
    total: NDArray[np.float64] | float = 0.0
    for folder in folders:
        capture = read_capture(pathlib.Path(folder))
        seen = observation_of(capture, net, noisy=bool(guard.mechanisms))
        alone = seen.leakage is Leakage.EXAMPLE
        rows = _rows(data, 1 if alone else seen.training.examples)
        total = total + _log_likely(net, seen, guard, data, rows)
    posterior = special.softmax(total)
    setting = one_round(1, seen.training.batch_size, seen.training.local_steps)
    tensors = len(jax.tree.leaves(seen.params))
    return IdentifyResult(
        spec=Spec.of("identify", **asked),
        environment=machine.describe(),
        posterior=np.asarray(posterior),
        certified=certificate(
            PrivacyPlan(guard, setting, tensors=tensors),
            type=int(seen.leakage),
            candidates=len(posterior),
            looks=len(folders),
        ),
        looks=len(folders),
        limitations=(
            "The posterior takes one of the candidates to be the victim, all equally "
            "likely, and the defense to be what it was said to be.",
        ),
    )
