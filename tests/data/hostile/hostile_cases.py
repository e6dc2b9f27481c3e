"""Files that lie, byte by byte, and the line that refuses them."""

import io
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest

from gradaudit.data import load_dataset
from gradaudit.errors import InputError

X = np.linspace(0, 1, 12).reshape(6, 2)
Y = np.array([0, 1, 2, 0, 1, 2])
LABELS = bytes([0, 0, 8, 1, 0, 0, 0, 6]) + Y.astype(np.uint8).tobytes()


def refused(path: Path | str) -> str:
    with pytest.raises(InputError) as error:
        load_dataset(str(path))
    assert "\n" not in str(error.value) and len(str(error.value)) < 2000
    return str(error.value)


def idx_pair(folder: Path, images: bytes, labels: bytes = LABELS) -> Path:
    path = folder / "train-images-idx3-ubyte"
    path.write_bytes(images)
    (folder / "train-labels-idx1-ubyte").write_bytes(labels)
    return path


def idx_header(*shape: int, kind: int = 8) -> bytes:
    return bytes([0, 0, kind, len(shape)]) + struct.pack(f">{len(shape)}I", *shape)


def npz(path: Path, **members: bytes) -> Path:
    """An archive of these members, compressed, whatever they hold."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(f"{name}.npy", data)
    return path


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def npy_header(shape: str, descr: str = "'|u1'") -> bytes:
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode()


def csv(folder: Path, data: bytes) -> Path:
    path = folder / "a.csv"
    path.write_bytes(data)
    return path
