"""An audit's TOML file: read with errors in words, and as `audit init` writes it."""

import dataclasses
import enum
import pathlib
import tomllib
from collections.abc import Callable, Mapping
from typing import Any

from gradaudit.audit.audit_gates import Gates
from gradaudit.audit.audit_plan import AuditPlan, changed
from gradaudit.data import parse_partition
from gradaudit.errors import InputError, unknown_name
from gradaudit.federation.setting import (
    PAPER_SETTINGS,
    Batches,
    Optimizer,
    Selection,
    Setting,
    Weighting,
)

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
    if not fits(value):
        raise InputError(f"{what} must be {words}, got {value!r}")
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
            if not isinstance(value, bool):
                raise InputError(f"{path}: {key} must be true or false")
            given[name] = value
        else:
            given[name] = float(_checked(f"{path}: {key}", value, _NUMBER))
    return Gates(**given)
