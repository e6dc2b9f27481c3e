"""Real datasets that ship inside the dependencies' own files: no network needed."""

import dataclasses

import numpy as np

from gradaudit.data.contents import held_out
from gradaudit.data.dataset import Dataset

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
