"""Every reader, on tiny files in the true formats that the tests write."""

import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gradaudit.data import load_dataset
from gradaudit.data.dataset import held_out
from gradaudit.data.formats import READERS, read_path
from gradaudit.errors import InputError
from tests.data.file_cases import (
    ADULT_ROW,
    CASES,
    DIGITS,
    GREY,
    LABELS,
    idx_bytes,
    write_adult,
    write_cifar_python,
    write_idx,
    write_image_folder,
    write_lfw,
    write_orl,
)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_every_format_is_recognised_and_read(case, tmp_path):
    path = case.write(tmp_path)
    first = next(reader for reader in READERS if reader.accepts(path))
    assert first.name == case.reader
    dataset = load_dataset(str(path))
    assert np.array_equal(dataset.labels, case.labels)
    if case.inputs is not None:
        assert np.array_equal(dataset.inputs, case.inputs)


def test_every_reader_has_a_case():
    assert {case.reader for case in CASES.values()} == {r.name for r in READERS}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize("cut", [40, 0.45, 1.0])
def test_a_truncated_file_is_named(case, cut, tmp_path):
    """A few bytes, about half of the file, and all of it are missing."""
    path = case.write(tmp_path)
    damaged = path / case.damage if case.damage else path
    data = damaged.read_bytes()
    kept = len(data) - (cut if isinstance(cut, int) else int(cut * len(data)))
    damaged.write_bytes(data[:kept])
    with pytest.raises(InputError) as error:
        load_dataset(str(path))
    assert damaged.name in str(error.value)
    assert any(word in str(error.value) for word in ("field", "line"))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_altered_bytes_are_read_or_refused_in_a_line(case, tmp_path):
    """Forty files each: bits flipped, bytes replaced or taken out.

    No traceback, whatever was altered.
    """
    path = case.write(tmp_path)
    damaged = path / case.damage if case.damage else path
    intact = damaged.read_bytes()
    rng = np.random.default_rng(len(intact))
    for _ in range(10 if case.reader == "lfw" else 40):
        data = bytearray(intact)
        for _ in range(rng.integers(1, 5)):
            where = int(rng.integers(min(len(data), int(rng.choice([32, 300, 10**9])))))
            how = rng.integers(3)
            if how == 0:
                data[where] ^= 1 << int(rng.integers(8))
            elif how == 1:
                data[where] = int(rng.integers(256))
            else:
                del data[where : where + int(rng.integers(1, 9))]
        damaged.write_bytes(data)
        try:
            load_dataset(str(path))
        except InputError as error:
            assert "\n" not in str(error)


def test_idx_folder_has_both_splits(tmp_path):
    write_idx(tmp_path, "train")
    write_idx(tmp_path, "t10k", zipped=True)
    assert len(load_dataset(str(tmp_path))) == 12
    assert load_dataset(str(tmp_path), "test").split == "test"
    assert len(load_dataset(str(tmp_path), "train")) == 6


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda data: b"\x01" + data[1:], "magic number"),
        (lambda data: data[:2] + b"\x07" + data[3:], "magic number"),
        (lambda data: data[:9], "dimensions"),
        (lambda data: data[:7] + b"\x07" + data[8:], "data"),
        (lambda data: data + b"\0", "data"),
    ],
)
def test_idx_names_the_broken_field(change, says, tmp_path):
    images = write_idx(tmp_path)
    images.write_bytes(change(images.read_bytes()))
    with pytest.raises(InputError, match=f"{images.name}: field '{says}'"):
        load_dataset(str(images))


def test_idx_needs_the_labels_that_belong_to_it(tmp_path):
    images = write_idx(tmp_path)
    labels = tmp_path / "train-labels-idx1-ubyte"
    labels.write_bytes(idx_bytes(LABELS[:4]))
    with pytest.raises(InputError, match="don't belong together"):
        load_dataset(str(images))
    labels.unlink()
    with pytest.raises(InputError, match="not beside it"):
        load_dataset(str(images))


def test_cifar_folder_needs_all_its_batches(tmp_path):
    write_cifar_python(tmp_path)
    with pytest.raises(InputError, match="data_batch_2"):
        load_dataset(str(tmp_path))


class _Evil:
    def __reduce__(self):
        return (Path.touch, (Path("touched"),))


def test_a_pickle_that_would_run_code_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "test_batch"
    path.write_bytes(pickle.dumps({b"data": _Evil(), b"labels": []}))
    with pytest.raises(InputError, match="no place in a batch"):
        load_dataset(str(path))
    assert not Path("touched").exists()


def test_adult_rows_are_scaled_one_hot_and_unknown_sets_nothing(tmp_path):
    known, unknown = load_dataset(str(write_adult(tmp_path))).inputs
    assert known.shape == (105,)
    # Six numbers and eight categories, one feature set in each.
    assert np.count_nonzero(known == 1.0) == 8
    assert known[0] == pytest.approx((39 - 17) / (90 - 17))
    # age, weight, loss and hours are at their largest; three categories are unknown.
    assert np.count_nonzero(unknown == 1.0) == 4 + 5


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (ADULT_ROW.replace("39", "old"), "'age'"),
        (ADULT_ROW.replace("State-gov", "Pirate"), "'workclass': unknown.*'Pirate'"),
        (ADULT_ROW.replace("<=50K", "50K"), "'income'"),
        (ADULT_ROW.replace("<=50K", "?"), "'income'"),
        (ADULT_ROW.replace(", Male", ""), "line 1 has 14 fields"),
    ],
)
def test_adult_names_the_broken_field(row, says, tmp_path):
    path = tmp_path / "adult.data"
    path.write_text(row + "\n")
    with pytest.raises(InputError, match=f"adult.data.*{says}"):
        load_dataset(str(path))


def test_lfw_is_what_scikit_learn_reads_from_the_same_cache(tmp_path):
    from sklearn.datasets import fetch_lfw_people

    home = write_lfw(tmp_path)
    for name in ("pairsDevTrain.txt", "pairsDevTest.txt", "pairs.txt"):
        (home / name).touch()
    theirs = fetch_lfw_people(
        data_home=tmp_path,
        min_faces_per_person=20,
        color=True,
        slice_=(slice(70, 195), slice(62, 187)),
        resize=32 / 125,
        download_if_missing=False,
    )
    ours = load_dataset(str(tmp_path))  # the cache's own folder is enough
    assert ours.shape == theirs.images.shape[1:] == (32, 32, 3)
    assert np.array_equal(np.bincount(ours.labels), np.bincount(theirs.target))
    for label in (0, 1):
        mine = ours.inputs[ours.labels == label].mean(axis=0)
        other = theirs.images[theirs.target == label].mean(axis=0)
        assert abs(mine - other).max() < 0.01


def test_folders_are_in_natural_order(tmp_path):
    inputs = load_dataset(str(write_orl(tmp_path))).inputs
    expected = [11, 12, 20, 21, 22, 30, 101, 102, 110]
    assert np.rint(inputs[:, 0, 0, 0] * 255).astype(int).tolist() == expected


def test_images_must_be_of_one_size(tmp_path):
    folder = write_image_folder(tmp_path)
    Image.new("RGB", (8, 8)).save(folder / "dog" / "9.png")
    with pytest.raises(InputError, match="9.png: field 'size'"):
        load_dataset(str(folder))


def test_csv_may_have_a_header_and_its_labels_must_be_whole(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("label,f1,f2\n7,0,1\n9,1,0.5\n")
    dataset = load_dataset(str(path))
    assert dataset.labels.tolist() == [0, 1]
    assert dataset.inputs.tolist() == [[0, 1], [1, 0.5]]
    path.write_text("0.5,0,1\n")
    with pytest.raises(InputError, match="whole numbers"):
        load_dataset(str(path))


def test_npz_with_official_splits_and_without_labels(tmp_path):
    path = tmp_path / "a.npz"
    half = {"x_train": DIGITS[:4], "y_train": LABELS[:4]}
    np.savez(path, **half, x_test=DIGITS[4:], y_test=LABELS[4:])
    assert len(load_dataset(str(path), "train")) == 4
    assert np.array_equal(load_dataset(str(path)).inputs, GREY)
    np.savez(path, x=DIGITS, z=LABELS)
    with pytest.raises(InputError, match="needs arrays 'x' and 'y'.*found x, z"):
        load_dataset(str(path))
    np.savez(path, x=DIGITS, y=LABELS / 2)
    with pytest.raises(InputError, match="field 'y' must hold integers"):
        load_dataset(str(path))


def test_a_set_without_splits_is_cut_by_class(tmp_path):
    path = tmp_path / "a.npz"
    labels = np.repeat([0, 1], 10)
    np.savez(path, x=np.linspace(0, 1, 20)[:, None], y=labels)
    train, test = (load_dataset(str(path), split) for split in ("train", "test"))
    assert np.bincount(train.labels).tolist() == [8, 8]
    assert np.bincount(test.labels).tolist() == [2, 2]
    assert not set(train.inputs.ravel()) & set(test.inputs.ravel())
    assert np.flatnonzero(held_out(labels)).tolist() == [4, 9, 14, 19]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("nowhere/at-all.npz", "no such file or folder: nowhere/at-all.npz"),
        ("mnst", "did you mean 'mnist'"),
    ],
)
def test_what_is_not_there_is_said_so(name, says):
    with pytest.raises(InputError, match=says):
        load_dataset(name)


def test_an_npz_that_is_none_is_called_so(tmp_path):
    path = tmp_path / "a.npz"
    for content in (b"", b"hello", (DIGITS * 255).tobytes()):
        path.write_bytes(content)
        with pytest.raises(InputError, match="no .npz at all; numpy.savez"):
            load_dataset(str(path))
    with path.open("wb") as file:
        np.save(file, DIGITS)  # one array, no archive around it
    with pytest.raises(InputError, match="no .npz at all"):
        load_dataset(str(path))


def test_an_unknown_kind_lists_what_can_be_read(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("hello")
    with pytest.raises(InputError, match="no reader knows.*npz: x and y"):
        read_path(path)


def test_a_split_that_files_lack_is_refused(tmp_path):
    with pytest.raises(InputError, match="no split 'test'"):
        load_dataset(str(write_idx(tmp_path)), "test")
