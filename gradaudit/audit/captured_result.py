"""The result of an attack on captured updates whose truth nobody gave."""

import dataclasses
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from gradaudit import files
from gradaudit.audit.captured_scores import AGREEING, EXPLAINED, Answer, Picked
from gradaudit.report import metrics
from gradaudit.report.figures import answers_grid
from gradaudit.report.result import SCHEMA_VERSION, Result
from gradaudit.report.tables_of_leakage import unseen_table
from gradaudit.spec import Spec

_WARNING = (
    "No truth was given: 'determined' means that independent starts agree on an answer "
    "that explains what was sent, not that anybody compared it with the private data."
)


@dataclasses.dataclass(frozen=True)
class UnseenResult(Result):
    """What can be said without the truth; `spec` runs it again."""

    spec: Spec
    about: dict[str, Any]
    threat: dict[str, Any]
    environment: dict[str, Any]
    answers: tuple[Answer, ...]  # of the updates that were begun
    picked: tuple[Picked, ...]  # of each answer, if there were candidates
    asked: int  # updates
    mechanism: dict[str, Any] | None  # what they say of the noise
    timing: dict[str, float]
    limitations: tuple[str, ...]
    pictures: bool = False  # whether they are in the result
    interrupted: bool = False

    @property
    def determined(self) -> metrics.Rate:
        """The share of the updates whose answer the gradient determines."""
        hits = sum(answer.weighed.determined for answer in self.answers)
        return metrics.rate(hits, self.asked)

    def to_dict(self) -> dict[str, Any]:
        """Returns result.json."""
        plain: dict[str, Any] = files.finite(
            {
                "schema_version": SCHEMA_VERSION,
                "spec": self.spec.plain(),
                "about": self.about,
                "threat": self.threat,
                "environment": self.environment,
                "status": "interrupted" if self.interrupted else "done",
                "victims": {"asked": self.asked, "missing": self._missing()},
                "metrics": self._metrics(),
                "mechanism": self.mechanism,
                "timing": self.timing,
                "limitations": [*self.limitations, _WARNING],
            }
        )
        return plain

    def _missing(self) -> list[int]:
        begun = {answer.weighed.victim for answer in self.answers}
        return sorted(set(range(self.asked)) - begun)

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
            "updates": [
                dataclasses.asdict(row) | {"determined": row.determined} for row in rows
            ],
        }

    def rows(self) -> dict[str, list[dict[str, Any]]]:
        """Returns evidence.csv, a row for each update that was begun."""
        picks: list[Any] = list(self.picked) or [None] * len(self.answers)
        found = []
        for answer, chosen in zip(self.answers, picks, strict=True):
            row = dataclasses.asdict(answer.weighed)
            row["determined"] = answer.weighed.determined
            row |= (
                {}
                if chosen is None
                else {
                    f"line_up_{name}": value for name, value in chosen.to_dict().items()
                }
            )
            found.append(row)
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


def line_up_of(picked: Sequence[Picked]) -> dict[str, Any] | None:
    """Returns who was picked for each update, as result.json has it."""
    if not picked:
        return None
    return {
        "candidates": picked[0].candidates,
        "unexplained": _median([each.unexplained for each in picked]),
        "next_unexplained": _median([each.next_unexplained for each in picked]),
        "picks": [each.to_dict() for each in picked],
    }
