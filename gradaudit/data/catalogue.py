"""The data sets by name: embedded ones, fetched ones, and the user's files."""

import dataclasses
import enum
from collections.abc import Callable
from pathlib import Path

import numpy as np

from gradaudit.data import store
from gradaudit.data.dataset import Contents, Dataset, held_out
from gradaudit.data.fetch import SOURCES
from gradaudit.data.formats.readers import load_path
from gradaudit.data.store import is_stored
from gradaudit.errors import InputError, unknown_name

_PHOTOGRAPHS = (
    "astronaut",
    "coffee",
    "cat",
    "rocket",
    "hubble_deep_field",
    "immunohistochemistry",
    "retina",
    "stereo_motorcycle",
)


_CROP = 32


_LONG_SIDE = 256  # photographs are scaled to this before they are cut


def _split(dataset: Dataset, split: str) -> Dataset:
    """Cuts a set without an official split: every fifth example of a class is test."""
    if split == "all":
        return dataset
    chosen = held_out(dataset.labels) == (split == "test")
    part = dataset.take(np.flatnonzero(chosen))
    return dataclasses.replace(part, split=split)


def digits(split: str = "all") -> Dataset:
    """Handwritten digits 8x8, 1,797 examples, 10 classes (UCI, scikit-learn)."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    dataset = Dataset(
        name="digits",
        inputs=(bunch.images[..., None] / 16.0).astype(np.float32),
        labels=bunch.target,
        classes=10,
        split="all",
        licence="CC BY 4.0 (UCI Optical Recognition of Handwritten Digits)",
    )
    return _split(dataset, split)


def lfw_patches(split: str = "all") -> Dataset:
    """Faces 25x25 grey: 100 faces (class 0) and 100 background patches (class 1)."""
    from skimage.data import lfw_subset

    images = lfw_subset()[..., None]
    dataset = Dataset(
        name="lfw-patches",
        inputs=np.clip(images, 0.0, 1.0).astype(np.float32),
        labels=np.repeat([0, 1], 100),
        classes=2,
        split="all",
        licence="research use (Labeled Faces in the Wild, subset in scikit-image)",
    )
    return _split(dataset, split)


def photos(split: str = "all") -> Dataset:
    """Natural colour photographs as disjoint 32x32x3 crops; class = photograph."""
    from skimage import data
    from skimage.transform import resize

    crops, labels = [], []
    for label, name in enumerate(_PHOTOGRAPHS):
        image = getattr(data, name)()
        image = image[0] if isinstance(image, tuple) else image  # a stereo pair
        scale = _LONG_SIDE / max(image.shape[:2])
        # Whole crops only; anti-aliasing, because photographs are far larger.
        rows, columns = (round(s * scale) // _CROP for s in image.shape[:2])
        small = resize(
            image, (rows * _CROP, columns * _CROP, 3), anti_aliasing=True, order=1
        )
        tiles = small.reshape(rows, _CROP, columns, _CROP, 3).swapaxes(1, 2)
        crops.append(tiles.reshape(-1, _CROP, _CROP, 3))
        labels += [label] * (rows * columns)
    inputs = np.concatenate(crops)
    # Interleave the photographs, so that the first victims are not one picture.
    order = np.random.default_rng(0).permutation(len(inputs))
    dataset = Dataset(
        name="photos",
        inputs=np.clip(inputs[order], 0.0, 1.0).astype(np.float32),
        labels=np.asarray(labels)[order],
        classes=len(_PHOTOGRAPHS),
        split="all",
        licence="public domain and CC0 photographs of scikit-image",
    )
    return _split(dataset, split)


def cancer(split: str = "all") -> Dataset:
    """Breast Cancer Wisconsin: 569 patients, 30 features scaled to [0, 1]."""
    from sklearn.datasets import load_breast_cancer

    bunch = load_breast_cancer()
    low, high = bunch.data.min(axis=0), bunch.data.max(axis=0)
    dataset = Dataset(
        name="cancer",
        inputs=((bunch.data - low) / (high - low)).astype(np.float32),
        labels=bunch.target,
        classes=2,
        split="all",
        licence="CC BY 4.0 (UCI Breast Cancer Wisconsin Diagnostic)",
    )
    return _split(dataset, split)


def mnist(split: str = "test") -> Dataset:
    """Handwritten digits 28x28, 60,000 to train and 10,000 to test."""
    return _load("mnist", split)


def fashion_mnist(split: str = "test") -> Dataset:
    """Articles of clothing 28x28, 60,000 to train and 10,000 to test."""
    return _load("fashion-mnist", split)


def cifar10(split: str = "test") -> Dataset:
    """Natural colour images 32x32x3, 50,000 to train and 10,000 to test."""
    return _load("cifar10", split)


def adult(split: str = "test") -> Dataset:
    """Census income, 105 features, 32,561 rows to train and 16,281 to test."""
    return _load("adult", split)


def orl_faces(split: str = "all") -> Dataset:
    """Faces of 40 people, 10 of each, 112x92 grey."""
    return _load("orl-faces", split)


def orl_faces_small(split: str = "all") -> Dataset:
    """The faces of `orl_faces` at 28x23: each pixel is the mean of 4x4."""
    faces = orl_faces(split)
    blocks = faces.inputs.reshape(-1, 28, 4, 23, 4, 1).mean(axis=(2, 4))
    return dataclasses.replace(faces, name="orl-faces-small", inputs=blocks)


def _load(name: str, split: str) -> Dataset:
    source = SOURCES[name]
    halves = any(key.startswith(f"{split}-") for key in source.arrays)
    arrays = store.read(name, source.arrays, split if halves else "all")
    splits = dict.fromkeys(key.split("-")[0] for key in arrays)
    contents = Contents(
        {s: (arrays[f"{s}-inputs"], arrays[f"{s}-labels"]) for s in splits},
        source.classes,
    )
    return contents.dataset(name, split, source.licence)


class Origin(enum.Enum):
    """How a dataset comes to this machine."""

    EMBEDDED = "embedded"
    FETCH = "gradaudit data fetch"
    FILES = "your own files"


@dataclasses.dataclass(frozen=True)
class Entry:
    """One line of `gradaudit data list`."""

    name: str
    summary: str
    shape: tuple[int, ...]
    classes: int
    origin: Origin
    loader: Callable[[str], Dataset]
    splits: tuple[str, ...] = ("train", "test", "all")
    default_split: str = "all"
    stored_as: str | None = None  # its name in the data folder, where it is fetched

    def is_here(self) -> bool:
        """Whether it can be loaded without fetching it first."""
        return self.stored_as is None or is_stored(self.stored_as)


_EMBEDDED = (
    Entry(
        "lfw-patches",
        "faces and background, 25x25 grey, 200 examples",
        (25, 25, 1),
        2,
        Origin.EMBEDDED,
        lfw_patches,
    ),
    Entry(
        "photos",
        "natural colour photographs in 32x32 crops, 400 examples",
        (32, 32, 3),
        8,
        Origin.EMBEDDED,
        photos,
    ),
    Entry(
        "digits",
        "handwritten digits, 8x8 grey, 1,797 examples",
        (8, 8, 1),
        10,
        Origin.EMBEDDED,
        digits,
    ),
    Entry(
        "cancer",
        "Breast Cancer Wisconsin, 569 patients x 30 features",
        (30,),
        2,
        Origin.EMBEDDED,
        cancer,
    ),
)


_FETCHED = (
    Entry(
        "mnist",
        "handwritten digits, 28x28 grey, 60,000 + 10,000 examples",
        (28, 28, 1),
        10,
        Origin.FETCH,
        mnist,
        stored_as="mnist",
        default_split="test",
    ),
    Entry(
        "fashion-mnist",
        "articles of clothing, 28x28 grey, 60,000 + 10,000 examples",
        (28, 28, 1),
        10,
        Origin.FETCH,
        fashion_mnist,
        stored_as="fashion-mnist",
        default_split="test",
    ),
    Entry(
        "cifar10",
        "natural colour images, 32x32, 50,000 + 10,000 examples",
        (32, 32, 3),
        10,
        Origin.FETCH,
        cifar10,
        stored_as="cifar10",
        default_split="test",
    ),
    Entry(
        "adult",
        "census income, 105 features, 32,561 + 16,281 rows",
        (105,),
        2,
        Origin.FETCH,
        adult,
        stored_as="adult",
        default_split="test",
    ),
    Entry(
        "orl-faces",
        "faces of 40 people, 10 of each, 112x92 grey",
        (112, 92, 1),
        40,
        Origin.FETCH,
        orl_faces,
        stored_as="orl-faces",
    ),
    Entry(
        "orl-faces-small",
        "the same faces at a quarter of the size, 28x23 grey",
        (28, 23, 1),
        40,
        Origin.FETCH,
        orl_faces_small,
        stored_as="orl-faces",
    ),
)


CATALOGUE: dict[str, Entry] = {entry.name: entry for entry in _EMBEDDED + _FETCHED}


def load_dataset(name: str, split: str | None = None) -> Dataset:
    """Loads a dataset by its name in the catalogue, or from the user's own files.

    Args:
      name: a name of `gradaudit data list`, or the path of a file or folder that a
        reader knows. A name wins over a folder that is called the same (`./mnist`).
      split: `train`, `test` or `all`; the entry's default when absent.
    """
    if name not in CATALOGUE:
        path = Path(name).expanduser()
        # What has a separator or a suffix is meant as a path, even if it is not there.
        if path.exists() or path.suffix or len(path.parts) > 1:
            return load_path(path, split)
        raise unknown_name("dataset", name, CATALOGUE)
    entry = CATALOGUE[name]
    split = entry.default_split if split is None else split
    if split not in entry.splits:
        raise InputError(
            f"dataset {name!r} has no split {split!r} "
            f"(it has {', '.join(entry.splits)})"
        )
    return entry.loader(split)
