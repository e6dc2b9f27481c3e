"""Fetching and storing: verified, atomic, once, and never a changed byte."""

import dataclasses
import io
import os
import shutil
import stat
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

from gradaudit import files
from gradaudit.data import fetch as fetching
from gradaudit.data import store
from gradaudit.data.catalogue import stored
from gradaudit.data.dataset import Contents, Dataset, array_digest
from gradaudit.data.fetch import SOURCES, Source, fetch, fetch_from, problem
from gradaudit.errors import InputError

DIGITS = np.random.default_rng(0).integers(0, 256, (6, 5, 4), dtype=np.uint8)
LABELS = np.array([3, 0, 2, 2, 1, 0], np.uint8)
CONTENTS = Contents({"all": (DIGITS, LABELS)}, 4)


@dataclasses.dataclass(frozen=True)
class CopyClient:
    """Stands for a registry: hands out a zip file and counts how often."""

    archive: Path
    log: Path
    label: str = "copied package tiny"

    def download(self, folder: Path) -> None:
        if not self.archive.exists():
            raise InputError("copy is not on this machine: install it")
        with self.log.open("a") as log:
            log.write("x")
        shutil.copy(self.archive, folder)

    def unpack(self, package: Path, folder: Path) -> None:
        with zipfile.ZipFile(package) as archive:
            archive.extractall(folder)


def make_archive(path: Path, labels: np.ndarray = LABELS) -> str:
    buffer = io.BytesIO()
    np.savez(buffer, x=DIGITS, y=labels)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(zipfile.ZipInfo("inner/tiny.npz"), buffer.getvalue())
    return files.digest(path)


@pytest.fixture
def tiny(tmp_path, monkeypatch) -> Source:
    monkeypatch.setenv("GRADAUDIT_DATA", str(tmp_path / "data"))
    source = Source(
        client=CopyClient(tmp_path / "tiny.zip", tmp_path / "log"),
        sha256=make_archive(tmp_path / "tiny.zip"),
        megabytes=1,
        inside="inner/tiny.npz",
        standard_files="tiny.npz",
        classes=4,
        licence="none",
        arrays={n: array_digest(a) for n, a in store.named_arrays(CONTENTS).items()},
    )
    monkeypatch.setitem(SOURCES, "tiny", source)
    return source


def _load(name: str, split: str) -> Dataset:
    return stored(name, split).dataset(name, split, "none")


def downloads(source: Source) -> int:
    log = source.client.log
    return len(log.read_text()) if log.exists() else 0


def leftovers() -> list[Path]:
    return [path for path in store.data_folder().glob(".*") if path.exists()]


def test_a_set_is_fetched_once_and_then_works_offline(tiny):
    steps = []
    assert fetch("tiny", steps.append)
    assert len(steps) >= 3
    tiny.client.archive.unlink()
    assert not fetch("tiny")
    assert downloads(tiny) == 1
    dataset = _load("tiny", "all")
    assert np.array_equal(dataset.inputs[..., 0], DIGITS / np.float32(255))
    assert np.array_equal(dataset.labels, LABELS)
    assert problem("tiny") is None
    assert not leftovers()


def test_a_set_without_an_official_split_is_cut(tiny):
    fetch("tiny")
    assert len(_load("tiny", "train")) == 6
    with pytest.raises(InputError, match="empty"):
        _load("tiny", "test")  # no class has five examples


@pytest.mark.filterwarnings("ignore")  # of numpy, about some of the headers
@pytest.mark.parametrize("array", ["all-inputs", "all-labels"])
def test_no_flipped_byte_reaches_a_dataset(tiny, array):
    """Every byte of the file: refused by name, or (blanks of the header) harmless."""
    fetch("tiny")
    path = store.data_folder() / "tiny" / f"{array}.npy"
    intact = path.read_bytes()
    body = len(intact) - dict(zip(tiny.arrays, (120, 6), strict=True))[array]
    refused = []
    for where in range(len(intact)):
        data = bytearray(intact)
        data[where] ^= 0x10
        path.write_bytes(data)
        try:
            loaded = _load("tiny", "all")
        except InputError as error:
            assert f"{array}.npy" in str(error) and "data fetch tiny" in str(error)
            refused.append(where)
        else:
            assert np.array_equal(loaded.inputs[..., 0], DIGITS / np.float32(255))
            assert np.array_equal(loaded.labels, LABELS)
    assert set(refused) >= set(range(body, len(intact)))


def test_fetch_repairs_what_has_changed(tiny):
    fetch("tiny")
    path = store.data_folder() / "tiny" / "all-inputs.npy"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert "all-inputs.npy" in problem("tiny")
    assert fetch("tiny")
    assert problem("tiny") is None


def test_a_cut_or_missing_array_is_named(tiny):
    fetch("tiny")
    path = store.data_folder() / "tiny" / "all-labels.npy"
    path.write_bytes(path.read_bytes()[:-2])
    assert "all-labels.npy" in problem("tiny")
    path.unlink()
    assert "all-labels.npy" in problem("tiny")


def test_what_is_not_stored_says_how_to_get_it(tiny):
    with pytest.raises(InputError, match="gradaudit data fetch tiny"):
        _load("tiny", "all")
    with pytest.raises(InputError, match="did you mean 'tiny'"):
        fetch("tinny")


def test_another_package_is_refused(tiny):
    make_archive(tiny.client.archive, LABELS[::-1].copy())
    with pytest.raises(InputError, match="SHA-256.*nothing was stored"):
        fetch("tiny")
    assert not store.is_stored("tiny")
    assert not leftovers()


def test_other_arrays_are_refused(tiny, monkeypatch):
    wrong = {**tiny.arrays, "all-labels": "0" * 64}
    monkeypatch.setitem(SOURCES, "tiny", dataclasses.replace(tiny, arrays=wrong))
    with pytest.raises(InputError, match="'all-labels' has SHA-256.*nothing was"):
        fetch("tiny")
    assert not store.is_stored("tiny")


def test_a_missing_client_says_which_files_would_do(tiny):
    tiny.client.archive.unlink()
    with pytest.raises(InputError, match=r"install it.*tiny\.npz.*--from FOLDER"):
        fetch("tiny")


def test_files_that_are_here_already_will_do(tiny, tmp_path):
    np.savez(tmp_path / "mine.npz", x=DIGITS, y=LABELS)
    fetch_from("tiny", tmp_path / "mine.npz")
    assert problem("tiny") is None
    assert downloads(tiny) == 0
    np.savez(tmp_path / "mine.npz", x=DIGITS, y=LABELS[::-1])
    with pytest.raises(InputError, match="not the files of this set"):
        fetch_from("tiny", tmp_path / "mine.npz")


def test_an_interrupted_fetch_resumes_after_the_download(tiny, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(CopyClient, "unpack", interrupt)
        with pytest.raises(KeyboardInterrupt):
            fetch("tiny")
    assert not store.is_stored("tiny")
    assert fetch("tiny")
    assert downloads(tiny) == 1
    assert not leftovers()


def test_a_half_written_set_is_never_seen(tiny, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", interrupt)
        with pytest.raises(KeyboardInterrupt):
            fetch("tiny")
    assert not store.is_stored("tiny")
    assert fetch("tiny")


def test_old_working_folders_are_swept_and_new_ones_kept(tiny):
    folder = store.data_folder()
    for name in (".tiny-old", ".tiny-new"):
        (folder / name).mkdir(parents=True)
    os.utime(folder / ".tiny-old", (0, 0))
    fetch("tiny")
    assert leftovers() == [folder / ".tiny-new"]


def test_the_digest_sees_values_shape_and_type():
    array = np.arange(12, dtype=np.uint8)
    others = [array[::-1], array.reshape(3, 4), array.view(np.int8), array[:-1]]
    digests = {array_digest(other) for other in [array, *others]}
    assert len(digests) == 5
    assert array_digest(array.reshape(3, 4).T) == array_digest(
        np.ascontiguousarray(array.reshape(3, 4).T)
    )


# The clients themselves, with programs of the same name that only write down
# how they were called.


@pytest.fixture
def programs(tmp_path, monkeypatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}/usr/bin{os.pathsep}/bin")
    return folder


def make_program(folder: Path, name: str, script: str) -> Path:
    path = folder / name
    path.write_text(f'#!/bin/sh\necho "$@" >> {folder}/calls\n{script}\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return folder / "calls"


def test_npm_packs_and_never_installs(programs, tmp_path):
    calls = make_program(programs, "npm", "touch a-1.0.tgz")
    work = tmp_path / "work"
    work.mkdir()
    fetching.Npm("a", "1.0").download(work)
    words = calls.read_text().split()
    assert words[:2] == ["pack", "a@1.0"]
    assert "--ignore-scripts" in words
    assert "install" not in words
    assert [path.name for path in work.iterdir()] == ["a-1.0.tgz"]


def test_npm_archives_can_not_write_outside_their_folder(tmp_path):
    package = tmp_path / "evil.tgz"
    with tarfile.open(package, "w:gz") as archive:
        archive.addfile(tarfile.TarInfo("../escaped"), io.BytesIO())
    (tmp_path / "work").mkdir()
    with pytest.raises(tarfile.TarError):
        fetching.Npm("evil", "1").unpack(package, tmp_path / "work")
    assert not (tmp_path / "escaped").exists()


@pytest.mark.parametrize("root", [True, False])
def test_apt_renews_its_list_as_root_and_otherwise_says_so(
    root, programs, tmp_path, monkeypatch
):
    script = (
        f'case "$@" in *update*) touch {programs}/new;; '
        f"*) test -e {programs}/new && touch a.deb && exit 0; "
        "echo 'E: Unable to locate package a' >&2; exit 100;; esac"
    )
    calls = make_program(programs, "apt-get", script)
    monkeypatch.setattr(os, "geteuid", lambda: 0 if root else 1000)
    work = tmp_path / "work"
    work.mkdir()
    if root:
        fetching.Apt("a").download(work)
        assert (work / "a.deb").exists()
    else:
        with pytest.raises(InputError, match="Unable to locate.*sudo apt-get update"):
            fetching.Apt("a").download(work)
    assert "install" not in calls.read_text()


def test_pip_is_this_pythons_own_and_takes_no_dependencies(tmp_path, monkeypatch):
    commands = []
    monkeypatch.setattr(fetching, "run", lambda command, _: commands.append(command))
    fetching.Pip("a", "1.0").download(tmp_path)
    assert commands[0][:3] == [sys.executable, "-m", "pip"]
    assert "--no-deps" in commands[0]
    assert "a==1.0" in commands[0]


@pytest.mark.parametrize(
    ("client", "says"),
    [
        (fetching.Npm("a", "1"), "npm is not on this machine: install Node.js"),
        (fetching.Apt("a"), "apt-get is not on this machine"),
    ],
)
def test_a_program_that_is_not_here_is_named(client, says, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match=says):
        client.download(tmp_path)


def test_a_failing_client_is_quoted(programs, tmp_path):
    make_program(programs, "npm", "echo hint; echo 'npm error code E404' >&2; exit 1")
    with pytest.raises(InputError, match="exit code 1: npm error code E404"):
        fetching.Npm("a", "1").download(tmp_path)
