"""Damaged and hostile contents: refused in words, and no code is run."""

import gzip
import pickle
from pathlib import Path

import numpy as np
import pytest
import scipy.io

from gradaudit.data import load_dataset
from gradaudit.errors import InputError
from tests.data.hostile.hostile_cases import (
    X,
    Y,
    csv,
    idx_header,
    idx_pair,
    npy,
    npy_header,
    npz,
    refused,
)

# Tables of text.


@pytest.mark.parametrize("header", [b"", b"label,f1,f2\n", b"label,0,1\n"])
def test_a_byte_order_mark_drops_no_row(header, tmp_path):
    rows = b"0,0.25,1\n1,0.5,0\n"
    dataset = load_dataset(str(csv(tmp_path, b"\xef\xbb\xbf" + header + rows)))
    assert dataset.labels.tolist() == [0, 1]
    assert dataset.inputs.tolist() == [[0.25, 1], [0.5, 0]]


def test_quoted_fields_are_fields(tmp_path):
    path = csv(tmp_path, b'"0","0.25"\n"1","0.5"\n')
    assert load_dataset(str(path)).inputs.tolist() == [[0.25], [0.5]]


def test_labels_that_differ_late_are_two_classes(tmp_path):
    """As 32-bit numbers they would be one."""
    path = csv(tmp_path, b"16777216,0\n16777217,1\n")
    assert load_dataset(str(path)).labels.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "'rows' is empty"),
        (b"\n\n", "'rows' is empty"),
        (b"label,f\n", "expected a label and features"),
        (b"1.00000001,0\n", "whole numbers"),
        (b"0.5,0\n", "whole numbers"),
        (b"nan,0\n1,0\n", "whole numbers.*nan"),
        (b"inf,0\n1,0\n", "whole numbers.*inf"),
        (b"1e300,0\n", "whole numbers"),
        (b"0,nan\n1,0\n", "input 0 holds nan"),
        (b"0,1e300\n1,0\n", "input 0 holds inf"),
        (b"0,0.5\n1,0.5,1\n", "'rows' can't be read"),
        (b"0,cat\n1,0.5\n", "'rows' can't be read"),
        (b"0\n1\n", "expected a label and features"),
        ("größe,ä\n0,1\n".encode("latin-1"), "not UTF-8.*save it as UTF-8"),
        ("0,1\n1,0\n".encode("utf-16"), "not UTF-8"),
        (bytes(range(256)), "a.csv: "),
        (b"\0\0\0\0,1\n0,1\n", "neither a label nor the name"),
        (b"?0,0.5\n1,0.5\n", "neither a label nor the name"),
        (b",label,f\n0,1,0.5\n", "index=False"),
    ],
)
def test_a_table_that_is_none_is_refused_in_words(data, says, tmp_path):
    path = csv(tmp_path, data)
    with pytest.raises(InputError, match=says):
        load_dataset(str(path))


def test_an_infinite_number_in_adult_is_not_clipped_to_the_largest(tmp_path):
    path = tmp_path / "adult.data"
    rest = "Private, 77516, Bachelors, 13, Never-married, Sales, Wife, White, Male"
    path.write_text(f"inf, {rest}, 0, 0, 40, Peru, <=50K\n")
    assert "'age'" in refused(path)


# Arrays.


@pytest.mark.parametrize(
    ("x", "y", "says"),
    [
        (X, Y + 0.5, "'y' must hold integers, found float64"),
        (X, Y.astype(float), "'y' must hold integers"),
        (X, np.where(Y == 1, np.nan, Y), "'y' must hold integers"),
        (X, np.full((6, 3), np.nan), "one-hot"),
        (X, np.full((6, 3), 0.4), "one-hot"),
        (X, np.zeros((6, 3), int), "one-hot"),
        (X, Y - 1, "label -1; classes count from 0"),
        (X, Y + 2**40, "classes must be 1 to 1,000,000"),
        (X, Y[:5], "'x' of 'y' is"),
        (X, np.array("a"), "holds <U1, expected integers or real"),
        (X + 1j, Y, "holds complex128, expected integers or real"),
        (X.astype(str), Y, "expected integers or real"),
        (X.astype("S"), Y, "expected integers or real"),
        (X.astype("M8[s]"), Y, "expected integers or real"),
        (X[:, :0], Y, "none of them empty"),
        (X[:0], Y[:0], "none of them empty"),
        (np.float64(1), np.int64(1), "axes"),
        (X[:, 0], Y, "'x' of 'y' is"),
        (np.where(X > 0.5, np.inf, X), Y, "holds inf"),
        (X * 1e300, Y, "holds inf"),
        (X[:, :, None], Y.astype(np.uint64), None),
        (X.astype(np.longdouble), Y[:, None], None),
        (X > 0.5, np.eye(3, dtype=bool)[Y], None),
    ],
)
def test_arrays_are_numbers_or_refused_in_words(x, y, says, tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, x=x, y=y)
    if says is None:
        with_channel = load_dataset(str(path))
        assert with_channel.labels.tolist() == Y.tolist()
        return
    with pytest.raises(InputError, match=says):
        load_dataset(str(path))


class Trap:
    """Writes a file when it is unpickled."""

    def __reduce__(self):
        return (Path.touch, (Path("touched"),))


def test_objects_in_an_archive_are_never_loaded(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    uneven = np.array([[1], [1, 2], Trap()], dtype=object)
    np.savez(tmp_path / "a.npz", x=uneven, y=Y[:3])
    assert "holds object, expected integers or real" in refused("a.npz")
    np.savez(tmp_path / "a.npz", x=X, y=Y, z=uneven)  # nobody asks for z
    assert len(load_dataset("a.npz")) == 6
    assert not Path("touched").exists()


@pytest.mark.parametrize(
    ("x", "says"),
    [
        (npy_header("(6, 99)") + bytes(12), "needs 594 bytes, found 12"),
        (npy_header("(6, 1)") + bytes(12), "needs 6 bytes, found 7 or more"),
        (npy_header("(6, 2305843009213693952)") + bytes(12), "needs"),
        (npy_header(f"({'2, ' * 255})") + bytes(12), "of 255 axes"),
        (npy_header("(6, -2)") + bytes(12), "none of them empty"),
        (npy_header("(6, 2)", "'|u1, broken'") + bytes(12), "can't be read"),
        (npy_header("(6, 2)", "[('a', '|u1')]") + bytes(12), "expected integers"),
        (npy_header("(6, 2)")[:20], "can't be read"),
        (b"\x93NUMPY\x07\x00", "'x'|can't be read"),
        (b"hello", "can't be read"),
        (b"", "can't be read"),
    ],
)
def test_a_header_that_lies_is_refused_in_words(x, says, tmp_path):
    with pytest.raises(InputError, match=says):
        load_dataset(str(npz(tmp_path / "a.npz", x=x, y=npy(Y))))


def test_an_encrypted_or_cut_archive_is_refused_in_words(tmp_path):
    path = npz(tmp_path / "a.npz", x=npy(X), y=npy(Y))
    data = bytearray(path.read_bytes())
    for at in (data.find(b"PK\x03\x04") + 6, data.find(b"PK\x01\x02") + 8):
        data[at] |= 1
    path.write_bytes(data)
    assert "'archive' can't be read" in refused(path)
    whole = npz(path, x=npy(X), y=npy(Y)).read_bytes()
    for size in range(0, len(whole), 7):
        path.write_bytes(whole[:size])
        refused(path)


# IDX files.


@pytest.mark.parametrize(
    ("images", "says"),
    [
        (bytes([0, 0, 8, 255]) + b"\0\0\0\2" * 255 + bytes(64), "'magic number'"),
        (idx_header(65536, 65536, 65536, 65536) + bytes(64), "'data' decodes to"),
        (idx_header(4294967295, 4294967295, 4294967295), "'data' decodes to"),
        (idx_header(0, 5, 5), "don't belong together"),
        (idx_header(6, 0, 5), "is empty"),
        (b"", "'magic number' is missing"),
        (gzip.compress(b"", mtime=0), "'magic number' is missing"),
        (gzip.compress(idx_header(6, 2, 2) + bytes(24), mtime=0)[:-9], "'gzip stream'"),
        (b"\x1f\x8b", "'gzip stream'"),
        (b"\x1f\x8bnonsense", "'gzip stream'"),
        (gzip.compress(idx_header(6, 2, 2) + bytes(25), mtime=0), "24 bytes and more"),
    ],
)
def test_idx_files_that_lie_are_refused_in_words(images, says, tmp_path):
    assert says in refused(idx_pair(tmp_path, images))


def test_idx_labels_must_be_whole(tmp_path):
    labels = idx_header(6, kind=0x0D) + np.full(6, np.nan, ">f4").tobytes()
    path = idx_pair(tmp_path, idx_header(6, 2, 2) + bytes(24), labels)
    assert "'labels' must hold integers" in refused(path)


# Pickled batches.


def batch(folder: Path, data: bytes) -> Path:
    path = folder / "test_batch"
    path.write_bytes(data)
    return path


def nested_labels() -> bytes:
    """Thirty lists of ten references each stand for 10**30 labels."""
    labels: list = [0]
    for _ in range(30):
        labels = [labels] * 10
    return pickle.dumps({b"data": np.zeros((10, 3072), np.uint8), b"labels": labels})


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "'pickle'"),
        (b"\x80\x02J\x00\x00\x00\x00r\xff\xff\xff\x7f.", "memo"),
        (b"cnumpy\nndarray\n(I1000000000000\ntR.", "'pickle'"),
        (b"cnumpy.core.multiarray\n_reconstruct\n(NI99\nS'b'\ntR.", "'pickle'"),
        (b"cos\nsystem\n(S'touch touched'\ntR.", "os.system has no place"),
        (b"c__builtin__\neval\n(S'1'\ntR.", "has no place"),
        (nested_labels(), "'labels' must be a list of integers"),
        (pickle.dumps({b"data": [[0]], b"labels": [0]}), "'data' must be uint8"),
        (pickle.dumps([]), "'pickle'"),
        (pickle.dumps({b"labels": [0]}), "b'data' is missing"),
    ],
)
def test_a_pickle_is_plain_values_or_refused(data, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert says in refused(batch(tmp_path, data))
    assert not Path("touched").exists()


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_every_protocol_of_a_true_batch_is_read(protocol, tmp_path):
    pixels = np.arange(2 * 3072).astype(np.uint8).reshape(2, 3072)
    data = pickle.dumps({b"data": pixels, b"labels": [7, 3]}, protocol)
    dataset = load_dataset(str(batch(tmp_path, data)))
    assert dataset.labels.tolist() == [7, 3]
    planes = dataset.inputs.transpose(0, 3, 1, 2).reshape(2, -1) * 255
    assert np.array_equal(np.rint(planes), pixels)


@pytest.mark.parametrize("labels", [[1.5], [np.nan], [1 + 1j], [11], ["one"], [[]]])
def test_svhn_labels_must_be_whole_and_from_one_to_ten(labels, tmp_path):
    path = tmp_path / "a.mat"
    pixels = np.zeros((32, 32, 3, 1), np.uint8)
    scipy.io.savemat(path, {"X": pixels, "y": np.array(labels)})
    assert "'y'" in refused(path)
