"""The setting of a federated run: training, simulation and accounting all read it."""

import dataclasses
import enum
from typing import Any

from gradaudit.data.partition import PARTITIONS, PUBLISHED_HOLDINGS, Partition
from gradaudit.errors import InputError, at_least, named, positive

_MOST = 10**9  # of anything that is counted


class Optimizer(enum.Enum):
    """What a client steps with."""

    SGD = "sgd"
    ADAM = "adam"


class Weighting(enum.Enum):
    """How much a client counts."""

    UNIFORM = "uniform"
    EXAMPLES = "examples"  # in proportion to the examples it holds


class Selection(enum.Enum):
    """How the clients of a round are selected."""

    FIXED = "fixed"  # exactly K, uniformly without replacement
    POISSON = "poisson"  # each on its own coin, K on average
    ACTIVE = "active"  # by their losses: not random with respect to the data


class Batches(enum.Enum):
    """How the examples of a local step are drawn."""

    FIXED = "fixed"  # exactly B, uniformly without replacement
    POISSON = "poisson"  # each on its own coin, B on average


@dataclasses.dataclass(frozen=True)
class Setting:
    """N clients, K of them per round, L local steps of batch B, T rounds.

    The defaults are the MNIST column of Wei et al. 2021 (Fed-CDP), Table I, where
    nobody says who holds what. `examples` is the number of examples each client holds.
    """

    clients: int = 1000
    clients_per_round: int = 100
    local_steps: int = 100
    batch_size: int = 5
    rounds: int = 100
    examples: int = 500
    learning_rate: float = 0.05
    optimizer: Optimizer = Optimizer.SGD
    weighting: Weighting = Weighting.UNIFORM
    selection: Selection = Selection.FIXED
    batches: Batches = Batches.FIXED
    partition: Partition | None = None  # who holds what; None = nobody says

    def __post_init__(self) -> None:
        at_least(
            1,
            _MOST,
            clients=self.clients,
            clients_per_round=self.clients_per_round,
            local_steps=self.local_steps,
            batch_size=self.batch_size,
            rounds=self.rounds,
            examples=self.examples,
        )
        if not self.clients_per_round <= self.clients:
            raise InputError(
                f"clients_per_round must be at most clients ({self.clients}), "
                f"got {self.clients_per_round}"
            )
        if not self.batch_size <= self.examples:
            raise InputError(
                f"batch_size must be at most the {self.examples} examples of a client, "
                f"got {self.batch_size}"
            )
        positive(learning_rate=self.learning_rate)


def _published(dataset: str, batch_size: int = 5, rounds: int = 100) -> Setting:
    holding = PUBLISHED_HOLDINGS[dataset]
    return Setting(
        partition=holding.partition,
        examples=holding.examples,
        batch_size=batch_size,
        rounds=rounds,
    )


PAPER_SETTINGS = {
    "mnist": _published("mnist"),
    "fashion-mnist": _published("mnist"),
    "cifar10": _published("cifar10", batch_size=4),
    "lfw": _published("lfw", batch_size=3, rounds=60),
    "adult": _published("adult", batch_size=3, rounds=10),
    "cancer": _published("cancer", batch_size=4, rounds=3),
}


def paper_setting(dataset: str) -> Setting:
    """Returns N = 1,000 clients, 100 per round, and the dataset's own numbers."""
    return named("published setting", dataset, PAPER_SETTINGS)


Plain = dict[str, Any]


def setting_as_plain(setting: Setting) -> Plain:
    """Returns every field as JSON has it; the partition by its name and numbers."""
    plain = {**vars(setting), "partition": _partition_as_plain(setting.partition)}
    return {
        name: value.value if isinstance(value, enum.Enum) else value
        for name, value in plain.items()
    }


def _partition_as_plain(partition: Partition | None) -> Plain | None:
    if partition is None:
        return None
    kind = type(partition)
    names = {scheme: name for name, scheme in PARTITIONS.items()}
    parts = vars(partition).items()
    numbers = {n: v for n, v in parts if isinstance(v, int | float | str)}
    return {"scheme": names.get(kind, kind.__qualname__), **numbers}


def setting_in_words(setting: Setting) -> str:
    """Returns one line that a figure can be printed with."""
    held = _partition_as_plain(setting.partition) or {}
    numbers = [f"{name}={value}" for name, value in held.items() if name != "scheme"]
    scheme = f" ({' '.join([held['scheme'], *numbers])})" if held else ""
    return (
        f"N = {setting.clients:,} clients with {setting.examples:,} examples each"
        f"{scheme}, K = {setting.clients_per_round:,} per round "
        f"({setting.selection.value}), L = {setting.local_steps}, "
        f"B = {setting.batch_size} ({setting.batches.value}), T = {setting.rounds}"
    )
