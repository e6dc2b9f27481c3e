"""A training's folder: the last finished round, the history, recorded rounds.

`checkpoint.npz` is written whole after every round and keeps its size;
`history.jsonl` gets one line per round before it, so that after a crash at any
moment the history reaches at least as far as the checkpoint, and is cut to it.
`rounds/` holds what the clients of some rounds received, for attacks on them.
"""

import dataclasses
import json
import os
import pathlib
import zipfile
from collections.abc import Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from gradaudit import files
from gradaudit.errors import InputError
from gradaudit.federation.recipe import ServerState
from gradaudit.federation.training import Progress, RoundRecord
from gradaudit.spec import Spec

CHECKPOINT = "checkpoint.npz"
HISTORY = "history.jsonl"
SPEC = "spec.json"
ROUNDS = "rounds"

_VERSION = 2


def load(
    folder: pathlib.Path, start: Progress, fingerprint: str
) -> tuple[Progress, list[RoundRecord]]:
    """Reads the progress and the history of the training that begins at `start`.

    The history is cut to the checkpoint's round, in the file as well.
    """
    path = folder / CHECKPOINT
    if not path.exists():
        raise InputError(f"there is no checkpoint {path}; leave out --resume")
    about, arrays = _read(path)
    if about.get("version") != _VERSION or about.get("fingerprint") != fingerprint:
        raise InputError(
            f"the checkpoint {path} belongs to another training; use its settings, "
            "or another --out"
        )
    state, values = _unflatten(path, (start.state, start.values), arrays)
    history = _cut_history(folder / HISTORY, int(about["round"]))
    last = history[-1] if history else None
    return Progress(state, np.asarray(values), last), history


@dataclasses.dataclass(frozen=True)
class RecordedRound:
    """A round of a training that really took place."""

    spec: Spec  # of the training, which it rebuilds
    round: int  # counted from 1, as in the history
    participants: tuple[int, ...]  # who took part, by id
    leaves: tuple[NDArray[Any], ...]  # of the state in which the round began

    def state(self, like: ServerState) -> ServerState:
        """Returns what the round began with; `like` is the training's first state."""
        name = pathlib.Path(f"round {self.round}")
        state: ServerState = _unflatten(name, like, self.leaves)
        return state


def record_start(folder: pathlib.Path, progress: Progress) -> None:
    """Keeps the state in which the round that has just ended began."""
    if progress.began is not None and progress.last is not None:
        number = progress.last.round
        about = {"version": _VERSION, "round": number}
        _write(_recorded(folder, number), about, _leaves(progress.began))


def load_round(folder: pathlib.Path, number: int) -> RecordedRound:
    """Reads a recorded round of a training's folder, counted from 1.

    Gives the training's Spec, who took part, and the parameters and transform states
    that they received (see `RecordedRound.state`). Refuses a round that was not
    recorded, and says which ones were.
    """
    path = _recorded(folder, number)
    if not path.exists():
        known = sorted(int(file.stem) for file in (folder / ROUNDS).glob("*.npz"))
        if not known:
            raise InputError(f"{folder} holds no recorded rounds of a training")
        words = ", ".join(map(str, known))
        raise InputError(
            f"round {number} of {folder} was not recorded (there are: {words}); "
            "train again with --record-every to keep others"
        )
    history = _read_history(folder / HISTORY)[0]
    if not 0 < number <= len(history):
        raise InputError(f"the history of {folder} ends before {number}")
    _, arrays = _read(path)
    who = history[number - 1].participants
    return RecordedRound(Spec.read(folder / SPEC), number, who, tuple(arrays))


def _recorded(folder: pathlib.Path, number: int) -> pathlib.Path:
    return folder / ROUNDS / f"{number:06d}.npz"


def _leaves(value: Any) -> list[NDArray[Any]]:
    return [np.asarray(_bits(leaf)) for leaf in jax.tree.leaves(value)]


def _bits(leaf: Any) -> Any:
    """Returns an array as it is, and a random key, as servers may keep, as bits."""
    is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(leaf) if is_key else leaf


def _as(like: Any, array: NDArray[Any]) -> jax.Array:
    is_key = jnp.issubdtype(like.dtype, jax.dtypes.prng_key)
    loaded = jnp.asarray(array)
    if not is_key:
        return loaded
    key: jax.Array = jax.random.wrap_key_data(loaded, impl=jax.random.key_impl(like))
    return key


def _write(
    path: pathlib.Path, about: dict[str, Any], arrays: Sequence[NDArray[Any]]
) -> None:
    named: dict[str, Any] = {f"leaf{i}": array for i, array in enumerate(arrays)}
    note = np.asarray(json.dumps(about))
    files.write_whole(path, lambda file: np.savez(file, about=note, **named))


def _read(path: pathlib.Path) -> tuple[dict[str, Any], list[NDArray[Any]]]:
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            about = json.loads(str(file["about"]))
            count = len(file.files) - 1
            arrays = [file[f"leaf{index}"] for index in range(count)]
            return dict(about), arrays
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise InputError(f"the checkpoint {path} can't be read: {error}") from None


def _unflatten(path: pathlib.Path, like: Any, arrays: Sequence[NDArray[Any]]) -> Any:
    expected, structure = jax.tree.flatten(like)
    if [(leaf.shape, leaf.dtype) for leaf in map(_bits, expected)] != [
        (array.shape, array.dtype) for array in arrays
    ]:
        raise InputError(f"the checkpoint {path} does not fit the model")
    return jax.tree.unflatten(structure, map(_as, expected, arrays))


def _read_history(path: pathlib.Path) -> tuple[list[RoundRecord], list[int]]:
    """Returns the whole records from the first on, and where in the file each ends."""
    records: list[RoundRecord] = []
    ends: list[int] = []
    content = path.read_bytes() if path.exists() else b""
    place = 0
    for line in content.splitlines(keepends=True):
        place += len(line)
        try:
            record = _record(json.loads(line)) if line.endswith(b"\n") else None
        except (ValueError, TypeError):
            record = None
        if record is None or record.round != len(records) + 1:
            break  # torn by a crash: nothing behind it counts
        records.append(record)
        ends.append(place)
    return records, ends


def _cut_history(path: pathlib.Path, rounds: int) -> list[RoundRecord]:
    records, ends = _read_history(path)
    if len(records) < rounds:
        raise InputError(
            f"the history {path} ends at round {len(records)}, the checkpoint is at "
            f"{rounds}: the folder is damaged, train again with --overwrite"
        )
    if rounds and path.stat().st_size > ends[rounds - 1]:
        os.truncate(path, ends[rounds - 1])
    return records[:rounds]


def _record(fields: dict[str, Any]) -> RoundRecord:
    tuples = {k: tuple(v) for k, v in fields.items() if isinstance(v, list)}
    record = RoundRecord(**{**fields, **tuples})
    # JSON has no NaN: a loss that was not finite is null in the file.
    lost = record.training_loss is None
    return dataclasses.replace(record, training_loss=float("nan")) if lost else record


class RunFolder:
    """Keeps a training's rounds in a folder, or (None) only its history in memory."""

    def __init__(
        self,
        out: pathlib.Path | str | None,
        spec: Spec,
        fingerprint: str,
        record: int | Collection[int] | None = None,
    ) -> None:
        self.history: list[RoundRecord] = []
        self._path = None if out is None else pathlib.Path(out)
        self._spec, self._fingerprint, self._record = spec, fingerprint, record

    def open(self, start: Progress, resume: bool, overwrite: bool) -> Progress:
        """Returns where the training goes on; refuses a folder of another one.

        The same training goes on from its last round; `resume` insists on that,
        `overwrite` begins anew.
        """
        path = self._path
        if path is None:
            if resume:
                raise InputError("to resume, say which folder with --out")
            return start
        begun = not overwrite and (path / CHECKPOINT).exists()
        found = str(_read(path / CHECKPOINT)[0].get("fingerprint")) if begun else None
        if resume or found == self._fingerprint:
            progress, self.history = load(path, start, self._fingerprint)
            return progress
        if not overwrite and (begun or self._has_others_result(path)):
            raise InputError(
                f"{path} holds another training, or another run's result: choose "
                "another --out, or say --overwrite"
            )
        (path / CHECKPOINT).unlink(missing_ok=True)  # first: nothing belongs to it now
        for stale in (path / ROUNDS).glob("*.npz"):
            stale.unlink()
        for name in ("result.json", HISTORY):
            (path / name).unlink(missing_ok=True)
        files.write_json(path / SPEC, self._spec.plain())
        return start

    def _has_others_result(self, folder: pathlib.Path) -> bool:
        """Returns whether a result is there that is not this training's own.

        A training that is ended before its first round leaves one, and no checkpoint.
        """
        if not (folder / "result.json").exists():
            return False
        try:
            return Spec.read(folder) != self._spec
        except InputError:
            return True

    def keep(self, progress: Progress) -> None:
        """Keeps a finished round; a crash at any moment leaves it or the one before."""
        path, last = self._path, progress.last
        if last is None:
            return
        self.history.append(last)
        if path is None:
            return
        if _is_recorded(last.round, self._record):
            record_start(path, progress)
        line = json.dumps(files.finite(dataclasses.asdict(last)))
        files.append_lines(path / HISTORY, [line])
        about = {
            "version": _VERSION,
            "fingerprint": self._fingerprint,
            "round": int(progress.state.round),
        }
        _write(path / CHECKPOINT, about, _leaves((progress.state, progress.values)))

    def close(self, progress: Progress) -> None:
        """Records the last round."""
        if self._path is not None:
            record_start(self._path, progress)


def _is_recorded(number: int, wanted: int | Collection[int] | None) -> bool:
    if wanted is None:  # 1, 2, 4, 8 ...: few files, however long the training
        return number & (number - 1) == 0
    if isinstance(wanted, int):
        return number == 1 or number % wanted == 0
    return number in wanted
