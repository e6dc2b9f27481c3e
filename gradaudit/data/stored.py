"""Datasets that `gradaudit data fetch` has put into the data folder."""

import dataclasses

from gradaudit.data import store
from gradaudit.data.contents import Contents
from gradaudit.data.dataset import Dataset
from gradaudit.data.sources import SOURCES


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
