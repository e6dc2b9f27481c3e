"""Images: folders of files, ORL and LFW faces, SVHN's .mat files."""

import math
import re
import warnings
from collections.abc import Set
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from gradaudit import files
from gradaudit.data.dataset import Array, Contents, whole_labels
from gradaudit.errors import InputError

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".pgm", ".ppm", ".bmp"})

# By their content; others that Pillow knows would start programs.
_FORMATS = ("JPEG", "PNG", "PPM", "BMP")

# Labeled Faces in the Wild as Wei et al. (2021, section VII) use it: the people with
# at least 20 images (62 of them, 3,023 images), the middle of the face, 32x32.
_LFW_FOLDERS = ("lfw_funneled", "lfw-deepfunneled", "lfw")
_LFW_LEAST = 20
_LFW_BOX = (62, 70, 187, 195)  # left, upper, right, lower of 250x250


def read_image(path: Path, mode: str | None = None) -> Array:
    """Returns one image as bytes, grey (h, w) or colour (h, w, 3)."""
    image = _load(path)
    return np.asarray(image.convert(mode or ("L" if image.mode in "1L" else "RGB")))


def accepts(path: Path) -> bool:
    """Whether this is a folder with a sub-folder of images."""
    return path.is_dir() and any(_files(folder) for folder in _folders(path))


def read(path: Path, suffixes: Set[str] = SUFFIXES) -> Contents:
    """Reads images of one size; the class is the sub-folder, in natural order."""
    classes = [_files(folder, suffixes) for folder in _folders(path)]
    classes = [found for found in classes if found]
    labels = [label for label, found in enumerate(classes) for _ in found]
    images: list[Array] = []
    for file in (file for found in classes for file in found):
        image = read_image(file)
        if not images:
            files.require_room(path, "images", len(labels) * image.nbytes)
        elif image.shape != images[0].shape:
            raise InputError(
                f"{file}: field 'size' is {image.shape}, the images before it are "
                f"{images[0].shape}; make them one size first"
            )
        images.append(image)
    arrays = np.stack(images), np.asarray(labels, np.uint16)
    return Contents({"all": arrays}, len(classes))


def accepts_orl(path: Path) -> bool:
    """Whether this is a folder of the ORL faces: s1/1.pgm to s40/10.pgm."""
    return (path / "s1" / "1.pgm").is_file()


def read_orl(path: Path) -> Contents:
    """Reads the ORL faces: PGM only, because copies of the set hold other images."""
    return read(path, {".pgm"})


def accepts_lfw(path: Path) -> bool:
    """Whether this is an LFW folder, or a scikit-learn cache that holds one."""
    return path.is_dir() and _lfw_folder(path) is not None


def read_lfw(path: Path) -> Contents:
    """Reads the people with at least 20 images, cropped and scaled to 32x32x3."""
    every = [_files(person) for person in _folders(_lfw_folder(path) or path)]
    people = [images for images in every if len(images) >= _LFW_LEAST]
    if not people:
        raise InputError(f"{path}: nobody has {_LFW_LEAST} images; is it complete?")
    faces = [_face(file) for images in people for file in images]
    counts = [len(images) for images in people]
    labels = np.repeat(np.arange(len(people), dtype=np.uint16), counts)
    return Contents({"all": (np.stack(faces), labels)}, len(people))


def _face(path: Path) -> Array:
    image = _load(path).convert("RGB")
    if image.size != (250, 250):
        raise InputError(
            f"{path}: field 'size' is {image.size}, LFW images are 250x250"
        )
    return np.asarray(image.resize((32, 32), Image.Resampling.BILINEAR, box=_LFW_BOX))


def _lfw_folder(path: Path) -> Path | None:
    if path.name in _LFW_FOLDERS and _folders(path):
        return path
    homes = (path, path / "lfw_home")
    found = [h / name for h in homes for name in _LFW_FOLDERS if (h / name).is_dir()]
    return found[0] if found else None


def _load(path: Path) -> Image.Image:
    try:
        with files.opened(path) as file, warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(file, formats=_FORMATS) as image:
                image.load()
                return image
    except InputError:
        raise
    except Exception as error:  # a damaged file can raise anything
        # This error's own text names our file object.
        unknown = isinstance(error, UnidentifiedImageError)
        reason = "it is no JPEG, PNG, PGM or BMP" if unknown else error
        raise InputError(f"{path}: field 'pixels' can't be read ({reason})") from None


def _folders(path: Path) -> list[Path]:
    return sorted((p for p in path.iterdir() if p.is_dir()), key=_natural)


def _files(folder: Path, suffixes: Set[str] = SUFFIXES) -> list[Path]:
    images = (p for p in folder.iterdir() if p.suffix.lower() in suffixes)
    return sorted(images, key=_natural)


def _natural(path: Path) -> list[tuple[int, str]]:
    """Orders s2 before s10."""
    parts = re.split(r"(\d+)", path.name)
    return [(int(part), "") if part.isdigit() else (-1, part) for part in parts]


_CLASSES = 10
_SPLITS = {"train_32x32.mat": "train", "test_32x32.mat": "test"}
_MATRIX_KINDS = frozenset({"double", "single", "uint8", "int32", "int64", "uint16"})


def accepts_svhn(path: Path) -> bool:
    """Whether this is a `.mat` file, or a folder with the two that SVHN has."""
    if path.is_dir():
        return any((path / name).is_file() for name in _SPLITS)
    return path.suffix == ".mat"


def read_svhn(path: Path) -> Contents:
    """Reads `X` (32, 32, 3, n) and `y` (n, 1), where 10 stands for the digit 0."""
    matrices = [path]
    if path.is_dir():
        matrices = [path / name for name in _SPLITS if (path / name).is_file()]
    splits = {_SPLITS.get(file.name, "all"): _read_svhn(file) for file in matrices}
    return Contents(splits, _CLASSES)


def _read_svhn(path: Path) -> tuple[Array, Array]:
    pixels, labels = _matrices(path)
    if pixels.ndim != 4 or pixels.shape[2] != 3 or not pixels.size > 0:
        raise InputError(
            f"{path}: field 'X' is {pixels.dtype} {pixels.shape}, expected uint8 "
            "(32, 32, 3, n)"
        )
    whole = labels.dtype.kind in "iu" or (
        labels.dtype.kind == "f" and bool(np.all(labels % 1 == 0))
    )
    labels = labels.astype(np.int64) if whole else labels  # MATLAB's are often double
    labels = whole_labels(path, "y", labels, pixels.shape[3], 1, _CLASSES)
    images = np.ascontiguousarray(pixels.transpose(3, 0, 1, 2))
    return images, (labels % _CLASSES).astype(np.uint8)


def _matrices(path: Path) -> tuple[Array, Array]:
    """Returns `X` and `y`, after a look at what the file says they are."""
    from scipy.io import loadmat, whosmat

    try:
        with files.opened(path) as file:
            kinds = {name: (shape, kind) for name, shape, kind in whosmat(file)}
            size = sum(math.prod(kinds[name][0]) for name in ("X", "y"))
            files.require_room(path, "X", size)
            if kinds["X"][1] != "uint8" or kinds["y"][1] not in _MATRIX_KINDS:
                raise InputError(
                    f"{path}: field 'X' is {kinds['X'][1]} and 'y' {kinds['y'][1]}, "
                    "expected uint8 and numbers"
                )
            file.seek(0)
            found = loadmat(file, variable_names=["X", "y"])
            return found["X"], found["y"].reshape(-1)
    except InputError:
        raise
    except KeyError as error:
        raise InputError(f"{path}: field {error} is missing") from None
    except Exception as error:  # a damaged file can raise anything
        raise InputError(f"{path}: field 'matrices' can't be read ({error})") from None
