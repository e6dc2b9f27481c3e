"""The setting of a federated run: what changes the mathematics, nothing else."""

import dataclasses
import enum

from gradaudit.errors import require, unknown_name


class Optimizer(enum.Enum):
    """What a client steps with."""

    SGD = "sgd"
    ADAM = "adam"


class Aggregation(enum.Enum):
    """What the server averages; the two give the same model up to rounding."""

    FED_SGD = "fed-sgd"  # the clients' updates
    FED_AVG = "fed-avg"  # the clients' models


class Weighting(enum.Enum):
    """How much a client counts."""

    UNIFORM = "uniform"
    EXAMPLES = "examples"  # in proportion to the examples it holds


@dataclasses.dataclass(frozen=True)
class Federation:
    """N clients, K of them per round, L local steps of batch B, T rounds.

    The defaults are the MNIST column of Wei et al. 2021 (Fed-CDP), Table I.
    `examples` is the number of examples each client holds.
    """

    clients: int = 1000
    clients_per_round: int = 100
    local_steps: int = 100
    batch_size: int = 5
    rounds: int = 100
    examples: int = 500
    learning_rate: float = 0.05
    optimizer: Optimizer = Optimizer.SGD
    aggregation: Aggregation = Aggregation.FED_SGD
    weighting: Weighting = Weighting.UNIFORM

    def __post_init__(self) -> None:
        for name in (
            "clients",
            "clients_per_round",
            "local_steps",
            "batch_size",
            "rounds",
            "examples",
        ):
            value = getattr(self, name)
            require(value >= 1, f"{name} must be at least 1, got {value}")
        require(
            self.clients_per_round <= self.clients,
            f"clients_per_round must be at most clients ({self.clients}), "
            f"got {self.clients_per_round}",
        )
        require(
            self.batch_size <= self.examples,
            f"batch_size must be at most the {self.examples} examples of a client, "
            f"got {self.batch_size}",
        )
        require(
            self.learning_rate > 0,
            f"learning_rate must be positive, got {self.learning_rate}",
        )


_IMAGES = Federation()  # the MNIST column


PAPER_FEDERATIONS = {
    "mnist": _IMAGES,
    "fashion-mnist": _IMAGES,
    "cifar10": Federation(examples=400, batch_size=4),
    "lfw": Federation(examples=300, batch_size=3, rounds=60),
    "adult": Federation(examples=300, batch_size=3, rounds=10),
    "cancer": Federation(examples=400, batch_size=4, rounds=3),
}


def paper_federation(dataset: str) -> Federation:
    """Returns N = 1,000 clients, 100 per round, and the dataset's own settings."""
    if dataset not in PAPER_FEDERATIONS:
        raise unknown_name("published setting", dataset, PAPER_FEDERATIONS)
    return PAPER_FEDERATIONS[dataset]
