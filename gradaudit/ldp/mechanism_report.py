"""The audit of any mechanism as one call: is the noise really on?"""

import dataclasses
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from gradaudit import environment
from gradaudit.data import load_dataset
from gradaudit.ldp.bounds import SIGNIFICANCE
from gradaudit.ldp.claims import DELTA
from gradaudit.ldp.config import check_significance
from gradaudit.ldp.pairs import Neighbours
from gradaudit.ldp.release import (
    TRIALS,
    ReleaseResult,
    audit_release,
    total_trials,
)
from gradaudit.ldp.results import (
    CAVEATS,
    SCHEMA,
    Counter,
    Progress,
    plain_setting,
    silent,
    write_result,
)
from gradaudit.ldp.subjects import load_subject
from gradaudit.models import build_model


@dataclasses.dataclass(frozen=True)
class MechanismReport:
    """An audit of one mechanism's claim, and how to run it again."""

    settings: dict[str, Any]
    name: str
    result: ReleaseResult
    caveats: tuple[str, ...]
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Returns the content of result.json."""
        return {
            "schema_version": SCHEMA,
            "config": self.settings,
            "environment": environment.describe(),
            "mechanism": self.name,
            "result": self.result.as_json(),
            "caveats": list(self.caveats),
            "timing": {"total_s": round(self.seconds, 3)},
            "limitations": list(CAVEATS),
        }

    def save(self, folder: Path) -> Path:
        """Writes result.json; returns the folder."""
        write_result(folder, self.to_dict())
        return folder


def mechanism_audit(
    mechanism: str,
    *,
    epsilon: float | None = None,
    delta: float = DELTA,
    neighbours: Neighbours | None = None,
    dataset: str = "digits",
    model: str = "ldp-cnn",
    trials: int = TRIALS,
    significance: float = SIGNIFICANCE,
    seed: int = 0,
    progress: Progress = silent,
) -> MechanismReport:
    """Tests the claim of a defense, or of a function in a file, as a black box.

    Args:
      mechanism: `fed-cdp:clip=4,sigma=6`, `file.py:defense` or `file.py:function`,
        where the function is `(key, vector) -> vector` in jax.numpy.
      epsilon: the claim; a defense's own when absent, required for a function.
      delta: of the claim of Gaussian noise.
      neighbours: which pairs the claim covers, see `Neighbours`.
      dataset: the data whose shapes the model has.
      model: whose parameters have the shapes of what the mechanism gets.
      trials: of the test.
      significance: 1 - confidence of the bound.
      seed: everything random follows from it.
      progress: told about progress.
    """
    settings = {key: plain_setting(value) for key, value in locals().items()}
    del settings["progress"]
    check_significance(significance)
    data = load_dataset(dataset)
    network = build_model(model, data.shape, data.classes)
    key = jax.random.key(seed)
    shapes = jax.eval_shape(network.init, key)  # a mechanism sees no parameters
    params = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    subject = load_subject(
        mechanism, params, neighbours=neighbours, epsilon=epsilon, delta=delta
    )
    tell = Counter(total_trials(len(subject.pairs), trials), progress)
    start = time.perf_counter()
    result = audit_release(
        jax.random.fold_in(key, 1),
        subject.release,
        subject.pairs,
        subject.claim,
        closed_form=subject.closed_form,
        trials=trials,
        significance=significance,
        advance=lambda count: tell(subject.name, count),
    )
    seconds = time.perf_counter() - start
    return MechanismReport(settings, subject.name, result, subject.caveats, seconds)
