"""IDX files, plain or gzipped: the format of MNIST and its successors."""

import gzip
import zlib
from pathlib import Path

import numpy as np

from gradaudit.data.dataset import Array, Contents
from gradaudit.errors import InputError, require

_GZIP_MAGIC = b"\x1f\x8b"


_DTYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


_SPLITS = {"train": "train", "t10k": "test"}


def read_idx(path: Path) -> Array:
    """Returns the array of one IDX file."""
    data = _bytes(path)
    require(
        len(data) >= 4 and data[:2] == b"\0\0" and data[2] in _DTYPES and data[3] > 0,
        f"{path}: field 'magic number' is {data[:4].hex() or 'missing'}; "
        "not an IDX file",
    )
    dtype, axes = np.dtype(_DTYPES[data[2]]), data[3]
    header = 4 + 4 * axes
    require(
        len(data) >= header, f"{path}: field 'dimensions' is cut off; fetch it again"
    )
    shape = tuple(int(size) for size in np.frombuffer(data[4:header], ">u4"))
    expected = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    require(
        len(data) - header == expected,
        f"{path}: field 'data' has {len(data) - header} bytes, shape {shape} needs "
        f"{expected}; the file is truncated or corrupt",
    )
    return np.frombuffer(data, dtype, offset=header).reshape(shape)


def accepts(path: Path) -> bool:
    """Whether this is an IDX image file or a folder that holds one."""
    if path.is_dir():
        return any(_images(path))
    return "images" in path.name and "idx3" in path.name


def read(path: Path) -> Contents:
    """Reads a folder of IDX pairs, or one image file with its labels beside it."""
    files = _images(path) if path.is_dir() else [path]
    splits = {}
    for images in files:
        prefix = images.name.split("-")[0].lower()
        splits[_SPLITS.get(prefix, "all")] = _pair(images)
    classes = max(int(labels.max()) for _, labels in splits.values()) + 1
    return Contents(dict(sorted(splits.items(), reverse=True)), classes)


def _images(folder: Path) -> list[Path]:
    return sorted(folder.glob("*images*idx3*"))


def _pair(images: Path) -> tuple[Array, Array]:
    name = images.name.replace("images", "labels").replace("idx3", "idx1")
    # The labels of a plain file may be gzipped and the other way round.
    names = (name, name.removesuffix(".gz"), name + ".gz")
    found = [images.with_name(n) for n in names if images.with_name(n).exists()]
    require(bool(found), f"{images}: the labels {name} are not beside it")
    pixels, labels = read_idx(images), read_idx(found[0])
    require(
        pixels.ndim == 3 and labels.shape == pixels.shape[:1] and len(labels) > 0,
        f"{found[0]}: field 'dimensions' is {labels.shape}, the images are "
        f"{pixels.shape}; the two files don't belong together",
    )
    return pixels, labels


def _bytes(path: Path) -> bytes:
    data = path.read_bytes()
    if data[:2] != _GZIP_MAGIC:
        return data
    try:
        return gzip.decompress(data)
    except (EOFError, OSError, zlib.error) as error:
        raise InputError(f"{path}: field 'gzip stream' is corrupt ({error})") from None
