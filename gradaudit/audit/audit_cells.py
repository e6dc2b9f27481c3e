"""One cell of an audit: plain data in, plain data out, finished work kept.

A cell is a spec (a command and its described arguments) with a name: it can be sent to
another process, and its folder's name follows from what it does. Equal cells of two
audits are one.

`run_cell` is all that another process needs: it is idempotent. A cell that is finished
in its folder is answered from there; one that was ended at any moment (kill -9) is run
again, an attack or a training from where it was. A cell that fails says so and raises
nothing, so that the others go on.
"""

import hashlib
import json
import pathlib
import re
import shutil
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from gradaudit import files, machine
from gradaudit.attacks.base import Attack
from gradaudit.audit.attack import attack
from gradaudit.audit.captured_attack import attack_captured
from gradaudit.audit.informed import line_up
from gradaudit.audit.mechanism_check import mechanism_check
from gradaudit.audit.scenario import Simulated, one_round
from gradaudit.audit.threat import Threat
from gradaudit.audit.train import train
from gradaudit.data import CATALOGUE, load_dataset
from gradaudit.defenses import none
from gradaudit.defenses import parse as parse_defense
from gradaudit.distinguish import mechanism_audit
from gradaudit.errors import InputError
from gradaudit.executors import Interrupted
from gradaudit.models.adapters import model_for
from gradaudit.privacy.statement import epsilon, privacy_as_plain
from gradaudit.report.result import Result
from gradaudit.spec import Spec
from gradaudit.types import Leakage

Plain = dict[str, Any]
Tell = Callable[[int, int], None]  # how much of the cell is done, of what

FINISHED = "cell.json"  # which cell this folder is of, and its outcome when done
ERROR = "error.txt"
DONE, FAILED, INTERRUPTED, MISSING = "done", "failed", "interrupted", "missing"
_LONGEST = 48  # letters of a name inside a cell's id

# What decides the numbers of a cell beside its data set and method; None: they are of
# no other cell.
Reads = Any


def cell_of(
    kind: str,
    spec: Spec,
    data: str,
    guard: str,
    leakage: int | None = None,
    threat: str = "",
    method: str | Attack = "",
) -> Plain:
    """Returns a cell as plain data: its id follows from what it does."""
    for argument, value in spec.arguments.items():
        said = next(_undescribed(value), None)
        if said is not None:
            raise InputError(
                f"the cells of an audit are plain data, and {argument} is not: {said}"
            )
    where = [kind] if leakage is None else [f"type {leakage}", threat]
    label = method if isinstance(method, str) else type(method).__name__
    shown = [] if label in ("", "line-up") else [label]
    labels = {
        "kind": kind,
        "name": " · ".join([*where, guard, data, *shown]),
        "dataset": data,
        "defense": guard,
        "type": leakage,
        "threat": threat,
        "method": label,
    }
    whole = labels | {"spec": spec.plain()}
    text = json.dumps(whole, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:10]
    place = "" if leakage is None else f"{leakage}-{threat}-"
    return {"id": f"{_slug(f'{kind}-{place}{guard}')}-{digest}", **whole}


def _undescribed(value: Any) -> Iterator[str]:
    """Yields why parts of a described value can't be rebuilt."""
    if isinstance(value, dict):
        if "undescribed" in value:
            yield str(value["undescribed"])
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from _undescribed(each)


def _slug(text: str) -> str:
    """Returns letters, digits and dashes: a name that any folder can have."""
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower().encode("ascii", "ignore").decode())
    return plain.strip("-")[:_LONGEST].strip("-") or "cell"


def with_equals(found: Iterable[tuple[Plain, Reads]]) -> list[Plain]:
    """Returns cells with the cell that each is equal to, in `same_as`, or None."""
    first: dict[Any, str] = {}
    cells = []
    for cell, reads in found:
        key = cell["kind"], cell["dataset"], cell["method"], reads
        same = cell["id"] if reads is None else first.setdefault(key, cell["id"])
        cells.append(cell | {"same_as": None if same == cell["id"] else same})
    return cells


def run_cell(
    cell: Plain, folder: pathlib.Path | str, tell: Tell = lambda done, total: None
) -> Plain:
    """Runs one cell in its folder, or returns what is there already.

    Returns `{"id", "status", "error", "seconds", "result"}`: status is `done` or
    `failed` (in words in `error`, a traceback of ours in error.txt). What Ctrl-C
    interrupts is raised (`Interrupted`), with what there is. Only what is done is kept
    as finished.
    """
    target = pathlib.Path(folder)
    try:
        with files.one_run_in(target):
            outcome = _run(cell, target, tell)
    except InputError as problem:  # the folder itself can't be used
        return failed(cell, str(problem))
    if outcome["status"] == INTERRUPTED:
        raise Interrupted(outcome)
    return outcome


def failed(cell: Plain, words: str) -> Plain:
    """Returns the outcome of a cell that could not be begun, or whose workers died."""
    return _outcome(cell, FAILED, words, 0.0, None)


def finished(cell: Plain, folder: pathlib.Path) -> Plain | None:
    """Returns the outcome of a cell that is done already; None if it is not."""
    outcome = _kept(folder, _fingerprint(cell)).get("outcome")
    return None if outcome is None else dict(outcome)


def _run(cell: Plain, target: pathlib.Path, tell: Tell) -> Plain:
    began, name = time.perf_counter(), _fingerprint(cell)
    kept = _kept(target, name)
    if kept.get("outcome") is not None:
        return dict(kept["outcome"])
    if not kept:  # of other versions, or damaged
        _empty(target)
        files.write_json(target / FINISHED, {"fingerprint": name, "outcome": None})
    status, error, result = DONE, None, None
    machine.forget_programs()
    try:
        arguments = Spec(**cell["spec"]).call()
        result = _COMMANDS[cell["spec"]["command"]](arguments, target, tell)
        if result.get("status") == INTERRUPTED:
            status = INTERRUPTED
    except KeyboardInterrupt:
        status = INTERRUPTED
    except Exception as problem:  # whatever it is, the other cells go on
        status, error = FAILED, _in_words(problem, target)
    seconds = time.perf_counter() - began
    outcome = _outcome(cell, status, error, seconds, result)
    if status == DONE:
        record = {"fingerprint": name, "cell": cell, "outcome": outcome}
        files.write_json(target / FINISHED, record)
        (target / ERROR).unlink(missing_ok=True)
    return outcome


def _outcome(
    cell: Plain, status: str, error: str | None, seconds: float, result: Plain | None
) -> Plain:
    return files.finite(
        {
            "id": cell["id"],
            "status": status,
            "error": error,
            "seconds": seconds,
            "result": result,
        }
    )


def _empty(folder: pathlib.Path) -> None:
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        elif entry.name != files.LOCK:
            entry.unlink()


def _fingerprint(cell: Plain) -> str:
    """Returns what must be equal for finished work to be taken over."""
    about = machine.describe()
    identity = [cell, about["gradaudit"], about["packages"], about["backend"]]
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


def _kept(folder: pathlib.Path, name: str) -> Plain:
    """Returns the record of this very cell; empty if there is none."""
    try:
        record = files.read_json(folder / FINISHED, "cell")
    except InputError:
        return {}
    fits = isinstance(record, dict) and record.get("fingerprint") == name
    return record if fits else {}


def _in_words(problem: Exception, folder: pathlib.Path) -> str:
    """Returns what went wrong; a bug's traceback is kept in the cell's folder."""
    if isinstance(problem, InputError):
        return str(problem)
    first = next(iter(str(problem).strip().splitlines()), "")
    said = f"{type(problem).__name__}: {first}".removesuffix(": ")
    if isinstance(problem, MemoryError):
        return f"not enough memory: {first}; ask for less"
    try:
        files.write_text(folder / ERROR, traceback.format_exc())
    except InputError:
        return said
    return f"{said} (the traceback is in {ERROR} of its folder)"


def _saved(result: Result, folder: pathlib.Path) -> Plain:
    result.save(folder)
    return result.to_dict()


def _attack(arguments: Plain, folder: pathlib.Path, tell: Tell) -> Plain:
    # Line-ups are cells of their own.
    result = attack(**arguments, line_ups=0, keep=folder, progress=tell)
    report = _saved(result, folder)
    bounds = report["certificate"]
    return report | {"certificate": bounds and bounds["reconstruction"]}


def _attack_captured(arguments: Plain, folder: pathlib.Path, tell: Tell) -> Plain:
    # Whoever has the truth has the pictures; without it nobody asked for them.
    known = arguments["truth"] is not None
    keep = folder if known else None
    result = attack_captured(**arguments, pictures=known, keep=keep, progress=tell)
    # A certificate would rest on what somebody else claims of the noise.
    return _saved(result, folder) | {"certificate": None}


def _check_captured(arguments: Plain, folder: pathlib.Path, tell: Tell) -> Plain:
    del tell
    return _saved(mechanism_check(**arguments), folder)


def _line_up(arguments: Plain, folder: pathlib.Path, tell: Tell) -> Plain:
    return _saved(line_up(**arguments, progress=tell), folder)


def _mechanism(arguments: Plain, folder: pathlib.Path, tell: Tell) -> Plain:
    tested = mechanism_audit(
        **arguments, progress=lambda label, done, total: tell(done, total)
    )
    return _saved(tested, folder)


def _accounting(arguments: Plain, folder: pathlib.Path, tell: Tell) -> Plain:
    del folder, tell
    name, defense = arguments.pop("dataset"), arguments.pop("defense")
    known = CATALOGUE.get(name)
    return privacy_as_plain(
        epsilon(
            parse_defense(defense),
            arguments.pop("setting"),
            class_sizes=known.class_sizes("train") if known else (),
            **arguments,
        )
    )


def _norms(arguments: Plain, folder: pathlib.Path, tell: Tell) -> Plain:
    """Returns the L2 norms of what the same victims send without and with a defense.

    On the scale of gradients, untrained networks. A row for each place that is read.
    """
    del folder, tell
    data = load_dataset(arguments["dataset"])
    guard = parse_defense(arguments["defense"])
    net = model_for(arguments["model"], data.shape, data.classes)
    key, _ = jax.random.split(jax.random.key(arguments["seed"]))
    rows = []
    for leakage in map(Leakage, arguments["types"]):
        batch = 1 if leakage is Leakage.EXAMPLE else arguments["batch_size"] or 3
        setting = one_round(arguments["victims"], batch, arguments["local_steps"])
        threat, draws = Threat("curious", leakage), arguments["draws"]
        before, after = (
            _norms_of(
                Simulated.drawn(key, net, data, each, threat, setting, draws=draws)
            ).tolist()
            for each in (none(), guard)
        )
        rows.append({"type": int(leakage), "before": before, "after": after})
    return {"norms": rows}


def _norms_of(scenario: Simulated) -> NDArray[np.float64]:
    """Returns each victim's norm, (victims,)."""
    found = []
    for group in scenario.groups():
        observed = group.victims.observe(np.arange(len(group.ids)))
        squares = [
            np.square(np.asarray(leaf, np.float64)).reshape(len(leaf), -1).sum(axis=1)
            for leaf in jax.tree.leaves(observed.gradient)
        ]
        found.append(np.sqrt(sum(squares)))
    return np.concatenate(found)


def _training(arguments: Plain, folder: pathlib.Path, tell: Tell) -> Plain:
    rounds = arguments["setting"].rounds
    result = train(
        **arguments,
        out=folder,
        on_round=lambda progress: tell(int(progress.state.round), rounds),
    )
    return result.to_dict()


_COMMANDS: dict[str, Callable[[Plain, pathlib.Path, Tell], Plain]] = {
    "attack": _attack,
    "attack-captured": _attack_captured,
    "line-up": _line_up,
    "ldp-mechanism": _mechanism,
    "captured-check": _check_captured,
    "accounting": _accounting,
    "norms": _norms,
    "train": _training,
}
