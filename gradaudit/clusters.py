"""Clusters that are there already, Dask's and Ray's, and where a run is asked to be.

Both queue tasks, count CPUs and GPUs, and run again what a killed worker had: nothing
of that is written here. `placed` reads what `--on` says.
"""

import collections
import contextlib
import dataclasses
import functools
import importlib
import importlib.metadata
import os
import pathlib
import platform
import re
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent import futures
from typing import Any, Self

from gradaudit import files
from gradaudit.errors import InputError, unknown_name
from gradaudit.executors import (
    PAUSE,
    Answer,
    Engine,
    Executor,
    Hear,
    Line,
    Processes,
    Task,
    Words,
    answered,
    core_count,
    in_this_process,
    on_engine,
    set_devices,
)

_SECONDS = 60  # until a cluster must have answered
_DECIDING = ("gradaudit", "jax", "jaxlib")  # that decide numbers: the same everywhere
_MOST = 4096  # processes, CPUs or GPUs
_USUAL = 8  # processes that nobody has asked for by number
# Where there is a GPU or a TPU: processes would fight for its memory.
_ACCELERATORS = ("nvidia0", "kfd", "accel0", "vfio/0")


@dataclasses.dataclass(frozen=True)
class Share:
    """What one task gets: CPUs (devices of jax where there is no GPU) and GPUs."""

    cpus: int | None = None
    gpus: int = 0


def placed(text: str) -> Executor:
    """Reads where tasks run: `auto`, `local[:N]`, `dask[:ADDRESS]`, `ray[:ADDRESS]`.

    `auto` is `local`, or this process where there is an accelerator or a single task.
    `local:1` is this process, `local` a process per core (8 at most: each compiles and
    keeps programs of its own). `,cpus=N,gpus=N` says what one task gets. Raises in
    words for anything else.
    """
    head, *options = text.split(",")
    name, _, where = head.partition(":")
    if name not in _PLACES:
        raise unknown_name("place to run", name, _PLACES)
    given: dict[str, int] = {}
    for option in options:
        key, _, value = option.partition("=")
        if key not in ("cpus", "gpus") or key in given:
            raise InputError(f"a place to run takes cpus=N and gpus=N, got {option!r}")
        given[key] = _count(key, value, least=1)
    return _PLACES[name](where, Share(**given))


def _count(what: str, text: str, least: int) -> int:
    digits = re.fullmatch("[0-9]{1,5}", text) is not None
    if not (digits and least <= int(text) <= _MOST):
        raise InputError(f"{what} must lie in {least}..{_MOST}, got {text!r}")
    return int(text)


def _local(where: str, share: Share) -> Executor:
    cores = core_count()
    usual = min(cores, _USUAL)
    count = _count("local processes", where, 1) if where else usual
    if count == 1 and share == Share():
        return in_this_process
    said = "JAX_NUM_CPU_DEVICES" in os.environ  # whoever says so knows why
    cpus = share.cpus or (None if said else max(1, cores // count))
    return _on(Processes, count, cpus, share.gpus)


def _on(engine: Callable[..., Engine], *arguments: Any) -> Executor:
    return functools.partial(on_engine, functools.partial(engine, *arguments))


def _auto(where: str, share: Share) -> Executor:
    if where:
        raise InputError(f"auto takes no number or address, got {where!r}")
    several = _local("", share)

    def run(tasks: Sequence[Task], hear: Hear) -> Iterator[tuple[int, Any]]:
        alone = share == Share() and (len(tasks) < 2 or _has_device())
        return in_this_process(tasks, hear) if alone else several(tasks, hear)

    return run


def _has_device() -> bool:
    """Returns whether jax has an accelerator, or devices that somebody chose."""
    flags = os.environ.get("XLA_FLAGS", "")
    if "JAX_NUM_CPU_DEVICES" in os.environ or "device_count" in flags:
        return True
    if platforms := os.environ.get("JAX_PLATFORMS"):
        return platforms != "cpu"
    return any(os.path.exists(f"/dev/{name}") for name in _ACCELERATORS)


def _needed(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise InputError(
            f"--on {extra} needs {module}: pip install 'gradaudit[{extra}]'"
        ) from None


def _versions() -> dict[str, str]:
    return {name: importlib.metadata.version(name) for name in _DECIDING}


_alone = threading.Lock()  # one task at a time in a worker that has several threads


@dataclasses.dataclass(frozen=True)
class Parcel:
    """A task as it travels to a worker that may have another disk."""

    index: int
    task: Task
    folder: bytes
    cpus: int | None
    versions: dict[str, str]

    @classmethod
    def of(cls, index: int, task: Task, cpus: int | None) -> Self:
        """Packs a task, and what it has done already."""
        return cls(index, task, files.pack_folder(task.folder), cpus, _versions())

    def open(self, line: Line) -> Answer:
        """Runs the task, here; its folder comes back with the answer."""
        here = _versions()
        if here != self.versions:
            words = (
                f"the worker on {platform.node()} has {here}, and whoever asked has "
                f"{self.versions}: install the same"
            )
            return Answer(error=InputError(words))
        with _alone, tempfile.TemporaryDirectory(prefix="gradaudit-task-") as room:
            folder = pathlib.Path(room) / "task"
            files.unpack_folder(self.folder, folder)
            set_devices(self.cpus)
            answer = answered(self.index, self.task, folder, line)
            return dataclasses.replace(answer, folder=files.pack_folder(folder))


def _run(parcel: Parcel, line: Line) -> Answer:
    """What a worker is asked to do."""
    return parcel.open(line)


# --- Dask

_stopped: set[str] = set()  # in a worker: the runs that were interrupted


def _stop(run: str) -> None:
    _stopped.add(run)


@dataclasses.dataclass(frozen=True)
class _Topic:
    """Events of Dask go to whoever asked; every worker is told when to stop."""

    name: str

    def say(self, index: int, done: int, total: int, text: str) -> None:
        from distributed import get_worker

        get_worker().log_event(self.name, [index, done, total, text])

    def stopped(self) -> bool:
        return self.name in _stopped


class _Dask:
    """A Dask cluster; without an address, one on this machine while it lasts."""

    def __init__(self, address: str, share: Share) -> None:
        self._distributed = _needed("distributed", "dask")
        self.lost: tuple[type[Exception], ...] = (self._distributed.KilledWorker,)
        self._address, self._share = address, share
        self._line = _Topic(f"gradaudit-{uuid.uuid4().hex}")
        self._said: collections.deque[Words] = collections.deque()
        self._held = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with self._held as held:
            cluster = self._address or held.enter_context(self._own())
            try:
                self._client = held.enter_context(
                    self._distributed.Client(
                        cluster, timeout=_SECONDS, set_as_default=False
                    )
                )
            except (OSError, ValueError, TypeError) as error:
                raise InputError(
                    f"no Dask scheduler answers at {self._address!r}: {error}"
                ) from None
            self._client.subscribe_topic(self._line.name, self._hear)
            resources = {"GPU": self._share.gpus} if self._share.gpus else None
            self._executor = held.enter_context(
                self._client.get_executor(pure=False, resources=resources)
            )
            self._held = held.pop_all()
        return self

    def _own(self) -> Any:
        return self._distributed.LocalCluster(
            n_workers=max(1, core_count() // (self._share.cpus or 1)),
            threads_per_worker=1,
            dashboard_address=None,
            silence_logs="CRITICAL",
        )

    def __exit__(self, *exc: Any) -> None:
        self._held.close()

    def _hear(self, event: tuple[float, Any]) -> None:
        self._said.append(tuple(event[1]))

    def submit(self, index: int, task: Task) -> "futures.Future[Answer]":
        parcel = Parcel.of(index, task, self._share.cpus)
        future: futures.Future[Answer] = self._executor.submit(_run, parcel, self._line)
        return future

    def heard(self) -> Iterable[Words]:
        while self._said:
            yield self._said.popleft()

    def stop(self) -> None:
        self._client.run(_stop, self._line.name, on_error="ignore")


# --- Ray


class _Board:
    """An actor of Ray: tasks write how far they are, and read whether to stop."""

    def __init__(self) -> None:
        self._words: dict[int, Words] = {}
        self._stopped = False

    def said(self, *words: Any) -> None:
        self._words[words[0]] = words

    def read(self) -> list[Words]:
        words, self._words = list(self._words.values()), {}
        return words

    def stop(self) -> None:
        self._stopped = True

    def stopped(self) -> bool:
        return self._stopped


@dataclasses.dataclass(frozen=True)
class _OnBoard:
    """The line of a task of Ray; no task ends because its board is gone."""

    board: Any

    def say(self, index: int, done: int, total: int, text: str) -> None:
        self.board.said.remote(index, done, total, text)

    def stopped(self) -> bool:
        import ray

        try:
            return bool(ray.get(self.board.stopped.remote(), timeout=_SECONDS))
        except ray.exceptions.RayError:
            return False


class _Ray:
    """A Ray cluster; without an address, the one that there is, or one of its own."""

    def __init__(self, address: str, share: Share) -> None:
        self._ray = _needed("ray", "ray")
        errors = self._ray.exceptions
        self.lost: tuple[type[Exception], ...] = (
            errors.WorkerCrashedError,
            errors.NodeDiedError,
            errors.OutOfMemoryError,
            errors.ObjectLostError,
        )
        self._address, self._share = address, share
        self._began = False

    def __enter__(self) -> Self:
        if not self._ray.is_initialized():
            try:
                self._ray.init(
                    self._address or None,
                    log_to_driver=False,
                    logging_level="ERROR",
                    **({} if self._address else {"include_dashboard": False}),
                )
            except (ConnectionError, ValueError, RuntimeError) as error:
                raise InputError(
                    f"no Ray cluster answers at {self._address!r}: {error}"
                ) from None
            self._began = True
        self._board = self._ray.remote(num_cpus=0, max_restarts=-1)(_Board).remote()
        self._remote = self._ray.remote(
            num_cpus=self._share.cpus or 1, num_gpus=self._share.gpus
        )(_run)
        return self

    def __exit__(self, *exc: Any) -> None:
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._ray.kill(self._board)
        if self._began:
            self._ray.shutdown()

    def submit(self, index: int, task: Task) -> "futures.Future[Answer]":
        parcel = Parcel.of(index, task, self._share.cpus)
        future: futures.Future[Answer] = self._remote.remote(
            parcel, _OnBoard(self._board)
        ).future()
        return future

    def heard(self) -> Iterable[Words]:
        try:
            words: list[Words] = self._ray.get(self._board.read.remote(), timeout=PAUSE)
        except self._ray.exceptions.RayError:
            return []
        return words

    def stop(self) -> None:
        self._board.stop.remote()


_PLACES: dict[str, Callable[[str, Share], Executor]] = {
    "auto": _auto,
    "local": _local,
    "dask": functools.partial(_on, _Dask),
    "ray": functools.partial(_on, _Ray),
}
