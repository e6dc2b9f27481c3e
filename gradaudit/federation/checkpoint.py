"""Checkpoints: a finished round on disk, whole or not at all."""

import dataclasses
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradaudit.errors import InputError
from gradaudit.federation.training import Progress, RoundRecord

_VERSION = 1


def save(path: Path, progress: Progress, fingerprint: str) -> None:
    """Writes the progress; a crash in the middle leaves the previous file.

    `fingerprint` says which training it belongs to: `load` refuses another one.
    """
    leaves = jax.tree.leaves((progress.state, progress.values))
    arrays: dict[str, Any] = {
        f"leaf{index}": np.asarray(leaf) for index, leaf in enumerate(leaves)
    }
    about = {
        "version": _VERSION,
        "fingerprint": fingerprint,
        "history": [dataclasses.asdict(record) for record in progress.history],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".partial")
    with temporary.open("wb") as file:
        np.savez(file, about=np.asarray(json.dumps(about)), **arrays)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def load(path: Path, start: Progress, fingerprint: str) -> Progress:
    """Reads the progress of the training that begins at `start`."""
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            about = json.loads(str(file["about"]))
            count = len(file.files) - 1
            arrays = [file[f"leaf{index}"] for index in range(count)]
    except FileNotFoundError:
        raise InputError(f"there is no checkpoint {path}; leave out --resume") from None
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise InputError(f"the checkpoint {path} can't be read: {error}") from None
    if about.get("version") != _VERSION or about.get("fingerprint") != fingerprint:
        raise InputError(
            f"the checkpoint {path} belongs to another training; use its settings, "
            "or another --out"
        )
    expected, structure = jax.tree.flatten((start.state, start.values))
    shapes = [(leaf.shape, leaf.dtype) for leaf in expected]
    if shapes != [(array.shape, array.dtype) for array in arrays]:
        raise InputError(f"the checkpoint {path} does not fit the model")
    state, _ = jax.tree.unflatten(structure, map(jnp.asarray, arrays))
    return Progress(state, arrays[-1], tuple(map(_record, about["history"])))


def _record(fields: dict[str, object]) -> RoundRecord:
    tuples = {k: tuple(v) for k, v in fields.items() if isinstance(v, list)}
    return RoundRecord(**{**fields, **tuples})  # type: ignore[arg-type]
