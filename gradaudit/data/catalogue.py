"""The table of every dataset that the names of the command line can reach."""

import dataclasses
import enum
import importlib

from gradaudit.data.dataset import Dataset
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

CATALOGUE: dict[str, Entry] = {entry.name: entry for entry in _EMBEDDED}


def load_dataset(name: str, split: str | None = None) -> Dataset:
    """Loads a dataset by its name in the catalogue.

    Args:
      name: a name of `gradaudit data list`.
      split: `train`, `test` or `all`; the entry's default when absent.
    """
    if name not in CATALOGUE:
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
