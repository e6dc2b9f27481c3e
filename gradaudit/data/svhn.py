"""SVHN: `train_32x32.mat` and `test_32x32.mat`, cropped digits in colour."""

from pathlib import Path

import numpy as np

from gradaudit.data.contents import Array, Contents
from gradaudit.errors import InputError, require

_CLASSES = 10
_SPLITS = {"train_32x32.mat": "train", "test_32x32.mat": "test"}


def accepts(path: Path) -> bool:
    """Whether this is a `.mat` file, or a folder with the two that SVHN has."""
    if path.is_dir():
        return any((path / name).is_file() for name in _SPLITS)
    return path.suffix == ".mat"


def read(path: Path) -> Contents:
    """Reads `X` (32, 32, 3, n) and `y` (n, 1), where 10 stands for the digit 0."""
    files = [path]
    if path.is_dir():
        files = [path / name for name in _SPLITS if (path / name).is_file()]
    splits = {_SPLITS.get(file.name, "all"): _read(file) for file in files}
    return Contents(splits, _CLASSES)


def _read(path: Path) -> tuple[Array, Array]:
    from scipy.io import loadmat

    try:
        file = loadmat(path)
        pixels, labels = file["X"], file["y"].reshape(-1)
    except KeyError as error:
        raise InputError(f"{path}: field {error} is missing") from None
    except Exception as error:  # a damaged file can raise anything
        raise InputError(f"{path}: field 'matrices' can't be read ({error})") from None
    require(
        pixels.dtype == np.uint8 and pixels.ndim == 4 and pixels.shape[2] == 3,
        f"{path}: field 'X' is {pixels.dtype} {pixels.shape}, expected uint8 "
        "(32, 32, 3, n)",
    )
    require(
        len(labels) == pixels.shape[3] and labels.min() >= 1 and labels.max() <= 10,
        f"{path}: field 'y' must be {pixels.shape[3]} labels from 1 to 10, found "
        f"{len(labels)} from {labels.min()} to {labels.max()}",
    )
    images = np.ascontiguousarray(pixels.transpose(3, 0, 1, 2))
    return images, (labels % 10).astype(np.uint8)
