"""A room for peers: an environment of their own, made when it is first needed."""

import pathlib
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable

from gradaudit import machine
from gradaudit.benchmarks.suite import Missing

PACKAGES = ("torch==2.13.0", "breaching==0.1.2")
_READY = "ready.txt"


def room() -> pathlib.Path:
    """Returns where the environment is, or will be."""
    cache = machine.cache_folder()
    if cache is None:
        raise Missing("peers need a cache folder: unset GRADAUDIT_CACHE=off")
    return cache.parent / "peers"


def peer_python(tell: Callable[[str], None]) -> pathlib.Path:
    """Returns the interpreter of the peers' environment; makes it if there is none.

    Raises `Missing` in words if the packages can't be had.
    """
    folder = room()
    python = folder / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    ready = folder / _READY
    if ready.exists() and ready.read_text().split() == list(PACKAGES):
        return python
    tell(f"installing {' and '.join(PACKAGES)} into {folder}")
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=True)
    done = subprocess.run(
        [str(python), "-m", "pip", "install", "--quiet", *PACKAGES],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["pip failed"]
        raise Missing(f"{' and '.join(PACKAGES)} can't be installed: {lines[-1]}")
    ready.write_text(" ".join(PACKAGES))
    return python
