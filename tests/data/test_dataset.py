"""The dataset type refuses what can't be used; the embedded sets keep its promises."""

import dataclasses
import functools

import numpy as np
import pytest

from gradaudit.data import CATALOGUE, Dataset, Origin, load_dataset
from gradaudit.data.catalogue import _PHOTOGRAPHS
from gradaudit.errors import InputError

loaded = functools.cache(load_dataset)  # photographs take a second to scale
EMBEDDED = {n: e for n, e in CATALOGUE.items() if e.origin is Origin.EMBEDDED}
EVERY_SET = pytest.mark.parametrize("name", EMBEDDED)
COUNTS = {"digits": 1797, "lfw-patches": 200, "photos": 400, "cancer": 569}
TRAINING = {
    "mnist": 60_000,
    "fashion-mnist": 60_000,
    "cifar10": 50_000,
    "adult": 32_561,
    "orl-faces": 320,
    "orl-faces-small": 320,
    "digits": 1442,
    "lfw-patches": 160,
    "photos": 323,
    "cancer": 456,
}


def make(inputs, labels, classes: int = 3) -> Dataset:
    return Dataset("mine", inputs, labels, classes, "all", "none")


GREY = np.full((4, 5, 5, 1), 0.5)
LABELS = np.array([0, 1, 2, 0])


def with_pixel(value: float) -> np.ndarray:
    inputs = GREY.copy()
    inputs[2, 1, 1, 0] = value
    return inputs


WRONG = {
    "label too large": (GREY, [0, 1, 3, 0], r"label 3 of example 2 .* \[0, 3\)"),
    "label negative": (GREY, [0, -1, 1, 0], r"label -1 of example 1 "),
    "NaN": (with_pixel(np.nan), LABELS, "input 2 holds nan"),
    "infinity": (with_pixel(np.inf), LABELS, "input 2 holds inf"),
    "above 1": (with_pixel(255.0), LABELS, r"0.5 to 255.0; divide by 255"),
    "below 0": (with_pixel(-0.25), LABELS, "found -0.25 to 0.5"),
    "images without channels": (GREY[..., 0], LABELS, r"got shape \(4, 5, 5\)"),
    "rank 1": (np.zeros(4), LABELS, r"got shape \(4,\)"),
    "empty": (GREY[:0], LABELS[:0], "is empty"),
    "labels of another length": (GREY, LABELS[:3], r"\(4,\), got \(3,\)"),
    "labels between classes": (GREY, [0.0, 1.5, 2.0, 0.0], "label 1.5 of example 1 "),
    "NaN label": (GREY, [0.0, 1.0, np.nan, 0.0], "label nan of example 2 "),
    "text": (GREY.astype(str), LABELS, "inputs must be integers or real numbers"),
    "complex": (GREY + 1j, LABELS, "real numbers, got complex128"),
    "objects": (GREY.astype(object), LABELS, "real numbers, got object"),
    "label names": (GREY, ["a", "b", "c", "a"], "labels must be integers"),
    "uneven": ([[0.5], [0.5, 1.0]], [0, 1], "inputs are no array"),
    "no features": (np.zeros((4, 0)), LABELS, r"is empty, shape \(4, 0\)"),
    "one-hot labels": (GREY, np.eye(4)[:, :3], r"\(4,\), got \(4, 3\)"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_data_is_refused_in_one_line(case):
    inputs, labels, words = WRONG[case]
    with pytest.raises(InputError, match=words) as refused:
        make(inputs, np.asarray(labels))
    assert "'mine'" in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.uint8])
def test_right_data_comes_out_as_promised(dtype):
    dataset = make((GREY > 0).astype(dtype), LABELS.astype(np.int64))
    assert dataset.inputs.dtype == np.float32 and dataset.labels.dtype == np.int32
    assert dataset.shape == (5, 5, 1) and len(dataset) == 4


@pytest.mark.parametrize("classes", [0, -1, 2.5, 10**9])
def test_the_number_of_classes_is_one(classes):
    with pytest.raises(InputError, match="classes must be 1 to 1,000,000"):
        make(GREY, LABELS * 0, classes)


def test_whole_labels_may_come_as_real_numbers():
    assert make(GREY, LABELS.astype(float)).labels.tolist() == LABELS.tolist()


def test_the_digest_sees_what_is_inside_and_nothing_else():
    dataset = make(GREY, LABELS)
    assert dataset.digest == dataset.digest == make(GREY.copy(), LABELS.copy()).digest
    renamed = dataclasses.replace(dataset, name="other", licence="other")
    assert renamed.digest == dataset.digest
    others = [
        make(with_pixel(0.5000001), LABELS),
        make(GREY, LABELS[::-1]),
        make(GREY, LABELS, classes=4),
        make(GREY.reshape(4, -1), LABELS),
        dataset.take(slice(0, 3)),
    ]
    assert len({other.digest for other in [dataset, *others]}) == 6


def test_an_edited_file_has_another_digest(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("0,0.25\n1,0.5\n")
    before = load_dataset(str(path)).digest
    path.write_text("label,f\n0,0.25\n1,0.50\n")  # the same numbers
    assert load_dataset(str(path)).digest == before
    path.write_text("0,0.25\n1,0.51\n")
    assert load_dataset(str(path)).digest != before


def test_take_keeps_the_rest_and_checks_again():
    dataset = make(GREY, LABELS)
    part = dataset.take(np.array([3, 1]))
    np.testing.assert_array_equal(part.labels, [0, 1])
    assert (part.name, part.classes, part.split) == ("mine", 3, "all")
    with pytest.raises(InputError, match="empty"):
        dataset.take(slice(0, 0))
    with pytest.raises(dataclasses.FrozenInstanceError):
        dataset.classes = 4


@EVERY_SET
def test_embedded_sets_are_what_the_catalogue_says(name):
    entry, dataset = EMBEDDED[name], loaded(name)
    assert dataset.name == name and dataset.licence
    assert dataset.shape == entry.shape and dataset.classes == entry.classes
    assert len(dataset) == COUNTS[name]
    assert set(dataset.labels.tolist()) == set(range(entry.classes))
    assert dataset.inputs.min() >= 0 and dataset.inputs.max() <= 1
    # Real pictures and patients, not one grey: every example differs from the mean.
    flat = dataset.inputs.reshape(len(dataset), -1)
    assert np.all(np.abs(flat - flat.mean(axis=0)).max(axis=1) > 0.05)


@EVERY_SET
def test_splits_are_disjoint_complete_and_cover_every_class(name):
    whole, train, test = (loaded(name, s) for s in ("all", "train", "test"))
    assert (train.split, test.split) == ("train", "test")
    assert len(train) + len(test) == len(whole)
    assert 0.15 < len(test) / len(whole) < 0.25
    for part in (train, test):
        assert set(part.labels.tolist()) == set(range(whole.classes))

    def rows(dataset: Dataset) -> list[bytes]:
        return sorted(x.tobytes() + y.tobytes() for x, y in pairs(dataset))

    def pairs(dataset: Dataset):
        return zip(dataset.inputs, dataset.labels, strict=True)

    assert sorted(rows(train) + rows(test)) == rows(whole)


@EVERY_SET
def test_the_catalogue_counts_the_classes_of_every_split(name):
    for split in ("train", "test", "all"):
        counts = np.bincount(loaded(name, split).labels)
        assert EMBEDDED[name].class_sizes(split) == tuple(counts)


def test_training_sizes_are_known_without_the_data(monkeypatch, tmp_path):
    monkeypatch.setenv("GRADAUDIT_DATA", str(tmp_path))
    assert {n: e.size("train") for n, e in CATALOGUE.items()} == TRAINING
    with pytest.raises(InputError, match="no split 'valid'"):
        CATALOGUE["mnist"].size("valid")


@EVERY_SET
def test_loading_twice_gives_the_same(name):
    first, second = loaded(name), load_dataset(name)
    np.testing.assert_array_equal(first.inputs, second.inputs)
    np.testing.assert_array_equal(first.labels, second.labels)


def test_photo_crops_are_disjoint_and_their_class_is_the_photograph():
    photos = loaded("photos")
    assert len(_PHOTOGRAPHS) == photos.classes
    assert len({crop.tobytes() for crop in photos.inputs}) == len(photos)
    counts = np.bincount(photos.labels)
    assert counts.min() >= 20  # hundreds of victims, none of the classes a token
    # Crops tile their photograph: together they have exactly its scaled-down pixels.
    from skimage import data
    from skimage.transform import resize

    astronaut = photos.inputs[photos.labels == 0]
    side = round(np.sqrt(len(astronaut))) * 32
    small = resize(data.astronaut(), (side, side, 3), anti_aliasing=True, order=1)
    np.testing.assert_array_equal(
        np.sort(astronaut.ravel()), np.sort(small.astype(np.float32).ravel())
    )


def test_the_first_faces_are_faces():
    faces = load_dataset("lfw-patches")
    assert faces.labels[:100].max() == 0 and faces.labels[100:].min() == 1


def test_cancer_features_each_fill_the_range():
    cancer = load_dataset("cancer")
    np.testing.assert_array_equal(cancer.inputs.min(axis=0), 0)
    np.testing.assert_array_equal(cancer.inputs.max(axis=0), 1)


def test_unknown_names_and_splits_are_answered_with_the_nearest():
    with pytest.raises(InputError, match="unknown dataset 'digit'; did you mean 'dig"):
        load_dataset("digit")
    with pytest.raises(InputError, match="no split 'valid'.*train, test, all"):
        load_dataset("digits", "valid")
