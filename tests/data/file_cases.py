"""Tiny files in the true formats, written by the tests, and what must be read."""

import dataclasses
import gzip
import json
import pickle
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import scipy.io
from PIL import Image

RNG = np.random.default_rng(0)
DIGITS = RNG.integers(0, 256, (6, 5, 4), dtype=np.uint8)
COLOUR = RNG.integers(0, 256, (10, 32, 32, 3), dtype=np.uint8)
LABELS = np.array([3, 0, 2, 2, 1, 0], np.uint8)
TEN = np.arange(10, dtype=np.uint8)[::-1]
ADULT_ROW = (
    "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, "
    "Not-in-family, White, Male, 2174, 0, 40, United-States, <=50K"
)
ADULT_UNKNOWN = (
    "90, ?, 1484705, HS-grad, 9, Divorced, ?, Husband, Black, Female, 0, 4356, 99, "
    "?, >50K"
)


def idx_bytes(array: np.ndarray) -> bytes:
    sizes = struct.pack(f">{array.ndim}I", *array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes()


def write_idx(folder: Path, prefix: str = "train", zipped: bool = False) -> Path:
    pack, suffix = (gzip.compress, ".gz") if zipped else (bytes, "")
    images = folder / f"{prefix}-images-idx3-ubyte{suffix}"
    images.write_bytes(pack(idx_bytes(DIGITS)))
    labels = folder / f"{prefix}-labels-idx1-ubyte{suffix}"
    labels.write_bytes(pack(idx_bytes(LABELS)))
    return images


def planes(images: np.ndarray) -> np.ndarray:
    return images.transpose(0, 3, 1, 2).reshape(len(images), -1)


def write_cifar_python(folder: Path) -> Path:
    path = folder / "data_batch_1"
    batch = {b"data": planes(COLOUR), b"labels": TEN.tolist(), b"batch_label": b"one"}
    path.write_bytes(pickle.dumps(batch, protocol=2))
    return path


def write_cifar_binary(folder: Path) -> Path:
    path = folder / "test_batch.bin"
    path.write_bytes(np.concatenate([TEN[:, None], planes(COLOUR)], axis=1).tobytes())
    return path


def write_cifar_strips(folder: Path) -> Path:
    names = [f"data_batch_{n}" for n in range(1, 6)] + ["test_batch"]
    for name in names:
        Image.fromarray(COLOUR.reshape(10, 1024, 3)).save(folder / f"{name}.png")
    (folder / "train_lables.json").write_text(json.dumps(TEN.tolist() * 5))
    (folder / "test_lables.json").write_text(json.dumps(TEN.tolist()))
    return folder


def write_adult(folder: Path) -> Path:
    path = folder / "adult.test"
    comment = "|1x3 Cross validator"
    path.write_text(f"{comment}\n{ADULT_ROW}.\n{ADULT_UNKNOWN}.\n\n")
    return path


def write_svhn(folder: Path) -> Path:
    path = folder / "train_32x32.mat"
    labels = np.where(TEN == 0, 10, TEN)[:, None]
    scipy.io.savemat(
        path, {"X": COLOUR.transpose(1, 2, 3, 0), "y": labels}, do_compression=True
    )
    return path


def write_lfw(folder: Path) -> Path:
    for person, count in (("Ann_Lee", 20), ("Bo_Ek", 21), ("Rare_Face", 3)):
        home = folder / "lfw_home" / "lfw_funneled" / person
        home.mkdir(parents=True)
        colour = RNG.integers(60, 200, 3, dtype=np.uint8)
        for number in range(1, count + 1):
            pixels = np.full((250, 250, 3), colour, np.uint8)
            Image.fromarray(pixels).save(home / f"{person}_{number:04d}.jpg")
    return folder / "lfw_home"


def write_orl(folder: Path) -> Path:
    for person in (1, 2, 10):
        home = folder / f"s{person}"
        home.mkdir()
        for number in (1, 2, 10):
            pixels = np.full((6, 4), 10 * person + number, np.uint8)
            Image.fromarray(pixels).save(home / f"{number}.pgm")
    Image.new("RGB", (3, 3)).save(folder / "s10" / "target.jpg")  # real copies have it
    return folder


def write_image_folder(folder: Path) -> Path:
    for label, name in enumerate(("cat", "dog")):
        (folder / name).mkdir()
        for number, image in enumerate(COLOUR[label * 5 : label * 5 + 5]):
            Image.fromarray(image).save(folder / name / f"{number}.png")
    return folder


def write_npz(folder: Path) -> Path:
    path = folder / "mine.npz"
    np.savez(path, x=DIGITS, y=LABELS)
    return path


def write_purchase_npz(folder: Path) -> Path:
    path = folder / "purchase100.npz"
    features = (DIGITS.reshape(6, -1) > 127).astype(np.uint8)
    np.savez(path, features=features, labels=np.eye(4)[LABELS])
    return path


def write_purchase_csv(folder: Path) -> Path:
    path = folder / "purchase.csv"
    features = (DIGITS.reshape(6, -1) > 127).astype(int)
    rows = np.concatenate([LABELS[:, None] + 1, features], axis=1)
    path.write_text("\n".join(",".join(map(str, row)) for row in rows) + "\n")
    return path


@dataclasses.dataclass(frozen=True)
class Case:
    """A file in its true format, what must be read, and which part to damage."""

    reader: str
    write: Callable[[Path], Path]
    inputs: np.ndarray | None  # None: a test of its own says what must be there
    labels: np.ndarray
    damage: str = ""  # the file inside the written folder that is cut


BINARY = (DIGITS.reshape(6, -1) > 127).astype(np.float32)
GREY = DIGITS[..., None] / np.float32(255)
CROPS = COLOUR / np.float32(255)
CASES = {
    "idx": Case("idx", write_idx, GREY, LABELS),
    "idx-gz": Case("idx", lambda p: write_idx(p, "t10k", True), GREY, LABELS),
    "cifar-python": Case("cifar10-python", write_cifar_python, CROPS, TEN),
    "cifar-binary": Case("cifar10-binary", write_cifar_binary, CROPS, TEN),
    "cifar-png": Case(
        "cifar10-png",
        write_cifar_strips,
        np.tile(CROPS, (6, 1, 1, 1)),
        np.tile(TEN, 6),
        "data_batch_3.png",
    ),
    "adult": Case("adult", write_adult, None, np.array([0, 1])),
    "svhn": Case("svhn", write_svhn, CROPS, TEN),
    "lfw": Case(
        "lfw",
        write_lfw,
        None,
        np.repeat([0, 1], [20, 21]),
        "lfw_funneled/Bo_Ek/Bo_Ek_0002.jpg",
    ),
    "orl": Case("orl-faces", write_orl, None, np.repeat([0, 1, 2], 3), "s2/10.pgm"),
    "image-folder": Case(
        "image-folder", write_image_folder, CROPS, np.repeat([0, 1], 5), "dog/3.png"
    ),
    "npz": Case("npz", write_npz, GREY, LABELS),
    "purchase-npz": Case("npz", write_purchase_npz, BINARY, LABELS),
    "purchase-csv": Case("csv", write_purchase_csv, BINARY, LABELS),
}
