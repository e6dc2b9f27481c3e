"""A captured observation and n candidates: which of them was it?"""

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray
from scipy import special

from gradaudit import files, machine
from gradaudit.audit.captured_observation import load_observation
from gradaudit.data import Dataset, load_dataset
from gradaudit.defenses import parse as parse_defense
from gradaudit.defenses.transforms import Defense, init_states
from gradaudit.distinguish.line_up import scores_of, told
from gradaudit.errors import InputError
from gradaudit.federation.population import Population
from gradaudit.federation.setting import Setting
from gradaudit.models.adapters import model_for
from gradaudit.models.model import Model
from gradaudit.privacy.certificate import Certificate, certificate
from gradaudit.privacy.plan import PrivacyPlan
from gradaudit.report.result import SCHEMA_VERSION, Result
from gradaudit.spec import Spec
from gradaudit.types import LocalTraining


@dataclasses.dataclass(frozen=True)
class IdentifyResult(Result):
    """How likely each candidate is, given what was captured; `spec` runs it again."""

    spec: Spec
    environment: dict[str, Any]
    posterior: NDArray[np.float64]  # (candidates,) equal priors
    certified: Certificate
    looks: int
    limitations: tuple[str, ...]

    @property
    def picked(self) -> int:
        """The likeliest candidate."""
        return int(self.posterior.argmax())

    def to_dict(self) -> dict[str, Any]:
        """Returns result.json."""
        order = np.argsort(-self.posterior, kind="stable")[:10]
        plain: dict[str, Any] = files.finite(
            {
                "schema_version": SCHEMA_VERSION,
                "spec": self.spec.plain(),
                "environment": self.environment,
                "status": "done",
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
                "limitations": list(self.limitations),
            }
        )
        return plain

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
    total, tensors, training, leakage = 0.0, 1, LocalTraining(), 2
    places = (guard.per_example, guard.update, guard.server)
    for folder in folders:
        observation = load_observation(
            pathlib.Path(folder), net, noisy=bool(guard.mechanisms)
        )
        training, leakage = observation.training, int(observation.leakage)
        each = 1 if leakage == 2 else training.examples
        rows = np.arange(len(data) // each * each).reshape(-1, each)
        if len(rows) < 2:
            raise InputError(f"a line-up needs 2 candidates of {each} examples each")
        states = tuple(init_states(part, observation.params) for part in places)
        known = told(observation, places, states)  # type: ignore[arg-type]
        people = Population.of(data, list(rows))
        total = total + scores_of(net, observation, known, people)[0].astype(float)
        tensors = len(jax.tree.leaves(observation.params))
    posterior = special.softmax(total)
    setting = Setting(
        clients=1,
        clients_per_round=1,
        local_steps=training.local_steps,
        batch_size=training.batch_size,
        rounds=1,
        examples=training.examples,
    )
    return IdentifyResult(
        spec=Spec.of("identify", **asked),
        environment=machine.describe(),
        posterior=np.asarray(posterior),
        certified=certificate(
            PrivacyPlan(guard, setting, tensors=tensors),
            type=leakage,
            candidates=len(posterior),
            looks=len(folders),
        ),
        looks=len(folders),
        limitations=(
            "The posterior takes one of the candidates to be the victim, all equally "
            "likely, and the defense to be what it was said to be.",
        ),
    )
