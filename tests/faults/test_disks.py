"""Disks that are full or closed: said in words, and afterwards the same result."""

import contextlib
import os
import resource
import shutil
import subprocess

import pytest

from tests.faults.commands import (
    SMALL,
    document,
    essence,
    finished,
    locked,
    ran,
    started,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]  # a busy machine


def tiny_files():
    """No file may grow beyond 6 kB, as on a disk that gets full."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000))


@pytest.mark.parametrize("name", SMALL)
def test_a_full_disk_ends_in_words_and_leaves_the_old_result(name, tmp_path):
    code, said = ran(SMALL[name], tmp_path / "out")
    assert code == 0, said
    before = essence(tmp_path / "out")
    code, said = ran(SMALL[name], tmp_path / "out", preexec_fn=tiny_files)
    assert code == 2, said
    assert "can't be written: File too large" in " ".join(said.split())
    assert essence(tmp_path / "out") == before
    code, said = ran(SMALL[name], tmp_path / "new", preexec_fn=tiny_files)
    assert code == 2 and "can't be written" in said, said
    assert not document(tmp_path / "new").exists()
    code, said = ran(SMALL[name], tmp_path / "new")  # there is room again
    assert code == 0, said
    assert essence(tmp_path / "new") == before


@contextlib.contextmanager
def small_disk(folder, size=1 << 20):
    """A real disk of so many bytes; skips where none may be mounted."""
    folder.mkdir()
    if os.geteuid() or shutil.which("mount") is None:
        pytest.skip("only root may mount a small disk")
    words = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no small disk can be mounted here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def fill(disk):
    """Writes until nothing more can be written."""
    with (disk / "others.bin").open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 9, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(size))


@pytest.mark.parametrize("name", SMALL)
def test_a_disk_that_fills_while_it_works_loses_nothing(name, tmp_path):
    """Another program takes the last byte when the work has begun."""
    code, said = ran(SMALL[name], tmp_path / "undisturbed")
    assert code == 0, said
    with small_disk(tmp_path / "disk") as disk:
        out = disk / "out"
        process = started(SMALL[name], out)
        locked(process, out)
        fill(disk)
        code, said = finished(process)
        assert code == 2, said
        assert "No space left on device" in " ".join(said.split()), said
        assert not document(out).exists()
        code, said = ran(SMALL[name], out)  # now it is full from the beginning
        assert code == 2 and "No space left on device" in " ".join(said.split()), said
        (disk / "others.bin").unlink()
        code, said = ran(SMALL[name], out)
        assert code == 0, said
        assert essence(out) == essence(tmp_path / "undisturbed")


# Whoever may do everything may write everywhere: that right is put down first.
NO_OVERRIDE = ("setpriv", "--bounding-set=-dac_override,-dac_read_search")


@pytest.mark.parametrize("name", SMALL)
def test_a_read_only_folder_is_said_before_the_work_and_stays(name, tmp_path):
    before = NO_OVERRIDE if os.geteuid() == 0 else ()
    if before and shutil.which(before[0]) is None:
        pytest.skip("nothing here puts the rights of root down")
    closed = tmp_path / "closed"
    closed.mkdir()
    (closed / "mine.txt").write_text("the user's own")
    closed.chmod(0o555)
    for folder in (closed, closed / "new" / "folder"):
        code, said = ran(SMALL[name], folder, before=before)
        assert code == 2, said
        assert "can't be written" in said and "Permission denied" in said
    assert [path.name for path in closed.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize("name", SMALL)
def test_a_home_and_a_cache_that_cannot_be_written_stop_nothing(name, tmp_path):
    nowhere = dict.fromkeys(
        ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "MPLCONFIGDIR"), "/dev/null"
    )
    data = os.environ.get("GRADAUDIT_DATA")
    kept = {"GRADAUDIT_DATA": data} if data else {}
    code, said = ran(SMALL[name], tmp_path, nowhere | kept)
    assert code == 0, said
