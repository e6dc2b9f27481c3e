"""CIFAR-10: the python batches, the binary batches, and batches as PNG strips."""

import io
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from gradaudit.data.dataset import Array, Contents
from gradaudit.data.formats.images import read_image
from gradaudit.errors import InputError, require

_SIDE, _CHANNELS, _CLASSES = 32, 3, 10


_PIXELS = _CHANNELS * _SIDE * _SIDE


_BATCHES = {
    "train": tuple(f"data_batch_{number}" for number in range(1, 6)),
    "test": ("test_batch",),
}


# All that a batch needs; a pickle may name any function, and loading would call it.
_ALLOWED = {
    ("_codecs", "encode"),
    ("numpy", "dtype"),
    ("numpy", "ndarray"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy._core.numeric", "_frombuffer"),
}


def accepts_python(path: Path) -> bool:
    """Whether this is a pickled batch or a folder of them."""
    return _has_batches(path, "")


def accepts_binary(path: Path) -> bool:
    """Whether this is a binary batch or a folder of them."""
    return _has_batches(path, ".bin")


def accepts_strips(path: Path) -> bool:
    """Whether this is a folder of batches as PNG strips."""
    return path.is_dir() and _has_batches(path, ".png")


def read_python(path: Path) -> Contents:
    """Reads pickled batches: `data` (n, 3072) and `labels`."""
    return _read(path, "", _python_batch)


def read_binary(path: Path) -> Contents:
    """Reads binary batches: records of one label and 3,072 bytes."""
    return _read(path, ".bin", _binary_batch)


def read_strips(path: Path) -> Contents:
    """Reads batches as PNG: a row is an image, the labels are in a JSON list."""
    splits = {}
    for split, names in _BATCHES.items():
        strips = [read_image(path / f"{name}.png", "RGB") for name in names]
        for name, strip in zip(names, strips, strict=True):
            require(
                strip.shape[1] == _SIDE * _SIDE,
                f"{path / name}.png: field 'width' is {strip.shape[1]}, expected 1024",
            )
        labels = _json_labels(path / f"{split}_lables.json")  # the files' spelling
        images = np.concatenate(strips).reshape(-1, _SIDE, _SIDE, _CHANNELS)
        splits[split] = _checked(path / f"{split}_lables.json", images, labels)
    return Contents(splits, _CLASSES)


def _has_batches(path: Path, suffix: str) -> bool:
    names = [f"{name}{suffix}" for batch in _BATCHES.values() for name in batch]
    if path.is_dir():
        return any((path / name).is_file() for name in names)
    return path.name in names


def _read(
    path: Path, suffix: str, batch: Callable[[Path], tuple[Array, Array]]
) -> Contents:
    splits = {}
    for split, names in _BATCHES.items():
        files = [path / f"{name}{suffix}" for name in names]
        if not path.is_dir():
            files = [path] if path in [path.with_name(f.name) for f in files] else []
        elif any(file.exists() for file in files):
            missing = [file.name for file in files if not file.exists()]
            require(not missing, f"{path}: the batches {missing} are missing")
        else:
            files = []
        if files:
            images, labels = zip(*map(batch, files), strict=True)
            splits[split] = np.concatenate(images), np.concatenate(labels)
    return Contents(splits, _CLASSES)


def _python_batch(path: Path) -> tuple[Array, Array]:
    try:
        batch = _Unpickler(io.BytesIO(path.read_bytes()), encoding="bytes").load()
        pixels, labels = np.asarray(batch[b"data"]), np.asarray(batch[b"labels"])
    except KeyError as error:
        raise InputError(f"{path}: field {error} is missing from the batch") from None
    except Exception as error:  # a damaged pickle can raise anything
        raise InputError(
            f"{path}: field 'pickle' is truncated or corrupt ({error})"
        ) from None
    require(
        pixels.dtype == np.uint8 and pixels.ndim == 2 and pixels.shape[1] == _PIXELS,
        f"{path}: field 'data' is {pixels.dtype} {pixels.shape}, expected uint8 "
        f"(n, {_PIXELS})",
    )
    return _checked(path, _from_planes(pixels), labels)


def _binary_batch(path: Path) -> tuple[Array, Array]:
    data = np.frombuffer(path.read_bytes(), np.uint8)
    require(
        len(data) > 0 and len(data) % (_PIXELS + 1) == 0,
        f"{path}: field 'records' has {len(data)} bytes, not a multiple of "
        f"{_PIXELS + 1}; the file is truncated or corrupt",
    )
    records = data.reshape(-1, _PIXELS + 1)
    return _checked(path, _from_planes(records[:, 1:]), records[:, 0])


def _from_planes(pixels: Array) -> Array:
    planes = pixels.reshape(-1, _CHANNELS, _SIDE, _SIDE)
    return np.ascontiguousarray(planes.transpose(0, 2, 3, 1))


def _checked(path: Path, images: Array, labels: Array) -> tuple[Array, Array]:
    require(
        labels.shape == (len(images),) and np.issubdtype(labels.dtype, np.integer),
        f"{path}: field 'labels' is {labels.dtype} {labels.shape}, expected "
        f"{len(images)} integers",
    )
    require(
        labels.min() >= 0 and labels.max() < _CLASSES,
        f"{path}: field 'labels' holds {labels.min()} to {labels.max()}, expected 0 "
        f"to {_CLASSES - 1}; the file is corrupt",
    )
    return images, labels.astype(np.uint8)


def _json_labels(path: Path) -> Array:
    try:
        return np.asarray(json.loads(path.read_text()))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: field 'labels' can't be read ({error})") from None


class _Unpickler(pickle.Unpickler):
    """Loads arrays and plain values only."""

    def find_class(self, module: str, name: str) -> Any:
        """Returns an allowed constructor; numpy has moved some of its own."""
        module = module.replace("numpy.core", "numpy._core")
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"{module}.{name} has no place in a batch")
        return super().find_class(module, name)
