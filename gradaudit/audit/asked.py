"""What an audit is asked for, in Python or in a TOML file."""

import dataclasses
import enum
import os
import pathlib
import tomllib
from collections.abc import Callable, Mapping
from typing import Any

from gradaudit import files
from gradaudit.attacks.base import Attack
from gradaudit.audit.limits import Gates
from gradaudit.data import Dataset, parse_partition
from gradaudit.defenses.base import Defense
from gradaudit.errors import InputError, require, unknown_name
from gradaudit.federation.setting import (
    PAPER_SETTINGS,
    Batches,
    Optimizer,
    Selection,
    Setting,
    Weighting,
)
from gradaudit.models.model import Model
from gradaudit.spec import Spec
from gradaudit.types import Leakage

# One that leaves everything open, one that only thins what is sent, one that acts late,
# and one that acts on every example.
DEFENSES = ("none", "prune:ratio=0.6,at=per_example", "fed-sdp", "fed-cdp")
_LARGEST_FILE = 1 << 20


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
        require(
            self.truth is None or self.captured is not None,
            "a truth belongs to captured updates: say which",
        )
        for name in ("datasets", "defenses", "types", "threats"):
            values = getattr(self, name)
            require(len(values) > 0, f"an audit needs at least one of its {name}")
        for name in ("datasets", "defenses", "types", "threats", "attacks", "looks"):
            values = getattr(self, name)
            twice = [v for i, v in enumerate(values) if v in values[:i]]
            require(not twice, f"{name}: {twice[:1]} is given twice")
        for kind in self.types:
            require(kind in tuple(Leakage), f"type must be 0, 1 or 2, got {kind!r}")
        _at_least(0, mechanism_trials=self.mechanism_trials, round=self.round)
        _at_least(0, train_rounds=self.train_rounds)
        _at_least(1, victims=self.victims, draws=self.draws, line_ups=self.line_ups)
        _at_least(1, batch_size=self.batch_size, local_steps=self.local_steps)
        _at_least(1, iterations=self.iterations, restarts=self.restarts)
        _at_least(1, looks=min(self.looks, default=0))
        _at_least(2, candidates=self.candidates)
        require(
            self.mechanism_trials == 0 or self.mechanism_trials >= 1000,
            f"mechanism_trials must be 0 or at least 1000, got {self.mechanism_trials}",
        )
        require(
            self.draws is None or self.draws <= self.victims,
            f"draws must lie in 1..{self.victims}, the number of victims, got "
            f"{self.draws}",
        )
        require(
            0 < self.success_rmse < 1,
            f"success_rmse must lie in (0, 1), got {self.success_rmse}",
        )
        require(0 < self.delta < 1, f"delta must lie in (0, 1), got {self.delta}")
        require(
            0 <= self.seed < 2**32, f"seed must lie in 0..2^32 - 1, got {self.seed}"
        )

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


def _at_least(least: int, **numbers: int | None) -> None:
    for name, value in numbers.items():
        require(
            value is None or value >= least,
            f"{name} must be at least {least}, got {value}",
        )


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


# section of the file -> key -> field of the plan, and what it holds
_TEXT, _TEXTS, _WHOLE, _WHOLES, _NUMBER = "text", "texts", "whole", "wholes", "number"
_SECTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "": {"title": ("title", _TEXT), "seed": ("seed", _WHOLE)},
    "scope": {
        "datasets": ("datasets", _TEXTS),
        "model": ("model", _TEXT),
        "defenses": ("defenses", _TEXTS),
        "types": ("types", _WHOLES),
        "threats": ("threats", _TEXTS),
        "attacks": ("attacks", _TEXTS),
    },
    "captured": {"folder": ("captured", _TEXT), "truth": ("truth", _TEXT)},
    "attack": {
        name: (name, _WHOLE)
        for name in (
            *("victims", "draws", "batch_size", "local_steps", "round"),
            *("iterations", "restarts"),
        )
    }
    | {"success_rmse": ("success_rmse", _NUMBER)},
    "line-up": {
        "candidates": ("candidates", _WHOLE),
        "looks": ("looks", _WHOLES),
        "line_ups": ("line_ups", _WHOLE),
    },
    "mechanism": {"trials": ("mechanism_trials", _WHOLE)},
    "training": {"rounds": ("train_rounds", _WHOLE)},
}


def read_plan(path: pathlib.Path) -> tuple[AuditPlan, Gates]:
    """Reads an audit's TOML file; says in words what is wrong with it, and where."""
    document = _parsed(path)
    given: dict[str, Any] = {}
    tables = {name: value for name, value in document.items() if _is_table(value)}
    tables[""] = {k: v for k, v in document.items() if k not in tables}
    for name, table in tables.items():
        if name in ("gates", "federation"):
            continue
        if name not in _SECTIONS:
            raise unknown_name(
                f"part of {path}",
                name,
                [*filter(None, _SECTIONS), "gates", "federation"],
            )
        for key, value in table.items():
            field, kind = _key(path, name, key)
            given[field] = _checked(f"{path}: {key}", value, kind)
    federation = dict(tables.get("federation", {}))
    if "delta" in federation:
        what = f"{path}: delta"
        given["delta"] = _checked(what, federation.pop("delta"), _NUMBER)
    plan = changed(AuditPlan(), given)
    if federation:
        plan = changed(plan, {"setting": _federation(path, plan, federation)})
    return plan, _gates(path, tables.get("gates", {}))


def _parsed(path: pathlib.Path) -> dict[str, Any]:
    try:
        require(
            path.exists(), f"there is no file {path}: `gradaudit audit init` writes one"
        )
        require(path.is_file(), f"{path} is no regular file")
        require(path.stat().st_size <= _LARGEST_FILE, f"{path} is larger than 1 MiB")
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} can't be read as TOML: {error}") from None


def _is_table(value: Any) -> bool:
    return isinstance(value, dict)


def _key(path: pathlib.Path, section: str, key: str) -> tuple[str, str]:
    known = _SECTIONS[section]
    name = key.replace("-", "_")
    if name not in known:
        where = f"[{section}] of {path}" if section else str(path)
        raise unknown_name(f"key in {where}", key, known)
    return known[name]


_KINDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    _TEXT: ("a text", lambda value: isinstance(value, str)),
    _WHOLE: ("a whole number", lambda value: type(value) is int),
    _NUMBER: ("a number", lambda value: type(value) in (int, float)),
    _TEXTS: ("a list of texts", lambda value: _all(value, str)),
    _WHOLES: ("a list of whole numbers", lambda value: _all(value, int)),
}


def _all(value: Any, kind: type) -> bool:
    return isinstance(value, list) and all(type(each) is kind for each in value)


def _checked(what: str, value: Any, kind: str) -> Any:
    words, fits = _KINDS[kind]
    require(fits(value), f"{what} must be {words}, got {value!r}")
    return value


_WORDS: dict[str, type[enum.Enum]] = {
    "optimizer": Optimizer,
    "weighting": Weighting,
    "selection": Selection,
    "batches": Batches,
}


def _federation(
    path: pathlib.Path, plan: AuditPlan, table: Mapping[str, Any]
) -> Setting:
    """Returns the published setting of the first data set, with the table's changes."""
    first = plan.datasets[0]
    base = PAPER_SETTINGS.get(
        first if isinstance(first, str) else first.name, Setting()
    )
    names = [field.name for field in dataclasses.fields(Setting)]
    given: dict[str, Any] = {}
    for key, value in table.items():
        name, what = key.replace("-", "_"), f"{path}: {key}"
        if name not in names:
            raise unknown_name(f"key in [federation] of {path}", key, [*names, "delta"])
        if name in _WORDS:
            known = {str(member.value): member for member in _WORDS[name]}
            if _checked(what, value, _TEXT) not in known:
                raise unknown_name(name, value, known)
            given[name] = known[value]
        elif name == "partition":
            given[name] = parse_partition(_checked(what, value, _TEXT))
        else:
            kind = _NUMBER if name == "learning_rate" else _WHOLE
            given[name] = _checked(what, value, kind)
    return dataclasses.replace(base, **given)


def _gates(path: pathlib.Path, table: Mapping[str, Any]) -> Gates:
    names = [field.name for field in dataclasses.fields(Gates)]
    given: dict[str, Any] = {}
    for key, value in table.items():
        name = key.replace("-", "_")
        if name not in names:
            raise unknown_name(f"key in [gates] of {path}", key, names)
        if name == "require_certificate":
            require(isinstance(value, bool), f"{path}: {key} must be true or false")
            given[name] = value
        else:
            given[name] = float(_checked(f"{path}: {key}", value, _NUMBER))
    return Gates(**given)
