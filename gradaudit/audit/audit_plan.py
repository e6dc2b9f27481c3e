"""What an audit is asked for, and the TOML file that says so.

Every key of the file is a field of `AuditPlan`, `Setting` or `Gates`, read as that
field's annotation says, with errors in words.
"""

import dataclasses
import enum
import os
import pathlib
import tomllib
import typing
from collections.abc import Mapping
from typing import Any

from gradaudit import files
from gradaudit.attacks.base import Attack
from gradaudit.audit.audit_gates import Gates
from gradaudit.data import Dataset, parse_partition
from gradaudit.data.partition import Partition
from gradaudit.defenses.transforms import Defense
from gradaudit.errors import (
    InputError,
    at_least,
    check_seed,
    named,
    unknown_name,
    within_unit,
)
from gradaudit.federation.setting import PAPER_SETTINGS, Setting
from gradaudit.models.model import Model
from gradaudit.spec import Spec
from gradaudit.types import Leakage

# One that leaves everything open, one that only thins what is sent, one that acts late,
# and one that acts on every example.
DEFENSES = ("none", "prune:ratio=0.6,at=per_example", "fed-sdp", "fed-cdp")


@dataclasses.dataclass(frozen=True)
class AuditPlan:
    """What an audit is asked for; everything has a default."""

    title: str = ""  # of the page
    # A folder of updates that your own system recorded, or of such folders, one for
    # each of its runs: they are audited instead of simulated ones.
    captured: str | None = None
    # With `captured`, the clients' examples (see `attack_captured`); a folder may have
    # folders named like the runs.
    truth: str | None = None
    datasets: tuple[str | Dataset, ...] = ("lfw-patches",)  # names, or your own files
    model: str | Model | None = None  # by default `cpl` for images, `mlp` for tables
    defenses: tuple[str | Defense, ...] = DEFENSES  # each is a column of the grid
    types: tuple[int, ...] = (2, 1, 0)  # the places that are read
    threats: tuple[str, ...] = ("curious", "aware", "informed")  # what is known
    attacks: tuple[str | Attack, ...] = ()  # by default each threat's strongest one
    victims: int = 6  # of each cell
    draws: int | None = None  # networks of each cell; by default 4 if untrained
    batch_size: int | None = None  # of types 0 and 1; 3 by default
    local_steps: int = 1  # of a client's round
    round: int = 0  # rounds of training before the one that is read
    iterations: int | None = None  # the attacks' budget; their own by default
    restarts: int | None = None  # independent starts
    success_rmse: float = 0.1  # at or below which a victim counts as rebuilt
    candidates: int = 10  # of a line-up
    looks: tuple[int, ...] = (1, 5, 20)  # in a line-up; the first decides the verdict
    line_ups: int = 200  # that are played for each cell
    mechanism_trials: int = 20_000  # of the test whether the noise is on; 0: no test
    # The federation that is accounted for; by default the data set's published one, or
    # that of the papers' MNIST.
    setting: Setting | None = None
    delta: float = 1e-5  # of the privacy claim
    train_rounds: int = 0  # of a training under each defense, for accuracy; 0: none
    seed: int = 0  # everything random follows from it

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
            Leakage(kind)
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
        within_unit(success_rmse=self.success_rmse, delta=self.delta)
        check_seed(self.seed)

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


# The file that `gradaudit audit init` writes: its defaults are the plan's.
TEMPLATE = """\
# What `gradaudit audit` is asked for. Every key may be left out; what stands here are
# the defaults. The command line wins over this file.

title = ""  # of the page
seed = 0    # everything random follows from it

[scope]
# Whose examples are attacked: names of `gradaudit data list`, or paths of your files.
datasets = ["lfw-patches"]
# model = "cpl"  # see `gradaudit list models`; cpl for images, mlp for tables
# What is put to the test: see `gradaudit list defenses`. Your own: "mine.py:defense"
# (then say --trust). "none" beside others shows that the attacks work at all.
defenses = ["none", "prune:ratio=0.6,at=per_example", "fed-sdp", "fed-cdp"]
# Where the adversary reads: 2 one example's gradient at the client, 1 a client's update
# at the client, 0 a client's update at the server.
types = [2, 1, 0]
# What it knows: curious (the model), aware (also the defense), informed (also
# candidates, one of which is the victim); malicious also chooses the parameters.
threats = ["curious", "aware", "informed"]
attacks = []  # [] = the strongest of each threat; see `gradaudit list attacks`

[captured]
# Updates that your own system recorded, instead of simulated ones (docs/own-system.md):
# then leave datasets, defenses and types as they are here, and say the model.
# folder = "recorded"
# truth = "truth"  # the clients' examples, if you have them

[attack]
victims = 6          # of each cell; more make the intervals narrower
# draws = 4          # networks, victims dealt over them
# batch_size = 3     # of types 0 and 1
local_steps = 1
round = 0            # rounds of training before the one that is read
# iterations = 300   # the attacks' own budget by default
# restarts = 1
success_rmse = 0.1   # at or below which a victim counts as rebuilt (PSNR >= 20 dB)

[line-up]
candidates = 10
looks = [1, 5, 20]  # readings of one victim; the first decides the verdict
line_ups = 200

[mechanism]
trials = 20000  # of the test whether the noise is really on; 0 leaves it out

[federation]
delta = 0.00001
# The federation whose epsilon is accounted for; by default the data set's published
# one, or that of the papers' MNIST:
# clients = 1000
# clients_per_round = 100
# local_steps = 100
# batch_size = 5
# rounds = 100
# examples = 500        # of each client
# selection = "fixed"   # or poisson
# batches = "fixed"     # or poisson
# partition = "shards:classes=2"

[training]
rounds = 0  # also train so many rounds under each defense, for accuracy; 0: don't

[gates]
# Limits that must hold, for continuous integration: exit code 1 if one is broken, 3 if
# it can't be decided.
# max_asr = 0.05
# max_line_up = 0.3
# min_rmse = 0.2
# max_epsilon = 8.0
# require_certificate = true
"""


_LARGEST_FILE = 1 << 20
# section of the file -> its keys, each a field of the plan unless it is renamed.
_SECTIONS = {
    "": ("title", "seed"),
    "scope": ("datasets", "model", "defenses", "types", "threats", "attacks"),
    "captured": ("folder", "truth"),
    "attack": (
        "victims",
        "draws",
        "batch_size",
        "local_steps",
        "round",
        "iterations",
        "restarts",
        "success_rmse",
    ),
    "line-up": ("candidates", "looks", "line_ups"),
    "mechanism": ("trials",),
    "training": ("rounds",),
}
_RENAMED = {
    "folder": "captured",
    "trials": "mechanism_trials",
    "rounds": "train_rounds",
}


def read_plan(path: pathlib.Path) -> tuple[AuditPlan, Gates]:
    """Reads an audit's TOML file; says in words what is wrong with it, and where."""
    document = _parsed(path)
    tables = {key: value for key, value in document.items() if isinstance(value, dict)}
    tables[""] = {key: value for key, value in document.items() if key not in tables}
    federation, gates = tables.pop("federation", {}), tables.pop("gates", {})
    fields = typing.get_type_hints(AuditPlan)
    given: dict[str, Any] = {}
    for section, table in tables.items():
        if section not in _SECTIONS:
            known = [*filter(None, _SECTIONS), "gates", "federation"]
            raise unknown_name(f"part of {path}", section, known)
        names = {key: _RENAMED.get(key, key) for key in _SECTIONS[section]}
        kinds = {key: fields[name] for key, name in names.items()}
        found = _values(path, section, table, kinds)
        given |= {names[key]: value for key, value in found.items()}
    kinds = typing.get_type_hints(Setting) | {"delta": float}
    found = _values(path, "federation", federation, kinds)
    if "delta" in found:
        given["delta"] = found.pop("delta")
    plan = changed(AuditPlan(), given)
    if found:
        first = plan.datasets[0]
        name = first if isinstance(first, str) else first.name
        published = PAPER_SETTINGS.get(name, Setting())
        plan = changed(plan, {"setting": dataclasses.replace(published, **found)})
    limits = _values(path, "gates", gates, typing.get_type_hints(Gates))
    numbers = {k: float(v) for k, v in limits.items() if not isinstance(v, bool)}
    return plan, Gates(**limits | numbers)


def _parsed(path: pathlib.Path) -> dict[str, Any]:
    try:
        if not path.exists():
            raise InputError(
                f"there is no file {path}: `gradaudit audit init` writes one"
            )
        if not path.is_file():
            raise InputError(f"{path} is no regular file")
        if not path.stat().st_size <= _LARGEST_FILE:
            raise InputError(f"{path} is larger than 1 MiB")
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} can't be read as TOML: {error}") from None


def _values(
    path: pathlib.Path, section: str, table: Mapping[str, Any], kinds: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the entries of a table, each of the kind of its field."""
    found = {}
    for key, value in table.items():
        name = key.replace("-", "_")
        if name not in kinds:
            where = f"[{section}] of {path}" if section else str(path)
            raise unknown_name(f"key in {where}", key, kinds)
        found[name] = _value(path, key, value, kinds[name])
    return found


_WORDS = {
    str: ("a text", "texts"),
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
    bool: ("true or false", ""),
}


def _value(path: pathlib.Path, key: str, value: Any, annotation: Any) -> Any:
    """Returns a value of the file as a field's annotation wants it."""
    what = f"{path}: {key}"
    # Of several kinds the first is the one that files have: `str | Model | None`.
    kind = next(iter(typing.get_args(annotation)), annotation)
    if typing.get_origin(annotation) is tuple:
        kind = next(iter(typing.get_args(kind)), kind)
        if not (isinstance(value, list) and all(type(each) is kind for each in value)):
            raise InputError(
                f"{what} must be a list of {_WORDS[kind][1]}, got {value!r}"
            )
        return value
    wanted = kind if kind in _WORDS else str
    if type(value) not in ((int, float) if wanted is float else (wanted,)):
        raise InputError(f"{what} must be {_WORDS[wanted][0]}, got {value!r}")
    if kind is Partition:
        return parse_partition(value)
    if issubclass(kind, enum.Enum):
        return named(key, value, {str(member.value): member for member in kind})
    return value
