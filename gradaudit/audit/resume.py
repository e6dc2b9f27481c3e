"""Finished victims, kept as they finish: an attack that was ended goes on from them.

`victims.jsonl` holds a line that says which attack it is, and a line per victim that
was finished. A line counts when it is whole. After a crash at any moment at most the
victims in flight are lost, and the attack that goes on has the numbers of one that was
never disturbed.
"""

import base64
import contextlib
import dataclasses
import hashlib
import io
import json
import pathlib
import zipfile
import zlib
from array import array
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradaudit import files, machine
from gradaudit.audit.captured_scenario import Scenario
from gradaudit.audit.processes import Processes
from gradaudit.audit.scores import MemberScore, Score, Trace
from gradaudit.errors import InputError
from gradaudit.report.result import claim, remove_result
from gradaudit.spec import Spec, describe, rebuild

VICTIMS = "victims.jsonl"
_VERSION = 2
# InputError and binascii.Error are a ValueError each.
_DAMAGE = (
    KeyError,
    TypeError,
    ValueError,
    OSError,
    EOFError,
    zipfile.BadZipFile,
    RecursionError,
    zlib.error,
)


@dataclasses.dataclass(frozen=True)
class Finished:
    """What is left of one victim: its row, what was seen, what was handed in."""

    score: Score
    trace: Trace
    inputs: NDArray[np.float32]  # (batch, *shape)
    members: tuple[MemberScore, ...] = ()  # of a portfolio: who was asked


class Kept:
    """The finished victims of one attack: in a folder, in memory, or at process 0."""

    def __init__(
        self, folder: pathlib.Path | str | None, processes: Processes | None = None
    ) -> None:
        self.processes = processes or Processes()
        here = folder is not None and self.processes.leads
        self._path = pathlib.Path(str(folder)) / VICTIMS if here else None
        self.finished: dict[int, Finished] = {}
        self.earlier = 0.0  # seconds that went into them in runs before this one

    @contextlib.contextmanager
    def open(
        self, spec: Spec, scenario: Scenario, slots: int | None, overwrite: bool
    ) -> Iterator[None]:
        """Holds the folder and reads what there is; refuses that of another attack.

        Guarantee: what is read belongs to an attack with an equal spec, on equal data
        and weights, of the same versions (whatever else decides its numbers).
        """
        if self._path is None:
            yield
            return
        with files.one_run_in(self._path.parent):
            content = scenario.content
            _require_described(spec, content)
            header = {
                "version": _VERSION,
                "attack": fingerprint(spec, content, slots),
            }
            if self._path.exists() and not overwrite:
                self._read(self._path, header)
            else:
                claim(self._path.parent, spec, overwrite)
                remove_result(self._path.parent)
                files.write_text(self._path, json.dumps(header) + "\n")
            yield

    def add(self, finished: Sequence[Finished], seconds: float) -> None:
        """Keeps victims that have finished; `seconds` went into this run so far."""
        if finished and not (self._path is None and self.processes.leads):
            lines = [_line(each, self.earlier + seconds) for each in finished]
            self.processes.send(lines)
            if self._path is not None:
                files.append_lines(self._path, lines)
        self.finished |= {each.score.victim: each for each in finished}

    def take(self, lines: list[str]) -> None:
        """Keeps victims that another process has finished and sent."""
        if self._path is not None:
            files.append_lines(self._path, lines)
        for line in lines:
            self._count(_parsed(line.encode()))

    def _read(self, path: pathlib.Path, header: dict[str, Any]) -> None:
        """Takes the records of this attack; raises if they are another's."""
        lines = iter(files.whole_lines(path))
        found = _parsed(next(lines, b""))
        if {name: found.get(name) for name in header} != header:
            raise InputError(
                f"{path.parent} holds another attack (other options, other files, or "
                "another version of gradaudit or jax): choose another --out, or say "
                "--overwrite"
            )
        for record in map(_parsed, lines):
            if self._count(record):
                self.earlier = max(self.earlier, float(record.get("seconds", 0.0)))

    def _count(self, record: dict[str, Any]) -> bool:
        """Counts a victim as finished, unless its record is damaged."""
        found = _finished(record)
        if found is not None:
            self.finished[found.score.victim] = found
        return found is not None


def _require_described(spec: Spec, content: dict[str, Any]) -> None:
    """Raises for what plain data can't tell apart: an object that isn't described."""
    for name, value in spec.arguments.items():
        said = value.get("undescribed") if isinstance(value, dict) else None
        if not (said is None or name in content):
            raise InputError(
                f"finished victims can't be kept: {name} is not plain data. {said}"
            )


def fingerprint(spec: Spec, content: dict[str, Any], slots: int | None) -> str:
    """Returns what must be equal for two attacks to be the same one."""
    about = machine.describe()
    identity = {
        "spec": spec.plain(),
        "versions": [about["gradaudit"], about["packages"]],
        "backend": about["backend"],
        **content,
    }
    if about["backend"] != "cpu":  # there slots are the program's width: its rounding
        identity["slots"] = slots
    text = json.dumps(identity, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _line(finished: Finished, seconds: float) -> str:
    trace = finished.trace
    arrays: dict[str, Any] = {
        "inputs": finished.inputs,
        "rmse": np.asarray(trace.rmse, np.float64),
        "objective": np.asarray(trace.objective, np.float64),
        **{f"frame{i}": frame for i, frame in trace.frames.items()},
    }
    packed = io.BytesIO()
    np.savez_compressed(packed, **arrays)
    record = {
        "score": dataclasses.asdict(finished.score),
        "oracle": trace.oracle,
        "members": [dataclasses.asdict(each) for each in finished.members],
        "seconds": seconds,
        "arrays": base64.b64encode(packed.getvalue()).decode(),
    }
    return json.dumps(describe(record), allow_nan=False)


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _finished(record: dict[str, Any]) -> Finished | None:
    """Returns what a record holds; None if it is damaged: its victim runs again."""
    try:
        found = rebuild(record)
        packed = io.BytesIO(base64.b64decode(found["arrays"], validate=True))
        with np.load(packed, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        inputs, rmse, objective = map(arrays.pop, ("inputs", "rmse", "objective"))
        trace = Trace(
            array("d", rmse.tolist()),
            array("d", objective.tolist()),
            float(found["oracle"]),
            {int(name.removeprefix("frame")): each for name, each in arrays.items()},
        )
        members = tuple(MemberScore(**each) for each in found["members"])
        return Finished(Score(**found["score"]), trace, inputs, members)
    except _DAMAGE:
        return None
