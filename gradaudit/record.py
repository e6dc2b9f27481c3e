"""Recording what a client received and sent, so that it can be audited by file.

`gradaudit.record(received, sent, folder, ...)` writes one folder per update. It needs
numpy and safetensors, never jax or torch: it runs at the client. It never breaks a
training: whatever goes wrong is logged, and the training goes on. The format is a
contract with a version: see docs/own-system.md.
"""

import contextlib
import dataclasses
import hashlib
import logging
import os
import pathlib
import re
import sys
import tempfile
import types
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from gradaudit import __version__, files
from gradaudit.errors import InputError, at_least, unknown_name

FORMAT = 2
RECEIVED, SENT, ABOUT = "received.safetensors", "sent.safetensors", "observation.json"
# What the tensors in `sent` are.
KINDS = {
    "weights": "the parameters after local training",
    "difference": "the parameters after local training minus those received",
    "gradient": "a gradient",
}
# Where it was taken, and which leakage type that is.
PLACES = {"raw": 1, "wire": 1, "server": 0, "aggregate": 0, "example": 2}
# What a claim may say of the defense.
_NUMBERS = ("clip", "noise_std", "noise_multiplier", "sensitivity", "epsilon", "delta")
CLAIMS = (*_NUMBERS, "mechanism", "law")
_ROUNDS = 1 << 32

log = logging.getLogger("gradaudit")
_said: set[str] = set()  # each thing once: a full disk is no news in every round

Tensors = Mapping[str, Any] | Sequence[Any]  # by name, or in the model's own order


@dataclasses.dataclass(frozen=True)
class Sample:
    """Which updates are recorded, and how much disk they may take.

    A choice depends on the round and the client alone, so that recorders at several
    places of a client, and on several machines, choose the same updates.
    """

    rounds: int = 1  # every so many, the first included
    clients: float = 1.0  # the share of the clients in such a round
    most_mib: float = 1024.0  # in the folder; what goes beyond is not written

    def __post_init__(self) -> None:
        at_least(1, rounds=self.rounds)
        if not 0 <= self.clients <= 1:
            raise InputError(f"clients must be in [0, 1], got {self.clients}")
        if not self.most_mib > 0:
            raise InputError(f"most_mib must be positive, got {self.most_mib}")

    def wants(self, round: int | None, client: str | int | None) -> bool:  # noqa: A002
        """Returns whether this update is recorded; unknown rounds always count."""
        number = 0 if round is None else int(round)
        if round is not None and (number - 1) % self.rounds:
            return False
        drawn = zlib.crc32(f"{number}/{client}".encode()) / _ROUNDS
        return drawn < self.clients


EVERYTHING = Sample()


@dataclasses.dataclass(frozen=True)
class Facts:
    """What is known of an update beside its tensors; None is what nobody said."""

    sent: str = "weights"  # one of KINDS
    place: str = "wire"  # one of PLACES
    round: int | None = None  # from 1
    client: str | int | None = None
    learning_rate: float | None = None
    local_steps: int | None = None
    batch_size: int | None = None
    optimizer: str | None = None  # `sgd`, or another that can't be replayed
    clients: int | None = None  # how many an aggregate is the mean of
    labels: Sequence[int] | None = None  # only if the adversary is meant to know them
    claim: Mapping[str, Any] | None = None  # see CLAIMS
    software: str | None = None  # who wrote it

    def plain(self, digests: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Returns the sidecar, or says what in it can't be."""
        if self.sent not in KINDS:
            raise unknown_name("kind of what was sent", self.sent, KINDS)
        if self.place not in PLACES:
            raise unknown_name("place", self.place, PLACES)
        claim = None if self.claim is None else dict(self.claim)
        for name in claim or ():
            if name not in CLAIMS:
                raise unknown_name("claim", name, CLAIMS)
        labels = None if self.labels is None else [int(label) for label in self.labels]
        return {
            "format": FORMAT,
            "type": PLACES[self.place],
            **dataclasses.asdict(self),
            "labels": labels,
            "claim": claim,
            "software": self.software or f"gradaudit {__version__}",
            "digests": None if digests is None else dict(digests),
        }


def record(
    received: Tensors,
    sent: Tensors,
    folder: str | os.PathLike[str] = "captured",
    *,
    sample: Sample = EVERYTHING,
    **facts: Any,
) -> pathlib.Path | None:
    """Writes what a client received and sent; returns the folder, or None.

    Guarantee: never raises for what is wrong with the tensors, the facts or the disk,
    and never changes its arguments. What is wrong is logged. A folder is there whole
    or not at all.

    Args:
      received: the parameters (and batch-norm statistics) that the client was given:
        name -> array, or a list in the model's order. numpy, torch and jax arrays.
      sent: what it sent back, under the same names.
      folder: the place of all recordings; each update gets a folder of its own inside.
      sample: which rounds and clients are recorded, and the bound on disk use.
      **facts: what is known beside the tensors, see `Facts`: `sent_is` (weights,
        difference, gradient), `place` (raw, wire, server), `round`, `client`,
        `learning_rate`, `local_steps`, `batch_size`, `optimizer`, `claim` ...
    """
    try:
        if "sent_is" in facts:
            facts["sent"] = facts.pop("sent_is")
        return write(pathlib.Path(folder), received, sent, Facts(**facts), sample)
    except Exception as error:  # a training is worth more than its recording
        level = logging.DEBUG if str(error) in _said else logging.WARNING
        log.log(level, "an update was not recorded: %s", error)
        _said.add(str(error))
        return None


def write(
    folder: pathlib.Path,
    received: Tensors,
    sent: Tensors,
    facts: Facts,
    sample: Sample = EVERYTHING,
) -> pathlib.Path | None:
    """Writes one update into a folder of its own, or raises; None if not wanted."""
    if not sample.wants(facts.round, facts.client):
        return None
    given, back = arrays_of(received), arrays_of(sent)
    if not given:
        raise InputError("there are no parameters in what was received")
    if not back:
        raise InputError("nothing was sent (secure aggregation hides the update)")
    size = sum(array.nbytes for array in (*given.values(), *back.values()))
    folder.mkdir(parents=True, exist_ok=True)
    if not _used(folder) + size <= sample.most_mib * (1 << 20):
        raise InputError(f"{folder} would exceed its {sample.most_mib:g} MiB")
    with tempfile.TemporaryDirectory(
        prefix=".recording-", dir=folder, ignore_cleanup_errors=True
    ) as name:
        stage = pathlib.Path(name)
        fill(stage, given, back, facts)
        return _placed(stage, folder, _name(facts))


def fill(
    folder: pathlib.Path,
    received: Mapping[str, NDArray[Any]],
    sent: Mapping[str, NDArray[Any]],
    facts: Facts,
) -> None:
    """Writes the three files of one update, the sidecar last."""
    content = {RECEIVED: save(dict(received)), SENT: save(dict(sent))}
    for name, data in content.items():
        files.write_bytes(folder / name, data)
    digests = {n: hashlib.sha256(data).hexdigest() for n, data in content.items()}
    files.write_json(folder / ABOUT, facts.plain(digests))


def arrays_of(tensors: Tensors) -> dict[str, NDArray[Any]]:
    """Returns named numpy arrays of what numpy, torch, jax or Flower hold."""
    if not isinstance(tensors, Mapping):
        # Names that sort like the list: readers know that they are only numbers.
        tensors = {str(number): tensor for number, tensor in enumerate(tensors)}
    return {str(name): _array(tensor) for name, tensor in tensors.items()}


def _array(tensor: Any) -> NDArray[Any]:
    """Returns a contiguous copy on the host, whatever library the tensor is of."""
    if hasattr(tensor, "detach"):  # torch; numpy has no bfloat16
        tensor = tensor.detach().cpu()
        if "bfloat16" in str(tensor.dtype):
            tensor = tensor.float()
    if hasattr(tensor, "numpy"):
        tensor = tensor.numpy()
    array = np.array(tensor, order="C")
    if array.dtype.kind not in "biuf":
        raise InputError(f"a tensor of {array.dtype} holds no numbers")
    return array


def _name(facts: Facts) -> str:
    parts = [] if facts.round is None else [f"round-{int(facts.round):04d}"]
    if facts.client is not None:
        parts.append("client-" + re.sub(r"[^\w-]+", "_", str(facts.client))[:40])
    return "-".join([*parts, facts.place])


def _used(folder: pathlib.Path) -> int:
    found = 0
    for place, _, names in os.walk(folder):  # passes over what others move meanwhile
        for name in names:
            with contextlib.suppress(OSError):
                found += os.stat(os.path.join(place, name)).st_size
    return found


def _placed(stage: pathlib.Path, folder: pathlib.Path, name: str) -> pathlib.Path:
    """Moves a finished folder to its name; a second one of that name gets a number."""
    stage.chmod(0o755)
    for attempt in range(1, 10_000):
        target = folder / (name if attempt == 1 else f"{name}-{attempt}")
        with contextlib.suppress(OSError):  # taken, maybe by another process just now
            if not target.exists():
                stage.rename(target)
                return target
    raise InputError(f"{folder} holds too many recordings named {name}")


class _CallableModule(types.ModuleType):
    """`import gradaudit.record` puts this module where the function is looked for."""

    def __call__(self, *arguments: Any, **named: Any) -> pathlib.Path | None:
        """See `record`."""
        return record(*arguments, **named)


sys.modules[__name__].__class__ = _CallableModule
