"""A portfolio: several attacks, cheap ones first, one answer.

Which attack finds a victim depends on the network, its state and the defense, and an
audit must report the strongest. A portfolio asks its members in turn, each only about
victims that those before did not solve, and hands in the answer that its own criterion
prefers. The criterion is free of scale and of data: it sees what leaked, nothing else.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from gradaudit.attacks.base import Attack, Member
from gradaudit.attacks.distances import Distance, RelativeL2
from gradaudit.attacks.objective import Layout, misfit
from gradaudit.errors import require
from gradaudit.models.model import Model
from gradaudit.types import Knowledge, Observation


@dataclasses.dataclass(frozen=True)
class Portfolio(Attack):
    """Attacks in the order in which they are asked.

    `criterion` compares answers; one at or below `solved` needs nobody else.
    """

    members: tuple[Member, ...]
    criterion: Distance = RelativeL2(weight=1.0)
    solved: float = 1e-6

    def __post_init__(self) -> None:
        require(len(self.members) >= 1, "a portfolio needs at least one attack")
        names = [member.name for member in self.members]
        require(len(set(names)) == len(names), f"two members share a name: {names}")
        for member in self.members:
            require(
                member.attack.continues or not member.continues,
                f"{member.name} can't go on from another attack's answer",
            )

    @property
    def needs(self) -> frozenset[Knowledge]:  # type: ignore[override]
        """What any member needs to be told."""
        return frozenset().union(*(member.attack.needs for member in self.members))

    @property
    def restarts(self) -> int:  # type: ignore[override]
        """All trials that a victim may get."""
        return sum(member.attack.restarts for member in self.members)

    @property
    def iterations(self) -> int:  # type: ignore[override]
        """The largest budget of a member."""
        return max(member.attack.iterations for member in self.members)

    def budgeted(self, iterations: int | None, restarts: int | None) -> "Portfolio":
        """Returns the portfolio with members of at most so many iterations."""
        require(
            restarts is None,
            "the attacks of a portfolio have restarts of their own: leave the option "
            "out",
        )

        def cut(member: Member) -> Member:
            own = member.attack
            if iterations is None or iterations >= own.iterations:
                return member
            return dataclasses.replace(member, attack=own.budgeted(iterations, None))

        return dataclasses.replace(self, members=tuple(map(cut, self.members)))

    def judge(
        self, model: Model, observation: Observation, inputs: Any, labels: Any
    ) -> tuple[float, bool]:
        """Returns the criterion's value of an answer, and whether it is solved."""
        value = float(_judged(self.criterion, model, observation, inputs, labels))
        return value, value <= self.solved


@functools.partial(jax.jit, static_argnums=(0, 1))
def _judged(
    criterion: Distance,
    model: Model,
    observation: Observation,
    inputs: Any,
    labels: Any,
) -> jax.Array:
    layout = Layout(inputs.shape, model.classes, searches_labels=False)
    replays = observation.training.local_steps > 1
    unpacked = layout.unpack(inputs.reshape(-1), labels)
    value = misfit(criterion, model, observation, replays, *unpacked)
    return jnp.where(jnp.isnan(value), jnp.inf, value)
