"""What an attack shows without the truth: does its answer explain what was sent?

Nobody but the client can say whether a picture is right. But an answer that explains
what was sent to the last digits, and that independent starts agree on, is what the
gradient determines. Both are needed: a prior can make starts agree on a blur, and a
batch can be explained by pictures that nobody has.
"""

import dataclasses
import functools
import math
import statistics
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from gradaudit.audit.captured_files import Capture
from gradaudit.audit.captured_line_up import Picked, line_up_of, unexplained_by
from gradaudit.models.gradients import one_hot
from gradaudit.models.model import Model
from gradaudit.report import metrics
from gradaudit.report.pictures import answers_grid
from gradaudit.report.result import RunResult
from gradaudit.report.tables import unseen_table
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

    def to_dict(self) -> dict[str, Any]:
        """Returns plain data."""
        return dataclasses.asdict(self) | {"determined": self.determined}


@dataclasses.dataclass(frozen=True)
class Answer:
    """The chosen answer of one victim, and what can be said of it."""

    weighed: Weighed
    inputs: NDArray[np.float32]  # (examples, *shape)


def weigh(
    victim: int,
    capture: Capture,
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
    number, client = capture.identity
    others = [int(i) for i in there if i != best]
    apart = [distance(inputs, mine.inputs[i]) for i in others]
    different = _different(begun[there])
    named = Counter(tuple(sorted(row.tolist())) for row in mine.labels[there])
    chosen = tuple(sorted(labels.tolist()))
    weighed = Weighed(
        victim=victim,
        folder=capture.folder.name,
        round=number,
        client=client,
        residual=residual,
        unexplained=unexplained,
        starts=len(there),
        agreement=_agreement(apart, threshold, int(mine.iterations[best]), different),
        spread=_median(apart),
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
    first, second = np.clip(one, 0, 1), np.clip(other, 0, 1)
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


NO_TRUTH = (
    "No truth was given: 'determined' means that independent starts agree on an answer "
    "that explains what was sent, not that anybody compared it with the private data."
)


@dataclasses.dataclass(frozen=True)
class UnseenResult(RunResult):
    """What can be said without the truth."""

    about: dict[str, Any]
    threat: dict[str, Any]
    answers: tuple[Answer, ...]  # of the updates that were begun
    picked: tuple[Picked, ...]  # of each answer, if there were candidates
    asked: int  # updates
    mechanism: dict[str, Any] | None  # what they say of the noise
    timing: dict[str, float]
    pictures: bool = False  # whether they are in the result

    @property
    def determined(self) -> metrics.Rate:
        """The share of the updates whose answer the gradient determines."""
        hits = sum(answer.weighed.determined for answer in self.answers)
        return metrics.rate(hits, self.asked)

    def content(self) -> dict[str, Any]:
        """Returns what came out, as result.json has it."""
        begun = {answer.weighed.victim for answer in self.answers}
        return {
            "about": self.about,
            "threat": self.threat,
            "victims": {
                "asked": self.asked,
                "missing": sorted(set(range(self.asked)) - begun),
            },
            "metrics": self._metrics(),
            "mechanism": self.mechanism,
            "timing": self.timing,
        }

    def _metrics(self) -> dict[str, Any]:
        rows = [answer.weighed for answer in self.answers]
        agreed = [row.agreement for row in rows if row.agreement is not None]
        return {
            "determined": {
                **dataclasses.asdict(self.determined),
                "unexplained_at_most": EXPLAINED,
                "agreement_at_least": AGREEING,
                "threshold": self.about["success_rmse"],
            },
            "residual": _median([row.residual for row in rows]),
            "unexplained": _median([row.unexplained for row in rows]),
            "agreement": _median(agreed),
            "line_up": line_up_of(self.picked),
            "updates": [row.to_dict() for row in rows],
        }

    def rows(self) -> dict[str, list[dict[str, Any]]]:
        """Returns evidence.csv, a row for each update that was begun."""
        found = [answer.weighed.to_dict() for answer in self.answers]
        for row, chosen in zip(found, self.picked, strict=False):  # or nobody is
            entries = dataclasses.asdict(chosen).items()
            row |= {f"line_up_{name}": value for name, value in entries}
        return {"evidence.csv": found}

    def arrays(self) -> dict[str, dict[str, NDArray[Any]]]:
        """Returns reconstructions.npz, if the pictures were asked for."""
        if not self.pictures:
            return {}
        rebuilt = np.stack([answer.inputs for answer in self.answers])
        victims = np.asarray([answer.weighed.victim for answer in self.answers])
        return {"reconstructions.npz": {"reconstruction": rebuilt, "victim": victims}}

    def figures(self) -> dict[str, Callable[[], Any]]:
        """Returns the pictures, if they were asked for and are pictures."""
        shape = self.answers[0].inputs.shape
        if not self.pictures or len(shape) != 4 or shape[-1] not in (1, 3):
            return {}
        pictures = [answer.inputs for answer in self.answers]
        titles = [
            f"{answer.weighed.folder}: {answer.weighed.unexplained:.1e} unexplained"
            for answer in self.answers
        ]
        return {"figures/victims.png": lambda: answers_grid(pictures, titles)}

    def show(self) -> None:
        """Prints the table that the command line prints."""
        Console(highlight=False).print(unseen_table(self.to_dict()))


def _median(values: list[float]) -> float | None:
    return statistics.median(values) if values else None
