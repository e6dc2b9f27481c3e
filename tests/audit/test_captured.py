"""Captured observations: an equal one comes back, a damaged or hostile one never."""

import json
import pathlib
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from gradaudit.audit import captured
from gradaudit.audit.captured import load_observation, save_observation
from gradaudit.errors import InputError
from gradaudit.models.networks import build_model
from gradaudit.types import Leakage, LocalTraining, Observation

MODEL = build_model("mlp", (30,), 2)


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    params = MODEL.init(jax.random.key(0))
    sent = jax.tree.map(lambda leaf: leaf * 0.1, params)
    training = LocalTraining(batch_size=2, learning_rate=0.1)
    save_observation(
        tmp_path,
        Observation(params, sent, leakage=Leakage.CLIENT, training=training),
    )
    return tmp_path


def test_an_equal_observation_comes_back(folder):
    read = load_observation(folder, MODEL)
    assert read.leakage is Leakage.CLIENT and read.training.batch_size == 2
    for leaf, known in zip(
        jax.tree.leaves(read.params),
        jax.tree.leaves(MODEL.init(jax.random.key(0))),
        strict=True,
    ):
        np.testing.assert_array_equal(leaf, known)


def change_about(folder: pathlib.Path, **values: object) -> None:
    path = folder / captured.ABOUT
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def change_tensors(folder: pathlib.Path, change, name: str = captured.SENT) -> None:
    tensors = load_file(folder / name)
    save_file(change(tensors), folder / name)


def first(tensors, array):
    name = next(iter(tensors))
    return tensors | {name: array(tensors[name])}


class Evil:
    def __reduce__(self):
        return pathlib.Path("hacked").touch, ()


HOSTILE = {
    "no sidecar": lambda f: (f / captured.ABOUT).unlink(),
    "a sidecar that is a list": lambda f: (f / captured.ABOUT).write_text("[]"),
    "a sidecar that is cut": lambda f: (f / captured.ABOUT).write_text('{"format"'),
    "another format": lambda f: change_about(f, format=99),
    "another type": lambda f: change_about(f, type=7),
    "a type that is a text": lambda f: change_about(f, type="1"),
    "a gradient of an update": lambda f: change_about(f, sent="gradient"),
    "a batch of none": lambda f: change_about(f, batch_size=0),
    "a batch of true": lambda f: change_about(f, batch_size=True),
    "half a step": lambda f: change_about(f, local_steps=0.5),
    "a rate of nothing": lambda f: change_about(f, learning_rate=0),
    "a rate without end": lambda f: change_about(f, learning_rate=float("inf")),
    "another optimizer": lambda f: change_about(f, optimizer="adam"),
    "labels of text": lambda f: change_about(f, labels=["a"]),
    "no tensors": lambda f: (f / captured.SENT).unlink(),
    "cut tensors": lambda f: (f / captured.SENT).write_bytes(
        (f / captured.SENT).read_bytes()[:100]
    ),
    "a pickle": lambda f: (f / captured.SENT).write_bytes(pickle.dumps(Evil())),
    "a header of all memory": lambda f: (f / captured.SENT).write_bytes(b"\xff" * 64),
    "an empty file": lambda f: (f / captured.SENT).write_bytes(b""),
    "another shape": lambda f: change_tensors(
        f, lambda t: first(t, lambda x: np.zeros((3, 3), np.float32))
    ),
    "whole numbers": lambda f: change_tensors(
        f, lambda t: first(t, lambda x: x.astype(np.int32))
    ),
    "NaN": lambda f: change_tensors(f, lambda t: first(t, lambda x: x * np.nan)),
    "one tensor less": lambda f: change_tensors(f, lambda t: dict(list(t.items())[1:])),
    "one tensor more": lambda f: change_tensors(
        f, lambda t: t | {"mine": np.zeros(2, np.float32)}
    ),
    "names that clash": lambda f: change_tensors(
        f,
        lambda t: t | {f"{next(iter(t))}/x": np.zeros(2, np.float32)},
    ),
    "other parameters": lambda f: change_tensors(
        f, lambda t: dict(list(t.items())[1:]), captured.RECEIVED
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_what_is_damaged_or_hostile_is_refused_in_words(case, folder, monkeypatch):
    monkeypatch.chdir(folder)
    HOSTILE[case](folder)
    with pytest.raises(InputError) as error:
        load_observation(folder, MODEL)
    assert "\n" not in str(error.value)
    assert not pathlib.Path("hacked").exists()


def test_a_file_beyond_the_limit_is_not_read(folder, monkeypatch):
    monkeypatch.setattr(captured, "_MOST_BYTES", 100)
    with pytest.raises(InputError, match="more than 100"):
        load_observation(folder, MODEL)


def test_labels_are_kept(tmp_path):
    params = MODEL.init(jax.random.key(0))
    save_observation(tmp_path, Observation(params, params, labels=jnp.asarray([1])))
    assert load_observation(tmp_path, MODEL).labels.tolist() == [1]
