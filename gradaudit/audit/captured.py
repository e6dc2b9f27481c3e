"""Observations in files: what somebody captured, to be audited by file.

A folder holds `received.safetensors` (parameters and buffers that the client was
given), `sent.safetensors` (what it sent) and `observation.json` (what is known of the
rest). Nothing in it is code: no pickle, names and shapes are checked before use.
"""

import dataclasses
import math
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from gradaudit import files, tree
from gradaudit.attacks.base import check_observation
from gradaudit.errors import InputError, require
from gradaudit.models.model import Model
from gradaudit.types import Leakage, LocalTraining, Observation, PyTree

FORMAT = 1
RECEIVED, SENT, ABOUT = "received.safetensors", "sent.safetensors", "observation.json"
_MOST_BYTES = 4 << 30
_PARAMS, _BUFFERS = "params/", "buffers/"


def save_observation(folder: pathlib.Path | str, observation: Observation) -> None:
    """Writes one observation; `load_observation` reads an equal one."""
    target = pathlib.Path(folder)
    received = {
        **_flat(_PARAMS, observation.params),
        **_flat(_BUFFERS, observation.buffers),
    }
    _write(target / RECEIVED, received)
    _write(target / SENT, _flat("", observation.sent))
    labels = observation.labels
    about = {
        "format": FORMAT,
        "type": int(observation.leakage),
        "sent": "gradient" if observation.leakage is Leakage.EXAMPLE else "difference",
        "labels": None if labels is None else np.asarray(labels).tolist(),
        **dataclasses.asdict(observation.training),
    }
    files.write_json(target / ABOUT, about)


def load_observation(folder: pathlib.Path | str, model: Model) -> Observation:
    """Reads one observation and checks that it fits the model; refuses in words."""
    source = pathlib.Path(folder)
    require(source.is_dir(), f"there is no folder {source} with a captured observation")
    about = _about(source / ABOUT)
    received, sent = _tensors(source / RECEIVED), _tensors(source / SENT)
    params = _nested(received, _PARAMS)
    labels = about["labels"]
    observation = Observation(
        params=params,
        sent=_nested(sent, ""),
        buffers=_nested(received, _BUFFERS),
        labels=None if labels is None else jnp.asarray(labels, jnp.int32),
        leakage=Leakage(about["type"]),
        training=LocalTraining(
            batch_size=about["batch_size"],
            local_steps=about["local_steps"],
            learning_rate=float(about["learning_rate"]),
            optimizer=about["optimizer"],
        ),
    )
    expected, found = (set(tree.names(t)) for t in (_shapes(model), params))
    require(
        expected == found,
        f"{source / RECEIVED} does not hold the parameters of model {model.name!r}: "
        f"missing {', '.join(sorted(expected - found)) or 'none'}, "
        f"unknown {', '.join(sorted(found - expected)) or 'none'}",
    )
    check_observation(model, observation)
    return observation


def _write(path: pathlib.Path, arrays: dict[str, NDArray[Any]]) -> None:
    content = save(arrays)
    files.write_whole(path, lambda file: file.write(content))


def _shapes(model: Model) -> PyTree:
    return jax.eval_shape(model.init, jax.random.key(0))


def _about(path: pathlib.Path) -> dict[str, Any]:
    about: dict[str, Any] = files.read_json(path, "sidecar")
    require(isinstance(about, dict), f"{path} must hold one JSON object")
    require(
        about.get("format") == FORMAT,
        f"{path} has format {about.get('format')!r}; this version reads {FORMAT}",
    )
    require(
        about.get("type") in (0, 1, 2), f"{path}: type must be 0, 1 or 2, got "
        f"{about.get('type')!r}",
    )  # fmt: skip
    meant = "gradient" if about["type"] == 2 else "difference"
    require(
        about.get("sent") == meant,
        f"{path}: a type {about['type']} observation holds a {meant}, got "
        f"{about.get('sent')!r}",
    )
    for name in ("batch_size", "local_steps"):
        value = about.get(name)
        require(
            isinstance(value, int) and not isinstance(value, bool) and value >= 1,
            f"{path}: {name} must be a whole number from 1, got {value!r}",
        )
    rate = about.get("learning_rate")
    require(
        isinstance(rate, (int, float)) and math.isfinite(rate) and rate > 0,
        f"{path}: learning_rate must be positive and finite, got {rate!r}",
    )
    require(
        about.get("optimizer") == "sgd",
        f"{path}: an update of optimizer {about.get('optimizer')!r} can't be replayed "
        "yet; sgd can",
    )
    labels = about.setdefault("labels", None)
    whole = isinstance(labels, list) and all(type(label) is int for label in labels)
    require(labels is None or whole, f"{path}: labels must be whole numbers or null")
    return about


def _tensors(path: pathlib.Path) -> dict[str, NDArray[Any]]:
    require(path.is_file(), f"there is no file {path}")
    size = path.stat().st_size
    require(size <= _MOST_BYTES, f"{path} has {size} bytes, more than {_MOST_BYTES}")
    try:
        loaded: dict[str, NDArray[Any]] = load_file(path)
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise InputError(f"{path} can't be read as safetensors: {error}") from None
    for name, array in loaded.items():
        require(
            array.dtype == np.float32,
            f"{path}: {name} must be float32, got {array.dtype}",
        )
    return loaded


def _flat(prefix: str, values: PyTree) -> dict[str, NDArray[Any]]:
    names, leaves = tree.names(values), jax.tree.leaves(values)
    return {
        f"{prefix}{name}": np.ascontiguousarray(leaf)
        for name, leaf in zip(names, leaves, strict=True)
    }


def _nested(tensors: Mapping[str, NDArray[Any]], prefix: str) -> dict[str, Any]:
    """Returns the tree of nested dicts that the names spell."""
    whole: dict[str, Any] = {}
    for name, array in tensors.items():
        if not name.startswith(prefix):
            continue
        *folders, leaf = name.removeprefix(prefix).split("/")
        place = whole
        for part in folders:
            place = place.setdefault(part, {})
            require(isinstance(place, dict), f"the tensor names clash at {name!r}")
        place[leaf] = jnp.asarray(array)
    return whole
