"""`ga.train`: federated or centralized training under a defense."""

from collections.abc import Callable
from pathlib import Path

import jax

from gradaudit import environment, tree
from gradaudit.config import Federation
from gradaudit.data import Dataset, Partition
from gradaudit.defenses.base import Defense
from gradaudit.errors import require
from gradaudit.federation import checkpoint
from gradaudit.federation.budget import affordable_rounds
from gradaudit.federation.rounds import CHUNK
from gradaudit.federation.run import Progress, train_until
from gradaudit.training_plan import Selection, make_plan
from gradaudit.training_result import TrainingResult
from gradaudit.types import Model

DEFAULT_DATASET = "digits"
CHECKPOINT = "checkpoint.npz"


def train(
    dataset: str | tuple[Dataset, Dataset] = DEFAULT_DATASET,
    defense: str | Defense = "none",
    model: str | Model | None = None,
    standardize: bool = False,
    federation: Federation | None = None,
    partition: Partition | None = None,
    selection: Selection = Selection.FIXED,
    public_examples: int = 0,
    seed: int = 0,
    target_accuracy: float | None = None,
    target_epsilon: float | None = None,
    delta: float = 1e-5,
    evaluate_every: int = 1,
    chunk: int = CHUNK,
    out: Path | str | None = None,
    resume: bool = False,
    on_round: Callable[[Progress], None] = lambda progress: None,
) -> TrainingResult:
    """Trains until the rounds are done or a target is reached.

    Args:
      dataset: a name with `train` and `test` splits, or (training, validation).
      defense: a defense, or its name with parameters (`fed-cdp:clip=4,sigma=6`).
      model: a model or its name; by default `cnn` for images and `mlp` for tables.
      standardize: the model scales features to mean 0 and deviation 1 first.
      federation: the setting; the dataset's published one, or a small one.
      partition: who holds what; the published one, or IID.
      selection: how the clients of a round are selected.
      public_examples: the server keeps this many training examples for itself and
        fine-tunes on them after each round.
      seed: everything random follows from it.
      target_accuracy: stop at this validation accuracy.
      target_epsilon: stop before the defense's claim exceeds this.
      delta: of the privacy claim.
      evaluate_every: rounds between two validations.
      chunk: clients vectorised together (speed only).
      out: a folder for the checkpoint, result.json and curve.png.
      resume: go on from the checkpoint in `out`.
      on_round: is called with every finished round.
    """
    environment.configure()
    plan = make_plan(
        dataset, defense, model, standardize, federation, partition, selection,
        public_examples, seed,
    )  # fmt: skip
    training = plan.training(evaluate_every)
    init_key, key = jax.random.split(jax.random.key(seed))
    start = training.start(plan.model.init(init_key))
    tensors = tree.names(start.state.params)
    rounds = plan.federation.rounds
    if target_epsilon is not None:
        rounds = affordable_rounds(
            target_epsilon, plan.defense, plan.federation, len(tensors), delta
        )
    saved = Path(out) / CHECKPOINT if out is not None else None
    require(saved is not None or not resume, "to resume, say which folder with --out")
    if saved is not None and resume:
        start = checkpoint.load(saved, start, plan.fingerprint())

    def finished(progress: Progress) -> None:
        if saved is not None:
            checkpoint.save(saved, progress, plan.fingerprint())
        on_round(progress)

    progress, stopped = train_until(
        training, key, start, rounds, target_accuracy, chunk, finished
    )
    targets = {"target_accuracy": target_accuracy, "target_epsilon": target_epsilon}
    result = TrainingResult(
        config=plan.config() | targets | {"delta": delta},
        environment=environment.describe(),
        params=progress.state.params,
        history=progress.history,
        tensors=tensors,
        stopped=stopped,
        accounting=plan.accounting(int(progress.state.round), len(tensors), delta),
        limitations=plan.limitations(),
    )
    if out is not None:
        result.save(out)
    return result
