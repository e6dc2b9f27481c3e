"""Captured updates: an equal one comes back, a damaged or hostile one never."""

import dataclasses
import io
import json
import pathlib
import pickle
import zipfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from gradaudit import record as recording
from gradaudit import tree
from gradaudit.audit import captured_files
from gradaudit.audit.captured_files import find, read_capture
from gradaudit.audit.captured_scenario import observation_of
from gradaudit.errors import InputError
from gradaudit.models.gradients import batch_gradient, one_hot
from gradaudit.models.networks import build_model
from gradaudit.types import Leakage, LocalTraining, Observation

MODEL = build_model("mlp", (30,), 10)
RATE, LABELS = 0.1, (3, 4)


@pytest.fixture(scope="module")
def update():
    """What a client that took one step on two examples received and sent."""
    params = MODEL.init(jax.random.key(0))
    inputs = jax.random.uniform(jax.random.key(1), (2, 30))
    targets = one_hot(jnp.asarray(LABELS), 10)
    gradient = batch_gradient(MODEL, params, {}, inputs, targets)
    sent = jax.tree.map(lambda p, g: p - RATE * g, params, gradient)
    return params, sent, gradient


def load_observation(folder):
    return observation_of(read_capture(folder), MODEL)


FACTS = {
    "learning_rate": RATE, "local_steps": 1, "batch_size": 2, "optimizer": "sgd",
    "round": 3, "client": "7",
}  # fmt: skip


@pytest.fixture
def folder(update, tmp_path) -> pathlib.Path:
    """A recorded folder whose sidecar has no digests: they would find all damage."""
    made = recording(tree.named(update[0]), tree.named(update[1]), tmp_path, **FACTS)
    assert made == tmp_path / "round-0003-client-7-wire"
    change_about(made, digests=None)
    return made


@pytest.mark.parametrize("leakage", Leakage)
def test_an_equal_observation_comes_back(leakage, update, tmp_path):
    params, _, gradient = update
    sent = gradient if leakage is Leakage.EXAMPLE else tree.scale(-RATE, gradient)
    training = LocalTraining(batch_size=2, learning_rate=RATE)
    labels = jnp.asarray(LABELS)
    given = Observation(params, sent, labels=labels, leakage=leakage, training=training)
    facts = dataclasses.asdict(training) | {"labels": LABELS}
    place = {2: "example", 1: "wire", 0: "server"}[leakage]
    kind = "gradient" if leakage is Leakage.EXAMPLE else "difference"
    made = recording(
        tree.named(params),
        tree.named(sent),
        tmp_path,
        sent_is=kind,
        place=place,
        **facts,
    )
    read = load_observation(made)
    assert (read.leakage, read.training) == (leakage, training)
    for one, other in zip(jax.tree.leaves(read), jax.tree.leaves(given), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("kind", recording.KINDS)
@pytest.mark.parametrize("suffix", [".safetensors", ".npz", "numbers"])
def test_whatever_was_sent_the_gradient_is_the_same(kind, suffix, update, tmp_path):
    params, after, gradient = update
    sent = {
        "weights": after,
        "difference": tree.subtract(after, params),
        "gradient": gradient,
    }[kind]
    given, back = tree.named(params), tree.named(sent)
    if suffix == "numbers":  # a list, as some frameworks send it
        given, back = list(given.values()), list(back.values())
    made = recording(given, back, tmp_path, sent_is=kind, **FACTS)
    if suffix == ".npz":
        change_about(made, digests=None)
        for name in (recording.RECEIVED, recording.SENT):
            arrays = load_file(made / name)
            (made / name).unlink()
            np.savez((made / name).with_suffix(".npz"), **arrays)
    found = load_observation(made).gradient
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(gradient), strict=True)
    for one, other in pairs:
        np.testing.assert_allclose(one, other, atol=2e-6)


def test_format_1_is_read(update, tmp_path):
    params, _, gradient = update
    prefixed = {f"params/{name}": array for name, array in tree.named(params).items()}
    save_file(prefixed, tmp_path / recording.RECEIVED)
    save_file(tree.named(gradient), tmp_path / recording.SENT)
    about = {
        "format": 1, "type": 2, "sent": "gradient", "labels": None, "batch_size": 2,
        "local_steps": 1, "learning_rate": 1.0, "optimizer": "sgd",
    }  # fmt: skip
    (tmp_path / recording.ABOUT).write_text(json.dumps(about))
    read = load_observation(tmp_path)
    assert read.leakage is Leakage.EXAMPLE
    np.testing.assert_array_equal(
        read.sent["output"]["kernel"], gradient["output"]["kernel"]
    )
    for kind in ([2], {}, "2", None):
        change_about(tmp_path, type=kind)
        with pytest.raises(InputError, match="place must be"):
            load_observation(tmp_path)


def change_about(folder: pathlib.Path, without: str = "", **values: object) -> None:
    path = folder / recording.ABOUT
    about = json.loads(path.read_text()) | values
    about.pop(without, None)
    path.write_text(json.dumps(about))


def change_tensors(folder: pathlib.Path, change, name: str = recording.SENT) -> None:
    tensors = load_file(folder / name)
    save_file(change(tensors), folder / name)


def first(tensors, array):
    name = next(iter(tensors))
    return tensors | {name: array(tensors[name])}


def instead(folder: pathlib.Path, name: str, content: bytes) -> None:
    (folder / recording.SENT).unlink()
    (folder / name).write_bytes(content)


def swap(folder: pathlib.Path) -> None:
    given, back = folder / recording.RECEIVED, folder / recording.SENT
    before = given.read_bytes()
    given.write_bytes(back.read_bytes())
    back.write_bytes(before)


def npz_that_declares(shape: tuple[int, ...]) -> bytes:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f4", "fortran_order": False, "shape": shape}
    )
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("dense1/kernel.npy", header.getvalue())
    return archive.getvalue()


def npz_of_objects() -> bytes:
    archive = io.BytesIO()
    np.savez(archive, x=np.array([Evil()], dtype=object))
    return archive.getvalue()


def safetensors_that_declare(shape: list[int]) -> bytes:
    size = 4 * int(np.prod(shape, dtype=object))
    entry = {"dtype": "F32", "shape": shape, "data_offsets": [0, size]}
    header = json.dumps({"dense1/kernel": entry}).encode()
    return len(header).to_bytes(8, "little") + header + b"\0" * 16


class Evil:
    def __reduce__(self):
        return pathlib.Path("hacked").touch, ()


SENT, ABOUT = recording.SENT, recording.ABOUT
# What is wrong -> (how it was made, a word that the message must hold)
HOSTILE = {
    "no sidecar": (lambda f: (f / ABOUT).unlink(), ABOUT),
    "a sidecar that is a list": (lambda f: (f / ABOUT).write_text("[]"), "object"),
    "a sidecar that is cut": (lambda f: (f / ABOUT).write_text('{"form'), "read"),
    "a sidecar of bytes": (lambda f: (f / ABOUT).write_bytes(b"\xff\xfe\0"), "read"),
    "another format": (lambda f: change_about(f, format=99), "format 99"),
    "a fact that nobody knows": (lambda f: change_about(f, lr=0.1), "'lr'"),
    "a fact with a typo": (lambda f: change_about(f, batchsize=2), "batch_size"),
    "another type": (lambda f: change_about(f, type=7), "type must be 1"),
    "a type that is a text": (lambda f: change_about(f, type="1"), "type must be 1"),
    "another place": (lambda f: change_about(f, place="moon"), "place must be"),
    "no place": (lambda f: change_about(f, without="place"), "place"),
    "another kind": (lambda f: change_about(f, sent="signs"), "sent must be"),
    "no kind": (lambda f: change_about(f, without="sent"), "sent"),
    "a kind that can't be": (
        lambda f: change_about(f, place="example", type=2),
        "gradient",
    ),
    "a batch of none": (lambda f: change_about(f, batch_size=0), "batch_size"),
    "a batch of true": (lambda f: change_about(f, batch_size=True), "batch_size"),
    "no batch size": (lambda f: change_about(f, batch_size=None), "--batch-size"),
    "half a step": (lambda f: change_about(f, local_steps=0.5), "local_steps"),
    "a rate of nothing": (lambda f: change_about(f, learning_rate=0), "positive"),
    "a rate without end": (
        lambda f: change_about(f, learning_rate=float("inf")),
        "learning_rate",
    ),
    "no rate": (lambda f: change_about(f, learning_rate=None), "--learning-rate"),
    "a rate that contradicts the update": (
        lambda f: change_about(f, learning_rate=0.001),
        "contradicts",
    ),
    "another optimizer": (lambda f: change_about(f, optimizer="adam"), "adam"),
    "labels of text": (lambda f: change_about(f, labels=["a"]), "labels"),
    "labels of another batch": (lambda f: change_about(f, labels=[1, 2, 3]), "2 known"),
    "labels outside": (lambda f: change_about(f, labels=[1, 10]), "label 10"),
    "a claim of text": (lambda f: change_about(f, claim={"clip": "x"}), "claim"),
    "a claim that nobody knows": (lambda f: change_about(f, claim={"x": 1}), "claim"),
    "no tensors": (lambda f: (f / SENT).unlink(), "sent"),
    "two files of tensors": (
        lambda f: np.savez(f / "sent.npz", x=np.zeros(1)),
        "keep the one",
    ),
    "cut tensors": (
        lambda f: (f / SENT).write_bytes((f / SENT).read_bytes()[:100]),
        "safetensors",
    ),
    "a pickle": (lambda f: (f / SENT).write_bytes(pickle.dumps(Evil())), "safetensors"),
    "a pickle as npz": (lambda f: instead(f, "sent.npz", pickle.dumps(Evil())), "npz"),
    "objects in an npz": (lambda f: instead(f, "sent.npz", npz_of_objects()), "object"),
    "a pickle as pt": (lambda f: instead(f, "sent.pt", pickle.dumps(Evil())), "torch"),
    "a header of all memory": (
        lambda f: (f / SENT).write_bytes(b"\xff" * 64),
        "safetensors",
    ),
    "a huge declared shape": (
        lambda f: (f / SENT).write_bytes(safetensors_that_declare([1 << 40, 1 << 20])),
        "safetensors",
    ),
    "a huge declared shape in an npz": (
        lambda f: instead(f, "sent.npz", npz_that_declares((1 << 40, 1 << 20))),
        "bytes",
    ),
    "an empty file": (lambda f: (f / SENT).write_bytes(b""), "safetensors"),
    "a folder for a file": (
        lambda f: ((f / SENT).unlink(), (f / SENT).mkdir()),
        "regular file",
    ),
    "another shape": (
        lambda f: change_tensors(
            f, lambda t: first(t, lambda x: np.zeros((3, 3), np.float32))
        ),
        "shape",
    ),
    "whole numbers": (
        lambda f: change_tensors(
            f, lambda t: {n: x.astype(np.int32) for n, x in t.items()}
        ),
        "zero everywhere",
    ),
    "NaN": (
        lambda f: change_tensors(f, lambda t: first(t, lambda x: x * np.nan)),
        "NaN",
    ),
    "NaN in what was received": (
        lambda f: change_tensors(
            f, lambda t: first(t, lambda x: x * np.nan), recording.RECEIVED
        ),
        "NaN",
    ),
    "infinity after rounding": (
        lambda f: change_tensors(
            f, lambda t: first(t, lambda x: x.astype(np.float64) + 1e300)
        ),
        "infinity",
    ),
    "nothing moved": (
        lambda f: (f / SENT).write_bytes((f / recording.RECEIVED).read_bytes()),
        "zero everywhere",
    ),
    "one tensor less": (
        lambda f: change_tensors(f, lambda t: dict(list(t.items())[1:])),
        "missing",
    ),
    "one tensor more": (
        lambda f: change_tensors(f, lambda t: t | {"mine": np.zeros(2, np.float32)}),
        "mine",
    ),
    "names that clash": (
        lambda f: change_tensors(
            f, lambda t: t | {f"{next(iter(t))}/x": np.zeros(2, np.float32)}
        ),
        "not received",
    ),
    "other names": (
        lambda f: [
            change_tensors(f, lambda t: {f"net.{n}": x for n, x in t.items()}, name)
            for name in (SENT, recording.RECEIVED)
        ],
        "missing",
    ),
    "other parameters": (
        lambda f: change_tensors(
            f, lambda t: dict(list(t.items())[1:]), recording.RECEIVED
        ),
        "not received",
    ),
    "swapped files": (swap, "swapped"),
    "a digest of another file": (
        lambda f: change_about(f, digests={SENT: "0" * 64}),
        "SHA-256",
    ),
    "a digest of no file": (lambda f: change_about(f, digests={"x": "0"}), "no file"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_what_is_damaged_or_hostile_is_refused_in_words(case, folder, monkeypatch):
    monkeypatch.chdir(folder)
    damage, word = HOSTILE[case]
    damage(folder)
    with pytest.raises(InputError) as error:
        load_observation(folder)
    assert "\n" not in str(error.value) and word in str(error.value)
    assert not pathlib.Path("hacked").exists()


def test_digests_find_any_change_of_a_recorded_file(update, tmp_path):
    made = recording(tree.named(update[0]), tree.named(update[1]), tmp_path, **FACTS)
    load_observation(made)
    swap(made)
    with pytest.raises(InputError, match="swapped"):
        load_observation(made)


def test_a_file_beyond_the_limit_is_not_read(folder, monkeypatch):
    monkeypatch.setattr(captured_files, "MOST_BYTES", 100)
    with pytest.raises(InputError, match="more than 100"):
        load_observation(folder)


def test_noise_that_is_claimed_may_move_the_bias_anywhere(folder):
    change_about(folder, learning_rate=0.001)
    with pytest.raises(InputError, match="the learning rate 0.001 contradicts"):
        load_observation(folder)
    change_about(folder, claim={"noise_std": 0.5})
    bias = load_observation(folder).gradient[MODEL.output_layer]["bias"]
    assert np.abs(bias).max() > 1  # further than one step without noise


def test_facts_that_the_sidecar_leaves_open_can_be_given(folder):
    change_about(folder, batch_size=None)
    capture = read_capture(folder)
    told = observation_of(capture.knowing(batch_size=2, local_steps=None), MODEL)
    assert told.training.batch_size == 2
    with pytest.raises(InputError, match="says that local_steps is 1"):
        capture.knowing(local_steps=4)


def test_an_aggregate_mixes_all_examples_of_its_clients(update, tmp_path):
    facts = FACTS | {"place": "aggregate", "clients": 3}
    made = recording(tree.named(update[0]), tree.named(update[1]), tmp_path, **facts)
    assert load_observation(made).training.batch_size == 6
    change_about(made, local_steps=2)
    with pytest.raises(InputError, match="can't be replayed"):
        load_observation(made)


def test_folders_are_found_below_a_folder(update, tmp_path):
    for number in (1, 2):
        given, back = tree.named(update[0]), tree.named(update[1])
        recording(given, back, tmp_path / "a", **(FACTS | {"round": number}))
    names = ["round-0001-client-7-wire", "round-0002-client-7-wire"]
    assert [path.name for path in find(tmp_path)] == names
    assert find(tmp_path / "a" / names[0]) == [tmp_path / "a" / names[0]]
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no captured update"):
        find(tmp_path / "empty")
