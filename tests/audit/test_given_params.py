"""Attacking a network whose parameters come from a file."""

import dataclasses

import jax
import numpy as np
import pytest

import gradaudit as ga
from gradaudit import tree
from gradaudit.audit.training_plan import centralized_setting
from gradaudit.data import load_dataset
from gradaudit.models.networks import build_model

SMALL = {"dataset": "digits", "model": "dpfl-2conv", "victims": 2}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    data = load_dataset("digits")
    params = build_model("dpfl-2conv", data.shape, data.classes).init(jax.random.key(8))
    arrays = {
        name: np.asarray(leaf)
        for name, leaf in zip(tree.names(params), jax.tree.leaves(params), strict=True)
    }
    folder = tmp_path_factory.mktemp("params")
    np.savez(folder / "net.npz", **arrays)
    return folder, arrays


def test_what_is_attacked_is_the_network_of_the_file(written):
    folder, arrays = written
    result = ga.attack(**SMALL, params=folder / "net.npz", iterations=20)
    assert result.asr.value == 1.0 and result.draws == 1
    assert result.about["params"].endswith("net.npz")
    assert not any("untrained" in words for words in result.limitations)
    moved = {name: 0.9 * array for name, array in arrays.items()}
    np.savez(folder / "other.npz", **moved)
    other = ga.attack(**SMALL, params=folder / "other.npz", iterations=20)
    assert not np.array_equal(other.inputs, result.inputs)


def test_what_a_training_leaves_is_what_is_attacked(tmp_path):
    """Centrally, where one client takes part: as many victims as one likes."""
    setting = centralized_setting(len(load_dataset("digits", "train")))
    setting = dataclasses.replace(setting, rounds=3, batch_size=16)
    trained = ga.train("digits", model="dpfl-2conv", setting=setting, out=tmp_path)
    with np.load(tmp_path / "parameters.npz") as file:
        assert tuple(file.files) == tree.names(trained.params)
        for name, leaf in zip(file.files, jax.tree.leaves(trained.params), strict=True):
            np.testing.assert_array_equal(file[name], leaf)
    attacked = ga.attack(**SMALL, params=tmp_path / "parameters.npz", iterations=2)
    assert attacked.asked == 2 and attacked.draws == 1
    other = dataclasses.replace(trained, config=trained.config | {"standardize": True})
    assert other.arrays() == {}  # the named network is not all that was trained


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("missing", lambda a: {k: v for k, v in list(a.items())[1:]}, "missing"),
        ("shape", lambda a: {k: v[..., :1] for k, v in a.items()}, "must be"),
        ("nan", lambda a: {k: np.nan * v for k, v in a.items()}, "NaN"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_in_words(written, name, change, words):
    folder, arrays = written
    np.savez(folder / f"{name}.npz", **change(arrays))
    with pytest.raises(ga.InputError, match=words):
        ga.attack(**SMALL, params=folder / f"{name}.npz")


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"params": "nowhere.npz"}, "no file"),
        ({"params": "weights.txt"}, "must end in"),
        ({"params": "net.npz", "draws": 2}, "draws is 1"),
        ({"params": "net.npz", "run": "somewhere"}, "its own parameters"),
    ],
)
def test_what_cannot_go_with_a_file_is_refused(written, asked, words):
    folder, _ = written
    with pytest.raises(ga.InputError, match=words):
        ga.attack(**SMALL | asked | {"params": folder / asked["params"]})
