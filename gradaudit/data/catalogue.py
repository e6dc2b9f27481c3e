"""The data sets by name: embedded ones, fetched ones, and the user's files."""

import dataclasses
import enum
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from gradaudit.data import store
from gradaudit.data.dataset import TEST_EVERY, Column, Contents, Dataset, to_unit
from gradaudit.data.fetch import SOURCES
from gradaudit.data.formats import read_path
from gradaudit.data.formats.tabular import adult_columns
from gradaudit.errors import InputError, unknown_name

SPLITS = ("train", "test", "all")

_LONGEST_NAME = 200  # of what is quoted in an error

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


class Origin(enum.Enum):
    """How a dataset comes to this machine."""

    EMBEDDED = "embedded"
    FETCH = "gradaudit data fetch"


@dataclasses.dataclass(frozen=True)
class Entry:
    """One line of `gradaudit data list`: what is known before anything is loaded.

    `counts` are the examples of each class, in the training split where there is an
    official one (then `test_counts` are those of the other), otherwise in all.
    """

    name: str
    summary: str
    shape: tuple[int, ...]
    licence: str
    contents: Callable[[str], Contents]  # of a split; it may return more than that
    counts: tuple[int, ...]
    test_counts: tuple[int, ...] = ()
    stored_as: str | None = None  # its name in the data folder, where it is fetched

    @property
    def classes(self) -> int:
        """How many classes there are."""
        return len(self.counts)

    @property
    def origin(self) -> Origin:
        """How it comes to this machine."""
        return Origin.EMBEDDED if self.stored_as is None else Origin.FETCH

    @property
    def default_split(self) -> str:
        """What is loaded when no split is asked for: the official test, or all."""
        return "test" if self.test_counts else "all"

    def is_here(self) -> bool:
        """Whether it can be loaded without fetching it first."""
        return self.stored_as is None or store.is_stored(self.stored_as)

    def class_sizes(self, split: str) -> tuple[int, ...]:
        """Returns how many examples of each class a split has, without loading it."""
        self._check(split)
        train, test = self.counts, self.test_counts
        if not test:
            test = tuple(n // TEST_EVERY for n in self.counts)
            train = tuple(n - t for n, t in zip(self.counts, test, strict=True))
        both = tuple(n + t for n, t in zip(train, test, strict=True))
        return {"train": train, "test": test, "all": both}[split]

    def size(self, split: str) -> int:
        """Returns how many examples a split has, without loading it."""
        return sum(self.class_sizes(split))

    def load(self, split: str) -> Dataset:
        """Returns the validated examples of a split."""
        self._check(split)
        return self.contents(split).dataset(self.name, split, self.licence)

    def _check(self, split: str) -> None:
        if split not in SPLITS:
            raise InputError(
                f"dataset {self.name!r} has no split {split!r} "
                f"(it has {', '.join(SPLITS)})"
            )


def _digits(_: str) -> Contents:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    inputs = (bunch.images[..., None] / 16.0).astype(np.float32)
    return Contents({"all": (inputs, bunch.target)}, 10)


def _lfw_patches(_: str) -> Contents:
    """100 faces (class 0) and 100 background patches (class 1)."""
    from skimage.data import lfw_subset

    inputs = np.clip(lfw_subset()[..., None], 0.0, 1.0).astype(np.float32)
    return Contents({"all": (inputs, np.repeat([0, 1], 100))}, 2)


def _photos(_: str) -> Contents:
    """Disjoint crops; the class is the photograph."""
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
    inputs = np.clip(inputs[order], 0.0, 1.0).astype(np.float32)
    return Contents({"all": (inputs, np.asarray(labels)[order])}, len(_PHOTOGRAPHS))


def _cancer(_: str) -> Contents:
    """30 features, each scaled to [0, 1]."""
    from sklearn.datasets import load_breast_cancer

    bunch = load_breast_cancer()
    low, high = bunch.data.min(axis=0), bunch.data.max(axis=0)
    inputs = ((bunch.data - low) / (high - low)).astype(np.float32)
    columns = tuple(Column(str(name)) for name in bunch.feature_names)
    return Contents({"all": (inputs, bunch.target)}, 2, columns)


def stored(name: str, split: str) -> Contents:
    """Returns the verified arrays of a fetched set, of one official split or all."""
    source = SOURCES[name]
    halves = any(key.startswith(f"{split}-") for key in source.arrays)
    arrays = store.read(name, source.arrays, split if halves else "all")
    splits = dict.fromkeys(key.split("-")[0] for key in arrays)
    return Contents(
        {s: (arrays[f"{s}-inputs"], arrays[f"{s}-labels"]) for s in splits},
        source.classes,
    )


def _adult(split: str) -> Contents:
    return dataclasses.replace(stored("adult", split), columns=adult_columns())


def _orl_faces_small(split: str) -> Contents:
    """The faces at 28x23: each pixel is the mean of 4x4."""
    faces = stored("orl-faces", split)
    smaller = {
        name: (to_unit(inputs).reshape(-1, 28, 4, 23, 4, 1).mean(axis=(2, 4)), labels)
        for name, (inputs, labels) in faces.splits.items()
    }
    return Contents(smaller, faces.classes)


def _fetched(
    name: str,
    summary: str,
    shape: tuple[int, ...],
    counts: tuple[int, ...],
    test_counts: tuple[int, ...] = (),
    contents: Callable[[str], Contents] | None = None,
) -> Entry:
    licence, contents = SOURCES[name].licence, contents or partial(stored, name)
    return Entry(name, summary, shape, licence, contents, counts, test_counts, name)


_ENTRIES = (
    Entry(
        "lfw-patches",
        "faces and background, 25x25 grey, 200 examples",
        (25, 25, 1),
        "research use (Labeled Faces in the Wild, subset in scikit-image)",
        _lfw_patches,
        (100, 100),
    ),
    Entry(
        "photos",
        "natural colour photographs in 32x32 crops, 400 examples",
        (32, 32, 3),
        "public domain and CC0 photographs of scikit-image",
        _photos,
        (64, 40, 40, 40, 48, 64, 64, 40),
    ),
    Entry(
        "digits",
        "handwritten digits, 8x8 grey, 1,797 examples",
        (8, 8, 1),
        "CC BY 4.0 (UCI Optical Recognition of Handwritten Digits)",
        _digits,
        (178, 182, 177, 183, 181, 182, 181, 179, 174, 180),
    ),
    Entry(
        "cancer",
        "Breast Cancer Wisconsin, 569 patients x 30 features",
        (30,),
        "CC BY 4.0 (UCI Breast Cancer Wisconsin Diagnostic)",
        _cancer,
        (212, 357),
    ),
    _fetched(
        "mnist",
        "handwritten digits, 28x28 grey, 60,000 + 10,000 examples",
        (28, 28, 1),
        (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949),
        (980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009),
    ),
    _fetched(
        "fashion-mnist",
        "articles of clothing, 28x28 grey, 60,000 + 10,000 examples",
        (28, 28, 1),
        (6000,) * 10,
        (1000,) * 10,
    ),
    _fetched(
        "cifar10",
        "natural colour images, 32x32, 50,000 + 10,000 examples",
        (32, 32, 3),
        (5000,) * 10,
        (1000,) * 10,
    ),
    _fetched(
        "adult",
        "census income, 105 features, 32,561 + 16,281 rows",
        (105,),
        (24720, 7841),
        (12435, 3846),
        _adult,
    ),
    _fetched(
        "orl-faces",
        "faces of 40 people, 10 of each, 112x92 grey",
        (112, 92, 1),
        (10,) * 40,
    ),
    Entry(
        "orl-faces-small",
        "the same faces at a quarter of the size, 28x23 grey",
        (28, 23, 1),
        SOURCES["orl-faces"].licence,
        _orl_faces_small,
        (10,) * 40,
        stored_as="orl-faces",
    ),
)


CATALOGUE: dict[str, Entry] = {entry.name: entry for entry in _ENTRIES}


def load_dataset(name: str | Dataset, split: str | None = None) -> Dataset:
    """Loads a dataset by its name in the catalogue, or from the user's own files.

    What is a dataset already is returned as it is.

    Args:
      name: a name of `gradaudit data list`, or the path of a file or folder that a
        reader knows. A name wins over a folder that is called the same (`./mnist`).
      split: `train`, `test` or `all`; the entry's default when absent.
    """
    if isinstance(name, Dataset):
        return name
    if name in CATALOGUE:
        entry = CATALOGUE[name]
        return entry.load(entry.default_split if split is None else split)
    path = _as_path(name)
    # What has a separator or a suffix is meant as a path, even if it is not there.
    if name and (path.exists() or path.suffix or len(path.parts) > 1):
        return read_path(path).dataset(str(path), split or "all", "your own files")
    raise unknown_name("dataset", name, CATALOGUE)


def _as_path(name: str) -> Path:
    """Returns the path that a text stands for; one that can't exist is refused."""
    try:
        path = Path(name).expanduser()
        path.exists()
    except (OSError, RuntimeError, ValueError) as error:
        short = name if len(name) <= _LONGEST_NAME else name[:_LONGEST_NAME] + "..."
        reason = getattr(error, "strerror", None) or error
        raise InputError(
            f"dataset {short!r} is no name of `gradaudit data list`, and no path: "
            f"{reason}"
        ) from None
    return path
