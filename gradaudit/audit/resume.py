"""Finished victims, kept as they finish: an attack that was ended goes on from them.

`victims.jsonl` holds a line that says which attack it is, and a line per victim that
was finished. A line counts when it is whole. After a crash at any moment at most the
victims in flight are lost, and the attack that goes on has the numbers of one that was
never disturbed.
"""

import base64
import binascii
import dataclasses
import hashlib
import io
import json
import pathlib
import zipfile
import zlib
from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradaudit import files
from gradaudit.audit.scores import MemberScore, Score, Trace
from gradaudit.errors import InputError
from gradaudit.report.result import claim, remove_result
from gradaudit.spec import Spec, describe, rebuild

VICTIMS = "victims.jsonl"
_VERSION = 2
_DAMAGE = (
    *(KeyError, TypeError, ValueError, OSError, EOFError),
    *(binascii.Error, zipfile.BadZipFile, zlib.error, InputError),
)


@dataclasses.dataclass(frozen=True)
class Finished:
    """What is left of one victim: its row, what was seen, what was handed in."""

    score: Score
    trace: Trace
    inputs: NDArray[np.float32]  # (batch, *shape)
    members: tuple[MemberScore, ...] = ()  # of a portfolio: who was asked


class Kept:
    """The finished victims of one attack in a folder, or (None) in memory only.

    `send` hears of every line that is added here.
    """

    def __init__(
        self,
        folder: pathlib.Path | str | None,
        send: Callable[[list[str]], None] | None = None,
    ) -> None:
        self._path = None if folder is None else pathlib.Path(folder) / VICTIMS
        self._send = send
        self.finished: dict[int, Finished] = {}
        self.earlier = 0.0  # seconds that went into them in runs before this one

    def open(self, spec: Spec, content: dict[str, Any], overwrite: bool) -> None:
        """Reads what there is; refuses the folder of another attack.

        Guarantee: what is read belongs to an attack with an equal spec and an equal
        `content` (whatever else decides its numbers).
        """
        if self._path is None:
            return
        _require_described(spec, content)
        name = fingerprint(spec, content)
        if self._path.exists() and not overwrite:
            self._read(name)
            return
        folder = self._path.parent
        claim(folder, spec, overwrite)
        remove_result(folder)
        header = {"version": _VERSION, "attack": name}
        files.write_text(self._path, json.dumps(header) + "\n")

    def add(self, finished: Sequence[Finished], seconds: float) -> None:
        """Keeps victims that have finished; `seconds` went into this run so far."""
        if finished and (self._path is not None or self._send is not None):
            lines = [_line(each, self.earlier + seconds) for each in finished]
            if self._path is not None:
                files.append_lines(self._path, lines)
            if self._send is not None:
                self._send(lines)
        self.finished |= {each.score.victim: each for each in finished}

    def take(self, lines: list[str]) -> None:
        """Keeps victims that another process has finished and sent."""
        if self._path is not None:
            files.append_lines(self._path, lines)
        for line in lines:
            found = _finished(_parsed(line.encode()))
            if found is not None:
                self.finished[found.score.victim] = found

    def _read(self, name: str) -> None:
        """Takes the records of this attack; raises if they are another's."""
        assert self._path is not None
        lines = iter(files.whole_lines(self._path))
        header = _parsed(next(lines, b""))
        if header.get("version") != _VERSION or header.get("attack") != name:
            raise InputError(
                f"{self._path.parent} holds another attack (other options, other "
                "files, or another version of gradaudit or jax): choose another --out, "
                "or say --overwrite"
            )
        for record in map(_parsed, lines):
            found = _finished(record)
            if found is not None:
                self.finished[found.score.victim] = found
                self.earlier = max(self.earlier, float(record.get("seconds", 0.0)))


def _require_described(spec: Spec, content: dict[str, Any]) -> None:
    """Raises for what plain data can't tell apart: an object that isn't described."""
    for name, value in spec.arguments.items():
        said = value.get("undescribed") if isinstance(value, dict) else None
        if not (said is None or name in content):
            raise InputError(
                f"finished victims can't be kept: {name} is not plain data. {said}"
            )


def fingerprint(spec: Spec, content: dict[str, Any]) -> str:
    """Returns what must be equal for two attacks to be the same one."""
    identity = {"spec": spec.plain(), **content}
    text = json.dumps(files.finite(identity), sort_keys=True)
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
        "score": describe(dataclasses.asdict(finished.score)),
        "oracle": describe(trace.oracle),
        "members": [describe(dataclasses.asdict(each)) for each in finished.members],
        "seconds": seconds,
        "arrays": base64.b64encode(packed.getvalue()).decode(),
    }
    return json.dumps(record, allow_nan=False)


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _finished(record: dict[str, Any]) -> Finished | None:
    """Returns what a record holds; None if it is damaged: its victim runs again."""
    try:
        packed = io.BytesIO(base64.b64decode(record["arrays"], validate=True))
        with np.load(packed, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        frames = _frames(arrays.items())
        trace = Trace(
            array("d", arrays["rmse"].tolist()),
            array("d", arrays["objective"].tolist()),
            float(rebuild(record["oracle"])),
            frames,
        )
        members = tuple(MemberScore(**rebuild(each)) for each in record["members"])
        score = Score(**rebuild(record["score"]))
        return Finished(score, trace, arrays["inputs"], members)
    except _DAMAGE:
        return None


def _frames(arrays: Iterable[tuple[str, Any]]) -> dict[int, Any]:
    named = [(name.removeprefix("frame"), value) for name, value in arrays]
    return {int(name): value for name, value in named if name.isdigit()}
