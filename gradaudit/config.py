"""Frozen settings of a federated run; what changes the mathematics, nothing else."""

import dataclasses

from gradaudit.errors import require


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
