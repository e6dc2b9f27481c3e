"""What an audit is asked for; everything has a default."""

import dataclasses
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from gradaudit import files
from gradaudit.attacks.base import Attack
from gradaudit.data import Dataset
from gradaudit.defenses.transforms import Defense
from gradaudit.errors import InputError, at_least, unknown_name
from gradaudit.federation.setting import Setting
from gradaudit.models.model import Model
from gradaudit.spec import Spec
from gradaudit.types import Leakage

# One that leaves everything open, one that only thins what is sent, one that acts late,
# and one that acts on every example.
DEFENSES = ("none", "prune:ratio=0.6,at=per_example", "fed-sdp", "fed-cdp")


@dataclasses.dataclass(frozen=True)
class AuditPlan:
    """What an audit is asked for; everything has a default.

    Attributes:
      title: of the page.
      captured: a folder of updates that your own system recorded, or of such folders,
        one for each of its runs: they are audited instead of simulated ones.
      truth: with `captured`, the clients' examples (see `attack_captured`); a folder
        may have folders named like the runs.
      datasets: whose examples are attacked: names, or paths of your own files.
      model: a model or its name; by default `cpl` for images and `mlp` for tables.
      defenses: each is a column of the grid.
      types: the places that are read.
      threats: what the adversary knows: curious, aware, informed,
        malicious.
      attacks: which attacks are run; by default the strongest one of each threat.
      victims: of each cell.
      draws: networks of each cell; 4 by default if they are untrained.
      batch_size: of types 0 and 1; 3 by default.
      local_steps: of a client's round.
      round: rounds of training before the one that is read.
      iterations: the attacks' budget; their own by default.
      restarts: independent starts.
      success_rmse: at or below which a victim counts as rebuilt.
      candidates: of a line-up.
      looks: readings of one victim in a line-up; the first decides the verdict.
      line_ups: that are played for each cell.
      mechanism_trials: of the test whether the noise is on; 0 leaves it out.
      setting: the federation that is accounted for; the data set's published one by
        default, or that of the papers' MNIST.
      delta: of the privacy claim.
      train_rounds: rounds of a training under each defense, for accuracy; 0: none.
      seed: everything random follows from it.
    """

    title: str = ""
    captured: str | None = None
    truth: str | None = None
    datasets: tuple[str | Dataset, ...] = ("lfw-patches",)
    model: str | Model | None = None
    defenses: tuple[str | Defense, ...] = DEFENSES
    types: tuple[int, ...] = (2, 1, 0)
    threats: tuple[str, ...] = ("curious", "aware", "informed")
    attacks: tuple[str | Attack, ...] = ()
    victims: int = 6
    draws: int | None = None
    batch_size: int | None = None
    local_steps: int = 1
    round: int = 0
    iterations: int | None = None
    restarts: int | None = None
    success_rmse: float = 0.1
    candidates: int = 10
    looks: tuple[int, ...] = (1, 5, 20)
    line_ups: int = 200
    mechanism_trials: int = 20_000
    setting: Setting | None = None
    delta: float = 1e-5
    train_rounds: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.truth is not None and self.captured is None:
            raise InputError("a truth belongs to captured updates: say which")
        for name in ("datasets", "defenses", "types", "threats"):
            values = getattr(self, name)
            if not len(values):
                raise InputError(f"an audit needs at least one of its {name}")
        for name in ("datasets", "defenses", "types", "threats", "attacks", "looks"):
            values = getattr(self, name)
            twice = [v for i, v in enumerate(values) if v in values[:i]]
            if twice:
                raise InputError(f"{name}: {twice[:1]} is given twice")
        for kind in self.types:
            if kind not in tuple(Leakage):
                raise InputError(f"type must be 0, 1 or 2, got {kind!r}")
        at_least(
            0,
            mechanism_trials=self.mechanism_trials,
            round=self.round,
            train_rounds=self.train_rounds,
        )
        at_least(
            1,
            victims=self.victims,
            draws=self.draws,
            line_ups=self.line_ups,
            batch_size=self.batch_size,
            local_steps=self.local_steps,
            iterations=self.iterations,
            restarts=self.restarts,
            looks=min(self.looks, default=0),
        )
        at_least(2, candidates=self.candidates)
        if self.mechanism_trials != 0 and not self.mechanism_trials >= 1000:
            raise InputError(
                "mechanism_trials must be 0 or at least 1000, got "
                f"{self.mechanism_trials}"
            )
        if not (self.draws is None or self.draws <= self.victims):
            raise InputError(
                f"draws must lie in 1..{self.victims}, the number of victims, got "
                f"{self.draws}"
            )
        if not 0 < self.success_rmse < 1:
            raise InputError(
                f"success_rmse must lie in (0, 1), got {self.success_rmse}"
            )
        if not 0 < self.delta < 1:
            raise InputError(f"delta must lie in (0, 1), got {self.delta}")
        if not 0 <= self.seed < 2**32:
            raise InputError(f"seed must lie in 0..2^32 - 1, got {self.seed}")

    def spec(self) -> Spec:
        """Returns what runs the audit again."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        found = Spec.of("audit", **fields)
        # Files that stand in a list are found one by one.
        parts = [Spec.of("", part=part) for part in (*self.datasets, *self.defenses)]
        sources = {k: v for part in parts for k, v in part.sources.items()}
        for folder in filter(None, (self.captured, self.truth)):
            if os.path.exists(folder):
                sources[folder] = files.digest(pathlib.Path(folder))
        return dataclasses.replace(found, sources={**found.sources, **sources})


def changed(plan: AuditPlan, asked: Mapping[str, Any]) -> AuditPlan:
    """Returns the plan with other fields; lists and single values become tuples."""
    fields = {field.name: field.default for field in dataclasses.fields(AuditPlan)}
    given = {}
    for name, value in asked.items():
        if name not in fields:
            raise unknown_name("part of an audit", name, fields)
        if isinstance(fields[name], tuple) and not isinstance(value, tuple):
            value = tuple(value) if isinstance(value, list) else (value,)
        given[name] = value
    return dataclasses.replace(plan, **given)
