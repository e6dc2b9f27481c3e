"""One captured update, read from its folder: no model is needed, and no jax.

A folder holds `received` (parameters and statistics that the client was given), `sent`
(what it sent), each as safetensors, `.npz` or `.pt`, and `observation.json` (what is
known of the rest). Nothing in it is code (a `.pt` is read by torch's reader of weights,
which runs none). Names, shapes, numbers and what they say of each other are checked
before use. `gradaudit.record` writes such folders.
"""

import dataclasses
import hashlib
import math
import pathlib
import zipfile
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from gradaudit import files
from gradaudit.data.formats.tabular import DAMAGE, read_member
from gradaudit.errors import InputError, unknown_name
from gradaudit.record import ABOUT, CLAIMS, FORMAT, KINDS, PLACES, Facts

MOST_BYTES = 4 << 30  # a file, and what it decodes to
_MOST_AXES = 32
_DEEPEST = 3  # folders in which recordings are looked for
_SHOWN = 5  # names of tensors in a message
Arrays = dict[str, NDArray[Any]]

# Of format 1, which had types and no places.
_PLACE_OF_TYPE = {2: "example", 1: "wire", 0: "server"}


@dataclasses.dataclass(frozen=True)
class Capture:
    """One update as it was captured, on the host; no model is needed to read it."""

    folder: pathlib.Path
    facts: Facts
    received: Arrays
    sent: Arrays

    @property
    def identity(self) -> tuple[int | None, str | None]:
        """The round and the client: what pairs recordings of one update."""
        client = self.facts.client
        return self.facts.round, None if client is None else str(client)

    def moved(self) -> Arrays:
        """Returns what was sent as an update (or a gradient), tensor by tensor."""
        if self.facts.sent != "weights":
            return self.sent
        return {
            # In double precision: the subtraction itself adds no rounding.
            name: np.subtract(array, self.received[name], dtype=np.float64).astype("f4")
            for name, array in self.sent.items()
            if name in self.received and array.dtype.kind == "f"
        }

    def knowing(self, **known: Any) -> "Capture":
        """Returns the capture with facts that its sidecar leaves open; None is none.

        Raises if the sidecar says otherwise.
        """
        given = {name: value for name, value in known.items() if value is not None}
        for name, value in given.items():
            said = getattr(self.facts, name)
            if said is not None and said != value:
                raise InputError(
                    f"{self.folder / ABOUT} says that {name} is {said!r}, and "
                    f"{value!r} was given: correct one of them"
                )
        return dataclasses.replace(self, facts=dataclasses.replace(self.facts, **given))


def find(folder: pathlib.Path | str) -> list[pathlib.Path]:
    """Returns the folders of the captured updates in a folder, or the folder itself."""
    source = pathlib.Path(folder)
    if not source.is_dir():
        raise InputError(f"there is no folder {source} with captured updates")
    if (source / ABOUT).exists():
        return [source]
    depths = ["*/" * depth + ABOUT for depth in range(1, _DEEPEST + 1)]
    found = sorted(path.parent for depth in depths for path in source.glob(depth))
    found = [path for path in found if not path.name.startswith(".")]
    if not found:
        raise InputError(
            f"{source} holds no captured update: a folder with {ABOUT}, received.* and "
            "sent.*, as gradaudit.record writes it (docs/own-system.md)"
        )
    return found


def read_capture(folder: pathlib.Path | str) -> Capture:
    """Reads one update; refuses in words what is damaged or contradicts itself."""
    source = pathlib.Path(folder)
    if not source.is_dir():
        raise InputError(f"there is no folder {source} with a captured update")
    about = files.read_json(source / ABOUT, "sidecar")
    facts = _facts(source / ABOUT, about)
    _check_digests(source, about)
    received, sent = (read_tensors(source, name) for name in ("received", "sent"))
    if about["format"] == 1:  # there parameters and statistics had prefixes
        received = {name.partition("/")[2]: array for name, array in received.items()}
    for name, array in [*received.items(), *sent.items()]:
        if not np.isfinite(array).all():
            raise InputError(
                f"{source}: {name} holds NaN or infinity: nothing can be said of it; "
                "check the training step that produced it"
            )
    capture = Capture(source, facts, received, sent)
    _check_tensors(capture)
    return capture


def _check_tensors(capture: Capture) -> None:
    """Raises unless what was sent belongs to what was received, and moved it."""
    missing = [name for name in capture.sent if name not in capture.received]
    if missing:
        raise InputError(
            f"{capture.folder}: what was sent has tensors that were not received: "
            f"{listed(missing)}"
        )
    for name, array in capture.sent.items():
        given = capture.received[name]
        if array.shape != given.shape:
            raise InputError(
                f"{capture.folder}: {name} was received with shape {given.shape} and "
                f"sent with {array.shape}"
            )
    if not any(array.any() for array in capture.moved().values()):
        raise InputError(
            f"{capture.folder}: the update is zero everywhere: it holds no information "
            "(received and sent are the same, or the learning rate was 0)"
        )


def _facts(path: pathlib.Path, about: Any) -> Facts:
    """Returns the sidecar's facts, or says which of them can't be."""
    if not isinstance(about, dict):
        raise InputError(f"{path} must hold one JSON object")
    known = about.get("format")
    if not (type(known) is int and 1 <= known <= FORMAT):
        raise InputError(
            f"{path} has format {known!r}; this version reads 1 to {FORMAT}"
        )
    if known == 1:
        kind = about.get("type")  # whatever is not one of ours is refused as a place
        place = _PLACE_OF_TYPE.get(kind, kind) if isinstance(kind, int) else kind
        about = about | {"place": place}
    names = {field.name for field in dataclasses.fields(Facts)}
    for name in about:
        if name not in names | {"format", "type", "digests"}:
            raise unknown_name(f"fact in {path}", str(name), names)
    facts = {name: about[name] for name in names & set(about)}
    for name, value in facts.items():
        accepts, words = _FACTS[name]
        if not ((value is None and name not in ("sent", "place")) or accepts(value)):
            raise InputError(f"{path}: {name} must be {words}, got {value!r}")
    for name in ("sent", "place"):
        if name not in facts:
            raise InputError(f"{path} does not say {name}: {_FACTS[name][1]}")
    meant = PLACES[facts["place"]]
    if about.get("type", meant) != meant or type(about.get("type", 0)) is not int:
        raise InputError(
            f"{path}: type must be {meant} for the place {facts['place']!r}, got "
            f"{about.get('type')!r}"
        )
    if meant == 2 and facts["sent"] != "gradient":
        raise InputError(
            f"{path}: of one example (type 2) a gradient is read, got {facts['sent']!r}"
        )
    if known == 1 and facts["sent"] != ("gradient" if meant == 2 else "difference"):
        raise InputError(
            f"{path}: in format 1, type {meant} can't hold {facts['sent']!r}"
        )
    return Facts(**facts)


def _whole(value: Any) -> bool:
    return type(value) is int and value >= 1


def _positive(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and math.isfinite(value) and value > 0


def _is_claim(value: Any) -> bool:
    if not isinstance(value, dict) or not set(value) <= set(CLAIMS):
        return False
    return all(
        isinstance(entry, str)
        if name in ("mechanism", "law")
        else entry is None or entry == 0 or _positive(entry)
        for name, entry in value.items()
    )


_FACTS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "sent": (lambda v: isinstance(v, str) and v in KINDS, " or ".join(KINDS)),
    "place": (lambda v: isinstance(v, str) and v in PLACES, " or ".join(PLACES)),
    "round": (lambda v: type(v) is int and v >= 0, "a whole number"),
    "client": (lambda v: type(v) in (int, str), "a name or a number"),
    "learning_rate": (_positive, "positive and finite"),
    "local_steps": (_whole, "a whole number from 1"),
    "batch_size": (_whole, "a whole number from 1"),
    "optimizer": (lambda v: isinstance(v, str), "a name, as sgd"),
    "clients": (_whole, "a whole number from 1"),
    "labels": (
        lambda v: isinstance(v, list) and all(type(label) is int for label in v),
        "whole numbers or null",
    ),
    "claim": (_is_claim, f"an object with numbers of {', '.join(CLAIMS)}"),
    "software": (lambda v: isinstance(v, str), "a text"),
}


def _check_digests(folder: pathlib.Path, about: Mapping[str, Any]) -> None:
    """Raises if a file is not the one that the sidecar was written with."""
    digests = about.get("digests") or {}
    if not isinstance(digests, dict):
        raise InputError(f"{folder / ABOUT}: digests must be an object")
    for name, known in digests.items():
        path = folder / pathlib.PurePath(str(name)).name
        if not path.is_file():
            raise InputError(f"there is no file {path}, which {ABOUT} names")
        if files.digest(path) != known:
            raise InputError(
                f"{path} is not the file that was recorded: it was cut, changed or "
                f"swapped (its SHA-256 is not the one in {ABOUT})"
            )


def content_digest(captures: list[Capture]) -> str:
    """Returns a SHA-256 of everything in these captures."""
    whole = hashlib.sha256()
    for capture in captures:
        whole.update(repr(capture.facts).encode())
        for name, array in [*capture.received.items(), *capture.sent.items()]:
            whole.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
            whole.update(np.ascontiguousarray(array).data)
    return whole.hexdigest()


def listed(names: Collection[str]) -> str:
    """Returns some of these names, for a message."""
    shown = ", ".join(sorted(names)[:_SHOWN]) or "none"
    return f"{shown} ..." if len(names) > _SHOWN else shown


def read_tensors(folder: pathlib.Path, stem: str) -> Arrays:
    """Returns the named tensors of `stem`.safetensors, .npz or .pt; floats as float32.

    Raises in words for none or several of them, for what is too large, damaged, or
    holds anything but numbers.
    """
    found = [folder / f"{stem}{suffix}" for suffix in _READERS]
    found = [path for path in found if path.exists()]
    if not found:
        raise InputError(
            f"there is no file {folder / stem} (.safetensors, .npz or .pt)"
        )
    if len(found) != 1:
        raise InputError(
            f"{folder} has {' and '.join(path.name for path in found)}: keep the one "
            "that is meant"
        )
    return read_tensor_file(found[0])


def read_tensor_file(path: pathlib.Path) -> Arrays:
    """Returns the named tensors of one such file; raises in words likewise."""
    if path.suffix not in _READERS:
        raise InputError(
            f"{path} must end in {', '.join(_READERS)}: named tensors of a model"
        )
    if not path.exists():
        raise InputError(f"there is no file {path}")
    if not path.is_file():
        raise InputError(f"{path} is no regular file")
    size = path.stat().st_size
    if not size <= MOST_BYTES:
        raise InputError(f"{path} has {size} bytes, more than {MOST_BYTES}")
    tensors = {str(name): array for name, array in _READERS[path.suffix](path).items()}
    if not tensors:
        raise InputError(f"{path} holds no tensors")
    return {name: _numbers(path, name, array) for name, array in tensors.items()}


def _numbers(path: pathlib.Path, name: str, array: NDArray[Any]) -> NDArray[Any]:
    # bfloat16 and its kin are of kind V to numpy, and convert like any float.
    floating = array.dtype.kind == "f" or "float" in array.dtype.name
    if not (floating or array.dtype.kind in "biu"):
        raise InputError(f"{path}: {name} holds {array.dtype}, expected numbers")
    if not floating:
        return array
    with np.errstate(over="ignore"):  # an infinity is refused with its name
        return array.astype(np.float32)


def _read_safetensors(path: pathlib.Path) -> Arrays:
    try:
        return load_file(path)
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} can't be read as safetensors: {error}") from None


def _read_npz(path: pathlib.Path) -> Arrays:
    with files.opened(path) as file:
        try:
            with zipfile.ZipFile(file) as archive:
                declared = sum(info.file_size for info in archive.filelist)
                if not declared <= MOST_BYTES:
                    raise InputError(
                        f"{path} decodes to {declared} bytes, more than {MOST_BYTES}"
                    )
                names = [info.filename for info in archive.filelist]
                if not all(name.endswith(".npy") for name in names):
                    raise InputError(f"{path} holds files that are no arrays")
                return {
                    name: read_member(path, archive, name, 0, _MOST_AXES)
                    for name in (each.removesuffix(".npy") for each in names)
                }
        except InputError:
            raise
        except DAMAGE as error:
            raise InputError(f"{path} can't be read as .npz: {error}") from None


def _read_pt(path: pathlib.Path) -> Arrays:
    try:
        import torch
    except ImportError:
        raise InputError(
            f"{path} is a pickle of torch, which is not installed: pip install "
            "'gradaudit[torch]', or write it as safetensors"
        ) from None
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever a damaged pickle does to torch's reader
        said = next(iter(str(error).splitlines()), "")
        raise InputError(f"{path} can't be read as torch's weights: {said}") from None
    if not isinstance(loaded, dict) or not all(
        isinstance(tensor, torch.Tensor) for tensor in loaded.values()
    ):
        raise InputError(
            f"{path} must hold a state_dict: names and tensors, nothing else"
        )
    # numpy has no bfloat16.
    return {
        name: (tensor.float() if tensor.is_floating_point() else tensor)
        .detach()
        .numpy()
        for name, tensor in loaded.items()
    }


_READERS: dict[str, Callable[[pathlib.Path], Arrays]] = {
    ".safetensors": _read_safetensors,
    ".npz": _read_npz,
    ".pt": _read_pt,
}
