"""What a training is made from, before it runs and after it ran."""

import collections
import dataclasses
import enum
import functools
import hashlib
import json
import pathlib
from typing import Any

import jax
import numpy as np

from gradaudit import machine
from gradaudit.data import Dataset, FullCopy, Iid, load_dataset
from gradaudit.data.partition import Indices
from gradaudit.defenses import parse as parse_defense
from gradaudit.defenses.transforms import Defense
from gradaudit.errors import InputError, check_seed
from gradaudit.federation import checkpoint
from gradaudit.federation.recipe import Population, Recipe, ServerState
from gradaudit.federation.round import PublicData, hold_out
from gradaudit.federation.setting import PAPER_SETTINGS, Batches, Selection, Setting
from gradaudit.federation.training import Progress, RoundRecord, Training, sampler_of
from gradaudit.models.adapters import model_for
from gradaudit.models.model import Model
from gradaudit.models.model import standardize as standardized
from gradaudit.privacy import PrivacyPlan, affordable_rounds, copies_in, privacy_of
from gradaudit.privacy.statement import privacy_as_plain
from gradaudit.spec import Spec
from gradaudit.types import Key, PyTree

# For data without a published setting: seconds on a laptop.
_SMALL = Setting(
    clients=100,
    clients_per_round=10,
    local_steps=20,
    batch_size=5,
    rounds=20,
    examples=100,
)

_MOST_HELD = 10**8  # who holds what is kept in memory


class Statistics(enum.Enum):
    """Whose means and deviations a standardized model has."""

    PRIVATE = "private"  # of the clients' data, which no epsilon counts
    PUBLIC = "public"  # of the server's own examples


def default_setting(dataset: str) -> Setting:
    """Returns the dataset's published setting, or a small one."""
    return PAPER_SETTINGS.get(dataset, _SMALL)


def centralized_setting(examples: int) -> Setting:
    """Returns one client with all the data and a step per round (Wei & Liu 2022)."""
    return Setting(
        clients=1,
        clients_per_round=1,
        local_steps=1,
        batch_size=100,
        rounds=1000,
        examples=examples,
    )


@dataclasses.dataclass(frozen=True)
class Plan:
    """Everything that decides a training's numbers; what follows is made on demand.

    The fields are arguments of `train` under the same names.
    """

    dataset: str | tuple[Dataset, Dataset]
    defense: str | Defense
    model: str | Model
    standardize: bool
    statistics: Statistics
    setting: Setting
    public_examples: int
    seed: int

    @functools.cached_property
    def data(self) -> tuple[Dataset, Dataset]:
        """The training and the validation data."""
        return _datasets(self.dataset)

    @functools.cached_property
    def guard(self) -> Defense:
        """The defense itself."""
        return parse_defense(self.defense)

    @functools.cached_property
    def network(self) -> Model:
        """The model itself, with its statistics."""
        training, public = self.data[0], self._apart[0]
        model = model_for(self.model, training.shape, training.classes)
        if not self.standardize:
            return model
        if self.statistics is Statistics.PRIVATE:
            return standardized(model, training.inputs)
        if public is None:
            raise InputError("public statistics need --public-examples")
        return standardized(model, np.asarray(public.inputs))

    @functools.cached_property
    def held(self) -> Indices:
        """Who holds what, (clients, examples), of the data that is not the server's."""
        setting, (_, private) = self.setting, self._apart
        assert setting.partition is not None
        return setting.partition.assign(
            self.seed, private.labels, setting.clients, setting.examples
        )

    @functools.cached_property
    def _apart(self) -> tuple[PublicData | None, Dataset]:
        return hold_out(self.data[0], self.public_examples, self.seed)

    def begin(self, evaluate_every: int = 1) -> tuple[Training, Key, Progress]:
        """Returns the training, its key, and where it is before its first round."""
        public, private = self._apart
        clients = Population.of(private, self.held)
        training = Training(
            recipe=Recipe.of(self.network, self.guard, self.setting),
            population=machine.place(clients, shared=True),
            sampler=sampler_of(self.setting),
            validation=self.data[1],
            public=public,
            evaluate_every=evaluate_every,
        )
        init_key, key = jax.random.split(jax.random.key(self.seed))
        params = self.network.init(init_key)
        buffers = self.network.initial_buffers(init_key)
        return training, key, training.start(params, buffers)

    def spec(self, **others: Any) -> Spec:
        """Returns what runs the training again."""
        own = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return Spec.of("train", **own, **others)

    @functools.cached_property
    def fingerprint(self) -> str:
        """The identity of the training: more rounds of it are the same one.

        The user's files, and data given as objects, count by their content.
        """
        endless = dataclasses.replace(self.setting, rounds=1)
        once = dataclasses.replace(self, setting=endless).spec().plain()
        given = [] if isinstance(self.dataset, str) else self.dataset
        once["data"] = [data.digest for data in given]
        text = json.dumps(once, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def privacy(
        self, rounds: int, tensors: int, participations: int | None = None
    ) -> PrivacyPlan:
        """Returns what accounting reads of this training after these rounds."""
        done = dataclasses.replace(self.setting, rounds=rounds)
        return PrivacyPlan(
            self.guard,
            done,
            copies=copies_in(done, held=self.held),
            tensors=tensors,
            participations=participations,
        )

    def affordable(self, params: PyTree, target: float | None, delta: float) -> int:
        """Returns how many of the rounds stay within a target; all without one."""
        if target is None:
            return self.setting.rounds
        tensors = len(jax.tree.leaves(params))
        plan = self.privacy(self.setting.rounds, tensors)
        return affordable_rounds(target, plan, delta)

    def accounting(
        self, history: list[RoundRecord], tensors: int, delta: float
    ) -> dict[str, Any] | None:
        """Returns what the rounds have really spent; None without noise."""
        if not self.guard.mechanisms or not history:
            return None
        counts = collections.Counter(c for r in history for c in r.participants)
        most = max(counts.values(), default=0)
        plan = self.privacy(len(history), tensors, most)
        return privacy_as_plain(privacy_of(plan, delta=delta))

    def limitations(self) -> list[str]:
        """Returns sentences that the numbers must not be read without."""
        notes = []
        if self.setting.selection is Selection.ACTIVE:
            notes.append(
                "Active selection looks at the clients' losses: no amplification by "
                "sampling clients holds, and the losses themselves are released."
            )
        if self.setting.batches is Batches.POISSON:
            notes.append(
                "A Poisson batch is cut where it exceeds the room that is kept for "
                "it: each step adds at most 1e-10 to delta."
            )
        if self.standardize and self.statistics is Statistics.PRIVATE:
            notes.append(
                "The features' means and deviations are those of the private data, "
                "without noise, and part of the model: no epsilon counts them."
            )
        return notes


def _datasets(dataset: str | tuple[Dataset, Dataset]) -> tuple[Dataset, Dataset]:
    if isinstance(dataset, str):
        return load_dataset(dataset, "train"), load_dataset(dataset, "test")
    return dataset


def make_plan(
    dataset: str | tuple[Dataset, Dataset],
    defense: str | Defense,
    model: str | Model | None,
    standardize: bool,
    statistics: Statistics,
    setting: Setting | None,
    public_examples: int,
    seed: int,
) -> Plan:
    """Returns the plan, with the published setting where nothing else is said."""
    check_seed(seed)
    data = _datasets(dataset)[0]
    setting = setting or default_setting(data.name)
    held = setting.clients * setting.examples
    if not held <= _MOST_HELD:
        raise InputError(
            f"{setting.clients:,} clients with {setting.examples:,} examples each are "
            f"more than {_MOST_HELD:,} examples in all"
        )
    if setting.partition is None:
        scheme = FullCopy() if setting.clients == 1 else Iid()
        setting = dataclasses.replace(setting, partition=scheme)
    named = model or ("cnn" if len(data.shape) == 3 else "mlp")
    return Plan(
        dataset, defense, named, standardize, statistics, setting, public_examples, seed
    )


@dataclasses.dataclass(frozen=True)
class RecordedTraining:
    """A round of a training that took place: what the taps read from."""

    plan: Plan
    training: Training  # its recipe and population
    key: Key  # the run's
    state: ServerState  # in which the round began: what its clients received
    participants: tuple[int, ...]
    round: int  # counted from 1


def recorded_round(folder: pathlib.Path | str, number: int) -> RecordedTraining:
    """Rebuilds the training of a run's folder as it was at the start of a round.

    `observe_many(r.training.recipe, r.training.population, r.key, r.state, ...,
    participants=r.participants)` then reads what that round really sent. Refuses in
    words a round that was not recorded, a training that can't be described, and data
    or defense files that have changed.
    """
    machine.configure()
    found = checkpoint.load_round(pathlib.Path(folder), number)
    arguments = found.spec.call()
    plan = Plan(**{f.name: arguments[f.name] for f in dataclasses.fields(Plan)})
    training, key, start = plan.begin()
    state = found.state(start.state)
    return RecordedTraining(plan, training, key, state, found.participants, number)
