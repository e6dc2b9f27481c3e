"""The table of every dataset that the names of the command line can reach."""

import dataclasses
import enum
import importlib
from pathlib import Path

from gradaudit.data.dataset import Dataset
from gradaudit.data.readers import load_path
from gradaudit.data.store import is_stored
from gradaudit.errors import InputError, unknown_name


class Origin(enum.Enum):
    """How a dataset comes to this machine."""

    EMBEDDED = "embedded"
    FETCH = "gradaudit data fetch"
    FILES = "your own files"


@dataclasses.dataclass(frozen=True)
class Entry:
    """One line of `gradaudit data list`; `loader` is `module:function(split)`."""

    name: str
    summary: str
    shape: tuple[int, ...]
    classes: int
    origin: Origin
    loader: str
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
        "gradaudit.data.embedded:lfw_patches",
    ),
    Entry(
        "photos",
        "natural colour photographs in 32x32 crops, 400 examples",
        (32, 32, 3),
        8,
        Origin.EMBEDDED,
        "gradaudit.data.embedded:photos",
    ),
    Entry(
        "digits",
        "handwritten digits, 8x8 grey, 1,797 examples",
        (8, 8, 1),
        10,
        Origin.EMBEDDED,
        "gradaudit.data.embedded:digits",
    ),
    Entry(
        "cancer",
        "Breast Cancer Wisconsin, 569 patients x 30 features",
        (30,),
        2,
        Origin.EMBEDDED,
        "gradaudit.data.embedded:cancer",
    ),
)

_FETCHED = (
    Entry(
        "mnist",
        "handwritten digits, 28x28 grey, 60,000 + 10,000 examples",
        (28, 28, 1),
        10,
        Origin.FETCH,
        "gradaudit.data.stored:mnist",
        stored_as="mnist",
        default_split="test",
    ),
    Entry(
        "fashion-mnist",
        "articles of clothing, 28x28 grey, 60,000 + 10,000 examples",
        (28, 28, 1),
        10,
        Origin.FETCH,
        "gradaudit.data.stored:fashion_mnist",
        stored_as="fashion-mnist",
        default_split="test",
    ),
    Entry(
        "cifar10",
        "natural colour images, 32x32, 50,000 + 10,000 examples",
        (32, 32, 3),
        10,
        Origin.FETCH,
        "gradaudit.data.stored:cifar10",
        stored_as="cifar10",
        default_split="test",
    ),
    Entry(
        "adult",
        "census income, 105 features, 32,561 + 16,281 rows",
        (105,),
        2,
        Origin.FETCH,
        "gradaudit.data.stored:adult",
        stored_as="adult",
        default_split="test",
    ),
    Entry(
        "orl-faces",
        "faces of 40 people, 10 of each, 112x92 grey",
        (112, 92, 1),
        40,
        Origin.FETCH,
        "gradaudit.data.stored:orl_faces",
        stored_as="orl-faces",
    ),
    Entry(
        "orl-faces-small",
        "the same faces at a quarter of the size, 28x23 grey",
        (28, 23, 1),
        40,
        Origin.FETCH,
        "gradaudit.data.stored:orl_faces_small",
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
    module, function = entry.loader.split(":")
    dataset: Dataset = getattr(importlib.import_module(module), function)(split)
    return dataset
