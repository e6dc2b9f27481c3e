"""`ga.train`: federated or centralized training under a defense."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradaudit import machine, tree
from gradaudit.data import (
    PUBLISHED_HOLDINGS,
    Dataset,
    FullCopy,
    Iid,
    Partition,
    load_dataset,
)
from gradaudit.defenses import parse as parse_defense
from gradaudit.defenses.base import Defense
from gradaudit.errors import require
from gradaudit.federation import checkpoint
from gradaudit.federation.population import Population
from gradaudit.federation.recipe import Recipe
from gradaudit.federation.sampling import ActiveSelection, FixedSize, Poisson, Sampler
from gradaudit.federation.setting import (
    PAPER_SETTINGS,
    Selection,
    Setting,
    setting_as_plain,
)
from gradaudit.federation.training import Progress, PublicData, Training, train_until
from gradaudit.models.model import Model
from gradaudit.models.model import standardize as standardized
from gradaudit.models.networks import build_model
from gradaudit.privacy import epsilon
from gradaudit.privacy.calibrate import affordable_rounds
from gradaudit.privacy.statement import privacy_as_plain
from gradaudit.report.result import TrainingResult

DEFAULT_DATASET = "digits"


CHECKPOINT = "checkpoint.npz"


# For data without a published setting: seconds on a laptop.
_SMALL = Setting(
    clients=100,
    clients_per_round=10,
    local_steps=20,
    batch_size=5,
    rounds=20,
    examples=100,
)


_SAMPLERS: dict[Selection, Callable[[int, int], Sampler]] = {
    Selection.FIXED: FixedSize,
    Selection.POISSON: Poisson,
    Selection.ACTIVE: ActiveSelection,
}


def default_setting(dataset: str) -> Setting:
    """Returns the dataset's published setting, or a small one."""
    return PAPER_SETTINGS.get(dataset, _SMALL)


def centralized_setting(
    examples: int,
    batch_size: int = 100,
    rounds: int = 1000,
    learning_rate: float = 0.05,
) -> Setting:
    """Returns one client with all the data and a step per round (Wei & Liu 2022)."""
    return Setting(
        clients=1,
        clients_per_round=1,
        local_steps=1,
        batch_size=batch_size,
        rounds=rounds,
        examples=examples,
        learning_rate=learning_rate,
    )


@dataclasses.dataclass(frozen=True)
class Plan:
    """Everything that decides a training's numbers, before any of it is built."""

    training_data: Dataset
    validation: Dataset
    defense: Defense
    defense_name: str
    model: Model
    setting: Setting
    public_examples: int
    seed: int

    def config(self) -> dict[str, Any]:
        """Returns what runs the training again, as plain values."""
        return {
            "command": "train",
            "dataset": self.training_data.name,
            "defense": self.defense_name,
            "defense_parameters": {k: str(v) for k, v in self.defense.parameters},
            "model": self.model.name,
            "setting": setting_as_plain(self.setting),
            "public_examples": self.public_examples,
            "seed": self.seed,
        }

    def fingerprint(self) -> str:
        """Returns the identity of a training: more rounds of it are the same one."""
        config = self.config()
        del config["setting"]["rounds"]
        return json.dumps(config, sort_keys=True)

    def training(self, evaluate_every: int) -> Training:
        """Returns the training with its clients."""
        setting = self.setting
        public, private = _held_out(self.training_data, self.public_examples, self.seed)
        assert setting.partition is not None
        held = setting.partition.assign(
            self.seed, private.labels, setting.clients, setting.examples
        )
        sampler = _SAMPLERS[setting.selection]
        return Training(
            recipe=Recipe.of(self.model, self.defense, setting),
            population=Population.of(private, held),
            sampler=sampler(setting.clients, setting.clients_per_round),
            validation=self.validation,
            public=public,
            evaluate_every=evaluate_every,
        )

    def accounting(
        self, rounds: int, tensors: int, delta: float
    ) -> dict[str, Any] | None:
        """Returns what the rounds have spent; None without noise."""
        if not self.defense.mechanisms or not rounds:
            return None
        done = dataclasses.replace(self.setting, rounds=rounds)
        return privacy_as_plain(
            epsilon(self.defense, done, delta=delta, tensors=tensors)
        )

    def limitations(self) -> tuple[str, ...]:
        """Returns sentences that the numbers must not be read without."""
        notes = []
        if self.defense.mechanisms:
            fixed = self.setting.selection is not Selection.POISSON
            notes.append(
                f"Batches{' and rounds' if fixed else ''} have a fixed size; the "
                "accountant assumes independent coins (Poisson sampling)."
            )
        if self.setting.selection is Selection.ACTIVE:
            notes.append(
                "Active selection looks at the clients' losses: no amplification by "
                "sampling clients holds, and the losses themselves are released."
            )
        return tuple(notes)


def make_plan(
    dataset: str | tuple[Dataset, Dataset],
    defense: str | Defense,
    model: str | Model | None,
    standardize: bool,
    setting: Setting | None,
    partition: Partition | None,
    selection: Selection | None,
    public_examples: int,
    seed: int,
) -> Plan:
    """Returns the plan, with the published setting where nothing else is said."""
    data, validation = _datasets(dataset)
    guard = parse_defense(defense) if isinstance(defense, str) else defense
    setting = setting or default_setting(data.name)
    setting = dataclasses.replace(
        setting,
        partition=partition or _default_partition(data.name, setting),
        selection=selection or setting.selection,
    )
    return Plan(
        training_data=data,
        validation=validation,
        defense=guard,
        defense_name=defense if isinstance(defense, str) else guard.name,
        model=_model(model, data, standardize),
        setting=setting,
        public_examples=public_examples,
        seed=seed,
    )


def _datasets(dataset: str | tuple[Dataset, Dataset]) -> tuple[Dataset, Dataset]:
    if isinstance(dataset, str):
        return load_dataset(dataset, "train"), load_dataset(dataset, "test")
    return dataset


def _model(model: str | Model | None, data: Dataset, scaled: bool) -> Model:
    if not isinstance(model, Model):
        name = model or ("cnn" if len(data.shape) == 3 else "mlp")
        model = build_model(name, data.shape, data.classes)
    return standardized(model, data.inputs) if scaled else model


def _default_partition(dataset: str, setting: Setting) -> Partition:
    if setting.partition is not None:
        return setting.partition
    if setting.clients == 1:
        return FullCopy()
    holding = PUBLISHED_HOLDINGS.get(dataset)
    return holding.partition if holding else Iid()


def _held_out(
    data: Dataset, count: int, seed: int
) -> tuple[PublicData | None, Dataset]:
    """Returns the server's examples, and the others; no example is both."""
    if count == 0:
        return None, data
    require(
        0 < count < len(data),
        f"public examples must lie in 1..{len(data) - 1}, got {count}",
    )
    order = np.random.default_rng(seed).permutation(len(data))
    own = data.take(order[:count])
    public = PublicData(
        jnp.asarray(own.inputs), jnp.asarray(own.labels), batch_size=min(50, count)
    )
    return public, data.take(np.sort(order[count:]))


def train(
    dataset: str | tuple[Dataset, Dataset] = DEFAULT_DATASET,
    defense: str | Defense = "none",
    model: str | Model | None = None,
    standardize: bool = False,
    setting: Setting | None = None,
    partition: Partition | None = None,
    selection: Selection | None = None,
    public_examples: int = 0,
    seed: int = 0,
    target_accuracy: float | None = None,
    target_epsilon: float | None = None,
    delta: float = 1e-5,
    evaluate_every: int = 1,
    chunk: int | None = None,
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
      setting: the setting; the dataset's published one, or a small one.
      partition: who holds what; by default the setting's, the published one, or IID.
      selection: how the clients of a round are selected; by default the setting's.
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
    machine.configure()
    plan = make_plan(
        dataset, defense, model, standardize, setting, partition, selection,
        public_examples, seed,
    )  # fmt: skip
    training = plan.training(evaluate_every)
    init_key, key = jax.random.split(jax.random.key(seed))
    start = training.start(plan.model.init(init_key))
    tensors = tree.names(start.state.params)
    rounds = plan.setting.rounds
    if target_epsilon is not None:
        rounds = affordable_rounds(
            target_epsilon, plan.defense, plan.setting, len(tensors), delta
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
        environment=machine.describe(),
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
