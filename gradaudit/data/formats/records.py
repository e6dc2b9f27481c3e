"""Records of bytes: IDX files (MNIST and its successors) and CIFAR-10's batches."""

import gzip
import io
import json
import math
import pickle
import pickletools
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np

from gradaudit import files
from gradaudit.data.dataset import Array, Contents, whole_labels
from gradaudit.data.formats.images import read_image
from gradaudit.errors import InputError

_GZIP_MAGIC = b"\x1f\x8b"
_MOST_AXES = 4
_DTYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_IDX_SPLITS = {"train": "train", "t10k": "test"}

_SIDE, _CHANNELS, _CLASSES = 32, 3, 10
_PIXELS = _CHANNELS * _SIDE * _SIDE
_MOST_MEMOS = 1 << 20  # of a pickle; a batch has a few per file name
_BATCHES = {
    "train": tuple(f"data_batch_{number}" for number in range(1, 6)),
    "test": ("test_batch",),
}


def accepts_idx(path: Path) -> bool:
    """Whether this is an IDX image file or a folder that holds one."""
    if path.is_dir():
        return any(_idx_images(path))
    return "images" in path.name and "idx3" in path.name


def read_idx(path: Path) -> Contents:
    """Reads a folder of IDX pairs, or one image file with its labels beside it."""
    splits = {}
    for images in _idx_images(path) if path.is_dir() else [path]:
        prefix = images.name.split("-")[0].lower()
        splits[_IDX_SPLITS.get(prefix, "all")] = _idx_pair(images)
    classes = max(int(labels.max()) for _, labels in splits.values()) + 1
    return Contents(dict(sorted(splits.items(), reverse=True)), classes)


def _idx_images(folder: Path) -> list[Path]:
    return sorted(folder.glob("*images*idx3*"))


def _idx_pair(images: Path) -> tuple[Array, Array]:
    name = images.name.replace("images", "labels").replace("idx3", "idx1")
    # The labels of a plain file may be gzipped and the other way round.
    names = (name, name.removesuffix(".gz"), name + ".gz")
    found = [images.with_name(n) for n in names if images.with_name(n).exists()]
    if not found:
        raise InputError(f"{images}: the labels {name} are not beside it")
    pixels, labels = _idx_array(images), _idx_array(found[0])
    if pixels.ndim != 3 or labels.shape != pixels.shape[:1] or not len(labels):
        raise InputError(
            f"{found[0]}: field 'dimensions' is {labels.shape}, the images are "
            f"{pixels.shape}; the two files don't belong together"
        )
    return pixels, whole_labels(found[0], "labels", labels, len(pixels))


def _idx_array(path: Path) -> Array:
    """Returns the array of one IDX file, plain or gzipped."""
    with files.opened(path) as file:
        zipped = file.read(2) == _GZIP_MAGIC
        file.seek(0)
        if not zipped:
            return _idx_stream(path, file)
        try:
            with gzip.GzipFile(fileobj=file) as stream:
                return _idx_stream(path, stream)
        except (EOFError, OSError, zlib.error) as error:
            raise InputError(
                f"{path}: field 'gzip stream' is corrupt ({error})"
            ) from None


def _idx_stream(path: Path, stream: io.BufferedIOBase | IO[bytes]) -> Array:
    """Decodes what the header declares and looks one byte further."""
    magic = files.read_up_to(stream, 4)
    if (
        len(magic) != 4
        or magic[:2] != b"\0\0"
        or magic[2] not in _DTYPES
        or not 0 < magic[3] <= _MOST_AXES
    ):
        raise InputError(
            f"{path}: field 'magic number' is {magic.hex() or 'missing'}; not an IDX "
            f"file of 1 to {_MOST_AXES} axes"
        )
    dtype, axes = np.dtype(_DTYPES[magic[2]]), magic[3]
    sizes = files.read_up_to(stream, 4 * axes)
    if len(sizes) != 4 * axes:
        raise InputError(f"{path}: field 'dimensions' is cut off; fetch it again")
    shape = tuple(int(size) for size in np.frombuffer(sizes, ">u4"))
    expected = math.prod(shape) * dtype.itemsize
    files.require_room(path, "data", expected)
    data = files.read_up_to(stream, expected)
    more = " and more" if stream.read(1) else ""
    if len(data) != expected or more:
        raise InputError(
            f"{path}: field 'data' has {len(data)} bytes{more}, shape {shape} needs "
            f"{expected}; the file is truncated or corrupt"
        )
    return np.frombuffer(data, dtype).reshape(shape)


def holds_batches(suffix: str, path: Path) -> bool:
    """Whether this is a batch of CIFAR-10 or a folder of them, with this suffix."""
    names = [f"{name}{suffix}" for batch in _BATCHES.values() for name in batch]
    if path.is_dir():
        return any((path / name).is_file() for name in names)
    return path.name in names


def accepts_cifar_strips(path: Path) -> bool:
    """Whether this is a folder of batches as PNG strips."""
    return path.is_dir() and holds_batches(".png", path)


def read_cifar_strips(path: Path) -> Contents:
    """Reads batches as PNG: a row is an image, the labels are in a JSON list."""
    splits = {}
    for split, names in _BATCHES.items():
        strips = [_strip(path / f"{name}.png") for name in names]
        images = np.concatenate(strips).reshape(-1, _SIDE, _SIDE, _CHANNELS)
        beside = path / f"{split}_lables.json"  # the files' spelling
        splits[split] = _checked(beside, images, _json_labels(beside))
    return Contents(splits, _CLASSES)


def _strip(path: Path) -> Array:
    strip = read_image(path, "RGB")
    width = strip.shape[1]
    if width != _SIDE * _SIDE:
        raise InputError(f"{path}: field 'width' is {width}, expected {_SIDE * _SIDE}")
    return strip


def read_batches(
    suffix: str, batch: Callable[[Path], tuple[Array, Array]], path: Path
) -> Contents:
    """Reads a batch, or every batch of a folder."""
    splits = {}
    for split, names in _BATCHES.items():
        wanted = [f"{name}{suffix}" for name in names]
        found = [name for name in wanted if (path / name).exists()]
        if not path.is_dir():
            batches = [path] if path.name in wanted else []
        elif found and found != wanted:
            missing = [name for name in wanted if name not in found]
            raise InputError(f"{path}: the batches {missing} are missing")
        else:
            batches = [path / name for name in found]
        if batches:
            images, labels = zip(*map(batch, batches), strict=True)
            splits[split] = np.concatenate(images), np.concatenate(labels)
    return Contents(splits, _CLASSES)


def python_batch(path: Path) -> tuple[Array, Array]:
    """Reads a pickled batch: `data` (n, 3072) and `labels`."""
    data = files.read_all(path)
    try:
        _check_memos(data)
        batch = _Unpickler(io.BytesIO(data), encoding="bytes").load()
        pixels, labels = batch[b"data"], batch[b"labels"]
    except KeyError as error:
        raise InputError(f"{path}: field {error} is missing from the batch") from None
    except Exception as error:  # a damaged pickle can raise anything
        raise InputError(
            f"{path}: field 'pickle' is truncated or corrupt ({error})"
        ) from None
    if (
        not isinstance(pixels, np.ndarray)
        or pixels.dtype != np.uint8
        or pixels.ndim != 2
        or pixels.shape[1] != _PIXELS
    ):
        raise InputError(
            f"{path}: field 'data' must be uint8 (n, {_PIXELS}), found "
            f"{getattr(pixels, 'dtype', type(pixels).__name__)} "
            f"{getattr(pixels, 'shape', '')}"
        )
    # Lists that hold one another could stand for more numbers than there is memory.
    flat = isinstance(labels, list) and all(type(label) is int for label in labels)
    if not (flat or isinstance(labels, np.ndarray)):
        raise InputError(f"{path}: field 'labels' must be a list of integers")
    return _checked(path, _from_planes(pixels), np.asarray(labels))


def binary_batch(path: Path) -> tuple[Array, Array]:
    """Reads a binary batch: records of one label and 3,072 bytes."""
    data = np.frombuffer(files.read_all(path), np.uint8)
    if not len(data) or len(data) % (_PIXELS + 1) != 0:
        raise InputError(
            f"{path}: field 'records' has {len(data)} bytes, not a multiple of "
            f"{_PIXELS + 1}; the file is truncated or corrupt"
        )
    records = data.reshape(-1, _PIXELS + 1)
    return _checked(path, _from_planes(records[:, 1:]), records[:, 0])


def _from_planes(pixels: Array) -> Array:
    planes = pixels.reshape(-1, _CHANNELS, _SIDE, _SIDE)
    return np.ascontiguousarray(planes.transpose(0, 2, 3, 1))


def _checked(path: Path, images: Array, labels: Array) -> tuple[Array, Array]:
    labels = whole_labels(path, "labels", labels, len(images), 0, _CLASSES - 1)
    return images, labels.astype(np.uint8)


def _json_labels(path: Path) -> Array:
    try:
        return np.asarray(json.loads(files.read_all(path)))
    except InputError:
        raise
    except (ValueError, RecursionError, OverflowError) as error:
        raise InputError(f"{path}: field 'labels' can't be read ({error})") from None


def _check_memos(data: bytearray) -> None:
    """Refuses a pickle whose memo would be larger than the pickle."""
    for opcode, argument, _ in pickletools.genops(data):
        if opcode.name.endswith("PUT") and int(argument or 0) >= _MOST_MEMOS:
            raise pickle.UnpicklingError(f"memo {argument} has no place in a batch")


class _Unpickler(pickle.Unpickler):
    """Loads arrays and plain values only: what a pickle names is never looked up."""

    def find_class(self, module: str, name: str) -> Any:
        """Returns our own constructor; numpy has moved some of its own."""
        module = module.replace("numpy.core", "numpy._core")
        if (module, name) not in _CONSTRUCTORS:
            raise pickle.UnpicklingError(f"{module}.{name} has no place in a batch")
        return _CONSTRUCTORS[module, name]


def _empty_array(*_: Any) -> Array:
    """Returns what the pickle then fills, whatever shape it asked for."""
    return np.empty(0, np.uint8)


def _latin1(text: str, _: str) -> bytes:
    return text.encode("latin1")


def _from_buffer(data: Any, dtype: Any, shape: Any, order: Any) -> Array:
    return np.frombuffer(data, dtype).reshape(shape, order=order)


# All that a batch needs; a pickle may name any function, and loading would call it.
_CONSTRUCTORS: dict[tuple[str, str], Any] = {
    ("_codecs", "encode"): _latin1,
    ("numpy", "dtype"): np.dtype,
    ("numpy", "ndarray"): None,  # only ever an argument
    ("numpy._core.multiarray", "_reconstruct"): _empty_array,
    ("numpy._core.numeric", "_frombuffer"): _from_buffer,
}
