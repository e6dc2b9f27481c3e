"""The result of a training: the curve, what it cost, and what it spent."""

import dataclasses
import json
import statistics
from pathlib import Path
from typing import Any

from gradaudit.federation.run import RoundRecord, Stopped
from gradaudit.types import PyTree

SCHEMA_VERSION = 1


@dataclasses.dataclass(frozen=True)
class TrainingResult:
    """Everything of one training; `config` runs it again."""

    config: dict[str, Any]
    environment: dict[str, Any]
    params: PyTree
    history: tuple[RoundRecord, ...]
    tensors: tuple[str, ...]  # names, in the order of the norms
    stopped: Stopped
    accounting: dict[str, Any] | None
    limitations: tuple[str, ...]

    @property
    def accuracy(self) -> float | None:
        """The last measured validation accuracy."""
        measured = [r.accuracy for r in self.history if r.accuracy is not None]
        return measured[-1] if measured else None

    @property
    def milliseconds(self) -> float | None:
        """Milliseconds per client and local iteration, median over the rounds.

        The first round, which compiles, is left out when there are others.
        """
        steps = self.config["federation"]["local_steps"]
        costs = [
            1e3 * record.seconds / (record.clients * steps)
            for record in self.history[1:] or self.history
            if record.clients
        ]
        return statistics.median(costs) if costs else None

    def to_dict(self) -> dict[str, Any]:
        """Returns result.json (schema_version 1)."""
        last = self.history[-1] if self.history else None
        return {
            "schema_version": SCHEMA_VERSION,
            "config": self.config,
            "environment": self.environment,
            "stopped": {
                "reason": self.stopped.name.lower(),
                "says": self.stopped.value,
            },
            "metrics": {
                "rounds": last.round if last else 0,
                "accuracy": self.accuracy,
                "loss": last.loss if last else None,
                "milliseconds_per_client_and_iteration": self.milliseconds,
            },
            "tensors": list(self.tensors),
            "rounds": [dataclasses.asdict(record) for record in self.history],
            "accounting": self.accounting,
            "limitations": list(self.limitations),
        }

    def save(self, folder: Path | str) -> Path:
        """Writes result.json and curve.png; returns the folder."""
        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        partial = target / "result.json.partial"
        partial.write_text(json.dumps(self.to_dict(), indent=2) + "\n")
        partial.replace(target / "result.json")
        plot_curve(self, target / "curve.png")
        return target


def plot_curve(result: TrainingResult, path: Path) -> None:
    """Draws accuracy, and the gradient's norm before and after the defense."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.4), layout="constrained")
    accuracy, norms = figure.subplots(1, 2)
    measured = [r for r in result.history if r.accuracy is not None]
    accuracy.plot([r.round for r in measured], [r.accuracy for r in measured], ".-")
    accuracy.set(xlabel="round", ylabel="validation accuracy")
    rounds = [r.round for r in result.history]
    for name, style in (("norm_before", "-"), ("norm_after", "--")):
        values = [_joint(getattr(r, name)) for r in result.history]
        label = name.replace("norm_", "") + " the defense"
        norms.plot(rounds, values, style, label=label)
    norms.set(xlabel="round", ylabel="norm of the batch gradient", yscale="log")
    norms.legend()
    figure.savefig(path, dpi=150)


def _joint(norms: tuple[float, ...]) -> float:
    return float(sum(norm**2 for norm in norms) ** 0.5)
