"""Bombs, pipes, devices and links: words at once, within the memory."""

import gzip
import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import scipy.io
from PIL import Image

from gradaudit.data import load_dataset
from gradaudit.errors import InputError
from tests.data.hostile.hostile_cases import (
    LABELS,
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

MIB = 1 << 20

# Bombs: small files that would fill the memory.


def idx_bomb(folder: Path) -> Path:
    return idx_pair(folder, gzip.compress(idx_header(64, 1024, 1024) + bytes(64 * MIB)))


def idx_overflow(folder: Path) -> Path:
    return idx_pair(folder, gzip.compress(idx_header(6, 2, 2) + bytes(64 * MIB)))


def npz_bomb(folder: Path) -> Path:
    x = npy(np.zeros((64, 1024, 1024), np.uint8))
    return npz(folder / "a.npz", x=x, y=npy(np.zeros(64, np.uint8)))


def npz_overflow(folder: Path) -> Path:
    x = npy_header("(6, 2)") + bytes(64 * MIB)
    return npz(folder / "a.npz", x=x, y=npy(Y))


def mat_bomb(folder: Path) -> Path:
    path = folder / "a.mat"
    pixels = np.zeros((32, 32, 3, 20_000), np.uint8)
    labels = np.ones((20_000, 1), np.uint8)
    scipy.io.savemat(path, {"X": pixels, "y": labels}, do_compression=True)
    return path


def csv_bomb(folder: Path) -> Path:
    """Two bytes of text are eight of a number."""
    return csv(folder, b"0,0,0,0,0,0,0,0\n" * (MIB // 3))


def image_bomb(folder: Path) -> Path:
    for number in range(30):
        (folder / f"{number}").mkdir()
        Image.new("L", (1024, 1024)).save(folder / f"{number}" / "a.png")
    return folder


BOMBS = [
    idx_bomb,
    idx_overflow,
    npz_bomb,
    npz_overflow,
    mat_bomb,
    csv_bomb,
    image_bomb,
]


@pytest.mark.parametrize("write", BOMBS)
def test_a_bomb_is_refused_before_it_is_read(write, tmp_path, monkeypatch):
    monkeypatch.setenv("GRADAUDIT_MAX_DATA_GIB", str(16 / 1024))
    path = write(tmp_path)
    tracemalloc.start()
    try:
        message = refused(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    if write is not mat_bomb:  # scipy inflates its first 128 KiB at once to look in
        assert peak < 40 * MIB
    assert "overflow" in write.__name__ or "GRADAUDIT_MAX_DATA_GIB" in message


def test_the_limit_can_be_moved(tmp_path, monkeypatch):
    path = tmp_path / "a.npz"
    np.savez(path, x=X, y=Y)
    for text in ("0", "-1", "nan", "inf", "much"):
        monkeypatch.setenv("GRADAUDIT_MAX_DATA_GIB", text)
        assert f"positive number of GiB, got '{text}'" in refused(path)
    monkeypatch.setenv("GRADAUDIT_MAX_DATA_GIB", "1e-7")
    assert "107 that are allowed" in refused(path)
    monkeypatch.setenv("GRADAUDIT_MAX_DATA_GIB", "0.5")
    assert len(load_dataset(str(path))) == 6


def test_an_image_of_too_many_pixels_is_refused(tmp_path):
    (tmp_path / "one").mkdir()
    header = b"P5\n60000 60000\n255\n"
    (tmp_path / "one" / "a.pgm").write_bytes(header + bytes(100))
    assert "a.pgm: field 'pixels' can't be read" in refused(tmp_path)


def test_a_picture_that_would_start_a_program_is_refused(tmp_path):
    (tmp_path / "one").mkdir()
    eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n%%EOF\n"
    (tmp_path / "one" / "a.png").write_bytes(eps)
    assert "no JPEG, PNG, PGM or BMP" in refused(tmp_path)


# What is no file at all.


PIPES = [
    "a.csv",
    "a.npz",
    "adult.data",
    "a.mat",
    "test_batch",
    "test_batch.bin",
    "train-images-idx3-ubyte",
]


@pytest.mark.parametrize("name", PIPES)
def test_a_pipe_is_not_waited_for(name, tmp_path):
    os.mkfifo(tmp_path / name)
    assert "neither a file nor a folder" in refused(tmp_path / name)


@pytest.mark.parametrize("name", ["cat/a.png", "adult.data", "t10k-images-idx3-ubyte"])
def test_a_pipe_inside_a_folder_is_not_waited_for(name, tmp_path):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    os.mkfifo(path)
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(LABELS)
    assert "regular file" in refused(tmp_path) or "no reader knows" in refused(tmp_path)


@pytest.mark.parametrize("name", ["/dev/zero", "/dev/null", "/dev/stdin"])
def test_a_device_is_no_dataset(name):
    assert "(a pipe or a device?)" in refused(name)


def test_links_that_lead_nowhere(tmp_path):
    for name in ("a.csv", "b.csv"):
        other = "b.csv" if name == "a.csv" else "a.csv"
        (tmp_path / name).symlink_to(tmp_path / other)
    assert "the link leads nowhere" in refused(tmp_path / "a.csv")
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "a.png").symlink_to("a.png")
    assert "a.png" in refused(tmp_path)
    (tmp_path / "cat" / "a.png").unlink()
    (tmp_path / "cat" / "cat").symlink_to(tmp_path / "cat")
    assert "no reader knows" in refused(tmp_path)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("x" * 5000, "no path: File name too long"),
        ("x" * 5000 + ".csv", "no path: File name too long"),
        ("a/" * 5000 + "b.npz", "no path: File name too long"),
        ("~nouser-at-all/x", "no path: Could not determine home"),
        ("", "unknown dataset ''"),
        ("a\0b.csv", "no such file|no path"),
        ("[/].csv", "no such file"),
    ],
)
def test_names_that_can_not_be_paths_are_answered_in_words(name, says):
    with pytest.raises(InputError, match=says):
        load_dataset(name)
    assert len(refused(name)) < 600
