"""`ga.train`: federated or centralized training under a defense."""

import dataclasses
import functools
import pathlib
import statistics as numbers
from collections.abc import Callable, Collection
from typing import Any

from numpy.typing import NDArray

from gradaudit import files, machine, tree
from gradaudit.audit.training_plan import Plan, Statistics, make_plan
from gradaudit.data import Dataset
from gradaudit.defenses.transforms import Defense
from gradaudit.errors import InputError, at_least, positive, within_unit
from gradaudit.federation.checkpoint import RunFolder
from gradaudit.federation.recipe import ServerState
from gradaudit.federation.setting import Setting, setting_as_plain
from gradaudit.federation.training import Progress, RoundRecord, Stopped, train_until
from gradaudit.models.model import Model
from gradaudit.report import figures
from gradaudit.report.result import PARAMETERS, SCHEMA_VERSION, Result
from gradaudit.spec import Spec
from gradaudit.types import PyTree

DEFAULT_DATASET = "digits"


@dataclasses.dataclass(frozen=True)
class TrainingResult(Result):
    """Everything of one training."""

    spec: Spec
    config: dict[str, Any]  # for people; `spec` is what runs it again
    environment: dict[str, Any]
    params: PyTree
    buffers: PyTree
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
        return numbers.median(costs) if costs else None

    def to_dict(self) -> dict[str, Any]:
        """Returns result.json; what is not finite is null."""
        last = self.history[-1] if self.history else None
        diverged = self.stopped is Stopped.DIVERGED
        whole: dict[str, Any] = {
            "schema_version": SCHEMA_VERSION,
            "spec": self.spec.plain(),
            "config": self.config,
            "environment": self.environment,
            "status": _STATUS.get(self.stopped, "finished"),
            "stopped": {
                "reason": self.stopped.name.lower(),
                "says": self.stopped.value,
            },
            "metrics": {
                "rounds": last.round if last else 0,
                "accuracy": None if diverged else self.accuracy,
                "loss": last.loss if last and not diverged else None,
                "milliseconds_per_client_and_iteration": self.milliseconds,
            },
            "tensors": list(self.tensors),
            "rounds": [_without_names(record) for record in self.history],
            "accounting": self.accounting,
            "limitations": list(self.limitations),
        }
        plain: dict[str, Any] = files.finite(whole)
        return plain

    def rows(self) -> dict[str, list[dict[str, Any]]]:
        """Returns rounds.csv, which `gradaudit account --log` reads."""
        return {"rounds.csv": [_without_names(record) for record in self.history]}

    def arrays(self) -> dict[str, dict[str, NDArray[Any]]]:
        """Returns parameters.npz, named tensors: what `attack --params` reads.

        Not if inputs were standardised: the named network alone is not what was trained
        then (`attack --run` knows of it).
        """
        if self.config["standardize"]:
            return {}
        return {PARAMETERS: tree.named(self.params) | tree.named(self.buffers)}

    def figures(self) -> dict[str, Callable[[], Any]]:
        """Returns the curves."""
        title = f"{self.config['dataset']}, {self.config['defense']}"
        if self.accounting is not None:
            spent = self.accounting["epsilon"]["accounted"]
            text = spent if isinstance(spent, str) else f"{spent:.3g}"
            title += f": ε = {text} at δ = {self.config['delta']:g}"
        draw = functools.partial(figures.training_curve, self.history, title)
        return {"curve.png": draw}


_STATUS = {Stopped.DIVERGED: "diverged", Stopped.INTERRUPTED: "interrupted"}


def _without_names(record: RoundRecord) -> dict[str, Any]:
    """Returns a record as the result has it; history.jsonl knows who took part."""
    plain = dataclasses.asdict(record)
    del plain["participants"]
    return plain


def train(
    dataset: str | tuple[Dataset, Dataset] = DEFAULT_DATASET,
    defense: str | Defense = "none",
    model: str | Model | None = None,
    standardize: bool = False,
    statistics: Statistics = Statistics.PRIVATE,
    setting: Setting | None = None,
    public_examples: int = 0,
    seed: int = 0,
    target_accuracy: float | None = None,
    target_epsilon: float | None = None,
    delta: float = 1e-5,
    evaluate_every: int = 1,
    chunk: int | None = None,
    record: int | Collection[int] | None = None,
    out: pathlib.Path | str | None = None,
    resume: bool = False,
    overwrite: bool = False,
    on_round: Callable[[Progress], None] = lambda progress: None,
) -> TrainingResult:
    """Trains until the rounds are done or a target is reached.

    Args:
      dataset: a name with `train` and `test` splits, or (training, validation).
      defense: a defense, or its name with parameters (`fed-cdp:clip=4,sigma=6`).
      model: a model or its name; by default `cnn` for images and `mlp` for tables.
      standardize: the model scales features to mean 0 and deviation 1 first.
      statistics: whose means and deviations it has then.
      setting: clients, rounds, draws ...; the dataset's published one, or a small one.
      public_examples: the server keeps so many, and fine-tunes on them every round.
      seed: everything random follows from it.
      target_accuracy: stop at this validation accuracy.
      target_epsilon: stop before what the training spends exceeds this.
      delta: of the privacy claim.
      evaluate_every: rounds between two validations.
      chunk: clients vectorised together (speed only).
      record: rounds whose start is kept in `out` for attacks: every so many, or
        these; by default 1, 2, 4, 8 and so on. The last one always is.
      out: a folder for all that is written. The same training goes on from its last
        round there; a folder of another one is refused.
      resume: refuse to begin anew where there is nothing to go on from.
      overwrite: begin anew, whatever is in `out`.
      on_round: is called with every finished round.
    """
    machine.configure()
    asked = {
        "target_accuracy": target_accuracy,
        "target_epsilon": target_epsilon,
        "delta": delta,
    }
    within_unit(delta=delta)
    positive(target_epsilon=target_epsilon)
    if not (target_accuracy is None or 0 < target_accuracy <= 1):
        raise InputError(f"target_accuracy must lie in (0, 1], got {target_accuracy}")
    every = record if isinstance(record, int) else None
    at_least(1, evaluate_every=evaluate_every, chunk=chunk, record=every)
    plan = make_plan(
        dataset, defense, model, standardize, statistics, setting, public_examples, seed
    )
    training, key, start = plan.begin(evaluate_every)
    rounds = plan.affordable(start.state.params, target_epsilon, delta)
    spec = plan.spec(**asked, evaluate_every=evaluate_every)
    folder = RunFolder(out, spec, plan.fingerprint, record)
    start = training.placed(folder.open(start, resume, overwrite))

    def finished(progress: Progress) -> None:
        folder.keep(progress)
        on_round(progress)

    progress, stopped = train_until(
        training, key, start, rounds, target_accuracy, chunk, finished
    )
    folder.close(progress)
    result = _result(plan, spec, asked, progress.state, folder.history, stopped)
    if out is not None:
        result.save(out)
    return result


def _result(
    plan: Plan,
    spec: Spec,
    asked: dict[str, Any],
    state: ServerState,
    history: list[RoundRecord],
    stopped: Stopped,
) -> TrainingResult:
    tensors = tree.names(state.params)
    named = plan.defense if isinstance(plan.defense, str) else plan.guard.name
    config = {  # in words and numbers, for people
        "command": "train",
        "dataset": plan.data[0].name,
        "defense": named,
        "model": plan.network.name,
        "setting": setting_as_plain(plan.setting),
        "standardize": plan.standardize,
        "public_examples": plan.public_examples,
        "seed": plan.seed,
    }
    return TrainingResult(
        spec=spec,
        config=config | asked,
        environment=machine.describe(),
        params=state.params,
        buffers=state.buffers,
        history=tuple(history),
        tensors=tensors,
        stopped=stopped,
        accounting=plan.accounting(history, len(tensors), asked["delta"]),
        limitations=tuple(plan.limitations()),
    )
