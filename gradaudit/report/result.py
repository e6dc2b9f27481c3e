"""Results: what was asked, what came out, and what it is worth."""

import abc
import csv
import dataclasses
import json
import math
import pathlib
import statistics
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradaudit import files
from gradaudit.federation.training import RoundRecord, Stopped
from gradaudit.report import metrics
from gradaudit.types import PyTree

SCHEMA_VERSION = 2


def write_figure(path: pathlib.Path, figure: Any) -> None:
    """Writes a matplotlib Figure in the format of the name, whole or not at all."""
    kind = path.suffix.lstrip(".") or "png"
    files.write_whole(path, lambda file: figure.savefig(file, format=kind, dpi=130))


class Result(abc.ABC):
    """What a run leaves: `to_dict` is result.json, the other methods its other files.

    One writer for all commands: `save` puts whole files into one folder.
    """

    @abc.abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Returns result.json: schema_version, spec, environment, and what came out."""

    def rows(self) -> dict[str, list[dict[str, Any]]]:
        """Returns the tables by file name, as rows: `{"trials.csv": [...]}`."""
        return {}

    def arrays(self) -> dict[str, dict[str, NDArray[Any]]]:
        """Returns the arrays by file name: `{"reconstructions.npz": {...}}`."""
        return {}

    def figures(self) -> dict[str, Callable[[], Any]]:
        """Returns by file name what draws each figure (a matplotlib Figure)."""
        return {}

    def save(self, folder: pathlib.Path | str) -> pathlib.Path:
        """Writes every file whole, result.json last; returns the folder."""
        target = pathlib.Path(folder)
        for name, rows in self.rows().items():
            files.write_csv(target / name, rows)
        for name, arrays in self.arrays().items():
            files.write_arrays(target / name, arrays)
        for name, draw in self.figures().items():
            write_figure(target / name, draw())
        files.write_json(target / "result.json", self.to_dict())
        return target


def _numbers() -> "array[float]":
    """Thousands of victims leave hundreds of numbers each: 8 bytes, no objects."""
    return array("d")


@dataclasses.dataclass
class Trace:
    """What was seen of one trial."""

    rmse: "array[float]" = dataclasses.field(default_factory=_numbers)  # as selected
    objective: "array[float]" = dataclasses.field(default_factory=_numbers)
    oracle: float = math.inf  # best of all iterates against the truth
    frames: dict[int, NDArray[np.float32]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Score:
    """One victim's row of trials.csv."""

    victim: int
    labels: tuple[int, ...]
    recovered_labels: tuple[int, ...]
    rmse: float
    rmse_raw: float
    psnr: float
    ssim: float | None
    success: bool
    iterations_to_success: int | None
    iterations: int
    evaluations: int
    objective: float
    status: str
    label_accuracy: float
    oracle_rmse: float


@dataclasses.dataclass(frozen=True)
class Picture:
    """One victim to look at: the truth, the iterates over time, what was handed in."""

    victim: int
    truth: NDArray[np.float32]  # (batch, *shape)
    frames: dict[int, NDArray[np.float32]]  # iteration -> (batch, *shape)
    final: NDArray[np.float32]
    rmse: float


@dataclasses.dataclass(frozen=True)
class AttackResult:
    """Everything of one attack; `save` writes it, `config` runs it again."""

    config: dict[str, Any]
    threat: dict[str, Any]
    environment: dict[str, Any]
    scores: list[Score]
    traces: list[Trace]
    guess: metrics.Rate
    timing: dict[str, float]
    accounting: dict[str, Any] | None
    limitations: list[str]
    inputs: NDArray[np.float32]  # (victims, batch, *shape) as handed in
    truth: NDArray[np.float32]  # (victims, batch, *shape)
    pictures: list[Picture]
    interrupted: bool = False

    @property
    def asr(self) -> metrics.Rate:
        """The attack success rate, attacker-selected, with its interval."""
        return metrics.rate(sum(s.success for s in self.scores), len(self.scores))

    @property
    def rmse(self) -> dict[str, float | None]:
        """Mean, median and worst RMSE (clipped), attacker-selected."""
        return _summary([s.rmse for s in self.scores])

    def to_dict(self) -> dict[str, Any]:
        """Returns result.json (schema_version 1); infinities become null."""
        threshold = self.config["success_rmse"]
        reached = [
            s.iterations_to_success
            for s in self.scores
            if s.iterations_to_success is not None
        ]
        oracle = metrics.rate(
            sum(s.oracle_rmse <= threshold for s in self.scores), len(self.scores)
        )
        similarity = [s.ssim for s in self.scores if s.ssim is not None]
        result: dict[str, Any] = _finite(
            {
                "schema_version": SCHEMA_VERSION,
                "config": self.config,
                "threat": self.threat,
                "environment": self.environment,
                "victims": len(self.scores),
                "interrupted": self.interrupted,
                "metrics": {
                    "asr": {
                        **dataclasses.asdict(self.asr),
                        "threshold": threshold,
                        "guess": self.guess.value,
                    },
                    "rmse": self.rmse,
                    "rmse_raw": _summary([s.rmse_raw for s in self.scores]),
                    "psnr": _summary([s.psnr for s in self.scores]),
                    "ssim": _summary(similarity),
                    "iterations": {
                        "median": statistics.median(reached) if reached else None,
                        "mean": statistics.fmean(reached) if reached else None,
                        "cap": self.config["iterations"],
                        "run_median": _summary([s.iterations for s in self.scores])[
                            "median"
                        ],
                    },
                    "evaluations": _summary([s.evaluations for s in self.scores]),
                    "label_accuracy": _mean([s.label_accuracy for s in self.scores]),
                },
                "oracle": {
                    "asr": dataclasses.asdict(oracle),
                    "rmse": _summary([s.oracle_rmse for s in self.scores]),
                },
                "status": {
                    name: sum(s.status == name for s in self.scores)
                    for name in sorted({s.status for s in self.scores})
                },
                "timing": self.timing,
                "accounting": self.accounting,
                "limitations": self.limitations,
            }
        )
        return result

    def save(self, folder: pathlib.Path | str) -> pathlib.Path:
        """Writes result.json, trials.csv, reconstructions.npz and figures/."""
        from gradaudit.report import figures

        target = pathlib.Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        _write(target / "result.json", json.dumps(self.to_dict(), indent=2) + "\n")
        with (target / "trials.csv").open("w", newline="") as file:
            rows = [dataclasses.asdict(score) for score in self.scores]
            writer = csv.DictWriter(
                file, [field.name for field in dataclasses.fields(Score)]
            )
            writer.writeheader()
            for row in rows:
                writer.writerow(
                    {
                        key: " ".join(map(str, v)) if isinstance(v, tuple) else v
                        for key, v in row.items()
                    }
                )
        np.savez_compressed(
            target / "reconstructions.npz",
            truth=self.truth,
            reconstruction=self.inputs,
            victim=np.asarray([s.victim for s in self.scores]),
        )
        figures.save_all(self, target / "figures")
        return target

    def show(self) -> None:
        """Prints the table that the command line prints."""
        from rich.console import Console

        from gradaudit.report.tables import attack_table

        Console(highlight=False).print(attack_table(self.to_dict()))


def _summary(values: list[Any]) -> dict[str, float | None]:
    if not values:
        return {"mean": None, "median": None, "worst": None}
    return {
        "mean": statistics.fmean(values),
        "median": statistics.median(values),
        "worst": max(values),
    }


def _mean(values: list[float]) -> float | None:
    return statistics.fmean(values) if values else None


def _finite(value: Any) -> Any:
    """Returns the value with NaN and infinities as null, so that it is valid JSON."""
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _write(path: pathlib.Path, text: str) -> None:
    """Writes whole or not at all."""
    partial = path.with_suffix(path.suffix + ".partial")
    partial.write_text(text)
    partial.replace(path)


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
        steps = self.config["setting"]["local_steps"]
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
        from gradaudit.report import figures

        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        partial = target / "result.json.partial"
        partial.write_text(json.dumps(self.to_dict(), indent=2) + "\n")
        partial.replace(target / "result.json")
        figures.plot_curve(self, target / "curve.png")
        return target
