"""The real sets, where they are stored: counts and facts that are published."""

import numpy as np
import pytest

from gradaudit.data import CATALOGUE, Origin, load_dataset
from gradaudit.data.catalogue import SPLITS
from gradaudit.data.fetch import SOURCES, fetch, problem
from gradaudit.data.store import is_stored
from gradaudit.errors import InputError

FETCHED = [e.name for e in CATALOGUE.values() if e.origin is Origin.FETCH]


def need(name: str) -> None:
    stored = CATALOGUE[name].stored_as
    if not is_stored(stored):
        pytest.skip(f"{stored} is not here; run `gradaudit data fetch {stored}`")


@pytest.mark.parametrize("name", SOURCES)
def test_what_is_stored_has_the_published_digests(name):
    need(name)
    assert problem(name) is None


@pytest.mark.parametrize("name", FETCHED)
def test_the_catalogue_tells_the_truth(name):
    need(name)
    entry = CATALOGUE[name]
    sizes = {}
    for split in SPLITS:
        dataset = load_dataset(name, split)
        assert dataset.shape == entry.shape
        assert dataset.classes == entry.classes
        assert set(np.unique(dataset.labels)) == set(range(entry.classes))
        assert dataset.name == name and dataset.split == split
        assert np.bincount(dataset.labels).tolist() == [*entry.class_sizes(split)]
        sizes[split] = len(dataset)
    assert sizes["train"] + sizes["test"] == sizes["all"]


@pytest.mark.parametrize(
    ("name", "train", "test"),
    [
        (
            "mnist",
            [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
            [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009],
        ),
        ("fashion-mnist", [6000] * 10, [1000] * 10),
        ("cifar10", [5000] * 10, [1000] * 10),
        ("adult", [24720, 7841], [12435, 3846]),
    ],
)
def test_class_counts(name, train, test):
    need(name)
    assert np.bincount(load_dataset(name, "train").labels).tolist() == train
    assert np.bincount(load_dataset(name, "test").labels).tolist() == test


def test_the_first_mnist_digits_and_the_published_mean():
    need("mnist")
    assert load_dataset("mnist").labels[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
    train = load_dataset("mnist", "train").inputs
    assert train.mean(dtype=np.float64) == pytest.approx(0.1307, abs=1e-4)
    assert train.std(dtype=np.float64) == pytest.approx(0.3081, abs=1e-4)


def test_the_published_cifar10_mean_per_channel():
    need("cifar10")
    means = load_dataset("cifar10", "train").inputs.mean(axis=(0, 1, 2), dtype=float)
    assert means == pytest.approx([0.4914, 0.4822, 0.4465], abs=1e-4)


def test_the_adult_mapping_is_that_of_the_training_file():
    """Every feature spans exactly [0, 1], so ranges and values are the file's own."""
    need("adult")
    train = load_dataset("adult", "train").inputs
    assert (train.min(axis=0) == 0).all()
    assert (train.max(axis=0) == 1).all()


def test_orl_faces_are_ten_of_each_and_alike():
    need("orl-faces")
    faces = load_dataset("orl-faces")
    assert np.bincount(faces.labels).tolist() == [10] * 40
    people = faces.inputs.reshape(40, 10, -1)
    within = people.std(axis=1).mean()
    between = people.mean(axis=1).std(axis=0).mean()
    assert between > within / 2  # labels and images belong together
    small = load_dataset("orl-faces-small")
    assert small.inputs.mean() == pytest.approx(faces.inputs.mean(), abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", SOURCES)
def test_a_real_fetch_into_an_empty_folder(name, tmp_path, monkeypatch):
    monkeypatch.setenv("GRADAUDIT_DATA", str(tmp_path))
    try:
        assert fetch(name)
    except InputError as error:
        if "is not on this machine" in str(error):
            pytest.skip(str(error))
        raise
    assert not fetch(name)
    assert [path.name for path in tmp_path.iterdir()] == [name]
