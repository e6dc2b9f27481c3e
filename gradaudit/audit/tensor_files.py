"""Named tensors in files that somebody else wrote: bounded, no code, in words.

safetensors and `.npz` hold numbers only. A `.pt` is a pickle: it is read by torch's
reader of weights, which runs no code, and only where torch is there.
"""

import pathlib
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from gradaudit.data.formats.reading import opened
from gradaudit.data.formats.tabular import DAMAGE, read_member
from gradaudit.errors import InputError, require

MOST_BYTES = 4 << 30  # a file, and what it decodes to
_MOST_AXES = 32

Arrays = dict[str, NDArray[Any]]


def read_tensors(folder: pathlib.Path, stem: str) -> Arrays:
    """Returns the named tensors of `stem`.safetensors, .npz or .pt; floats as float32.

    Raises in words for none or several of them, for what is too large, damaged, or
    holds anything but numbers.
    """
    found = [folder / f"{stem}{suffix}" for suffix in _READERS]
    found = [path for path in found if path.exists()]
    require(
        len(found) > 0,
        f"there is no file {folder / stem} (.safetensors, .npz or .pt)",
    )
    require(
        len(found) == 1,
        f"{folder} has {' and '.join(path.name for path in found)}: keep the one that "
        "is meant",
    )
    return read_tensor_file(found[0])


def read_tensor_file(path: pathlib.Path) -> Arrays:
    """Returns the named tensors of one such file; raises in words likewise."""
    require(
        path.suffix in _READERS,
        f"{path} must end in {', '.join(_READERS)}: named tensors of a model",
    )
    require(path.exists(), f"there is no file {path}")
    require(path.is_file(), f"{path} is no regular file")
    size = path.stat().st_size
    require(size <= MOST_BYTES, f"{path} has {size} bytes, more than {MOST_BYTES}")
    tensors = {str(name): array for name, array in _READERS[path.suffix](path).items()}
    require(len(tensors) > 0, f"{path} holds no tensors")
    return {name: _numbers(path, name, array) for name, array in tensors.items()}


def _numbers(path: pathlib.Path, name: str, array: NDArray[Any]) -> NDArray[Any]:
    # bfloat16 and its kin are of kind V to numpy, and convert like any float.
    floating = array.dtype.kind == "f" or "float" in array.dtype.name
    require(
        floating or array.dtype.kind in "biu",
        f"{path}: {name} holds {array.dtype}, expected numbers",
    )
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
    with opened(path) as file:
        try:
            with zipfile.ZipFile(file) as archive:
                declared = sum(info.file_size for info in archive.filelist)
                require(
                    declared <= MOST_BYTES,
                    f"{path} decodes to {declared} bytes, more than {MOST_BYTES}",
                )
                names = [info.filename for info in archive.filelist]
                require(
                    all(name.endswith(".npy") for name in names),
                    f"{path} holds files that are no arrays",
                )
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
    require(
        isinstance(loaded, dict)
        and all(isinstance(tensor, torch.Tensor) for tensor in loaded.values()),
        f"{path} must hold a state_dict: names and tensors, nothing else",
    )
    return {name: _of_torch(tensor) for name, tensor in loaded.items()}


def _of_torch(tensor: Any) -> NDArray[Any]:
    whole = tensor.detach()
    array: NDArray[Any] = (
        whole.float() if whole.is_floating_point() else whole
    ).numpy()
    return array


_READERS: dict[str, Callable[[pathlib.Path], Arrays]] = {
    ".safetensors": _read_safetensors,
    ".npz": _read_npz,
    ".pt": _read_pt,
}
