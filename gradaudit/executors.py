"""Where cells run: in this process, in several, or on an engine that is there.

A task is plain data: a function by its name, what it is given, and a folder in which it
keeps its work. Dask and Ray queue tasks, count CPUs and GPUs and run those again whose
worker was killed; threads that wait for one process each do the same on this machine.
Workers need gradaudit and the data sets, and no disk of ours: a folder travels with its
task, and comes back to whoever asked. Nothing here imports jax.
"""

import collections
import contextlib
import dataclasses
import functools
import itertools
import multiprocessing
import os
import pathlib
import pkgutil
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent import futures
from typing import Any, Protocol, Self

from gradaudit import files
from gradaudit.errors import LostProcess

PAUSE = 0.2  # seconds between two looks at what is done, and two words of a task
_FAREWELL = 20.0  # seconds that running tasks have to hand in their part on Ctrl-C
_TRIES = 4  # of a task whose workers are killed; Dask and Ray have the same limit


class Interrupted(KeyboardInterrupt):
    """Ctrl-C inside a task; `part` is what there is of its answer."""

    def __init__(self, part: Any = None) -> None:
        super().__init__("interrupted")
        self.part = part


class Tell(Protocol):
    """Is told how much of a task is done; raises `KeyboardInterrupt` to end it."""

    def __call__(self, done: int, total: int, text: str = "") -> None:
        """Takes how much is done, of what, and what runs."""


@dataclasses.dataclass(frozen=True)
class Task:
    """A call `function(argument, folder, tell)`, as plain data."""

    name: str
    function: str  # module:name, imported where it runs
    argument: dict[str, Any]
    folder: pathlib.Path

    def run(self, folder: pathlib.Path, tell: Tell) -> Any:
        """Returns what the function does; it may raise `Interrupted`."""
        return pkgutil.resolve_name(self.function)(self.argument, folder, tell)


# Which task, how much of it is done, of what, and what runs.
Words = tuple[int, int, int, str]
Hear = Callable[[int, int, int, str], None]


# Runs tasks in any order; yields (which, answer) as they come. The answer is
# `LostProcess` where workers died again and again. What a task raises is raised. On
# Ctrl-C running tasks hand in what they have, and `KeyboardInterrupt` follows.
# Guarantee: a task's folder is as it left it when its answer is yielded.
Executor = Callable[[Sequence[Task], Hear], Iterator[tuple[int, Any]]]


def in_this_process(tasks: Sequence[Task], hear: Hear) -> Iterator[tuple[int, Any]]:
    """Runs one task after the other, here."""
    for index, task in enumerate(tasks):
        hear(index, 0, 1, "")
        tell = functools.partial(_hear_in_order, hear, index)
        try:
            answer = task.run(task.folder, tell)
        except Interrupted as stop:
            yield index, stop.part
            raise KeyboardInterrupt(str(stop)) from None
        yield index, answer


def _hear_in_order(
    hear: Hear, index: int, done: int, total: int, text: str = ""
) -> None:
    hear(index, done, total, text)


# --- what engines have in common


@dataclasses.dataclass(frozen=True)
class Answer:
    """What comes back of a task: a value, a part of it, or an error; and its folder."""

    value: Any = None
    interrupted: bool = False
    error: Exception | None = None
    folder: bytes | None = None  # None: it is where it was


class Line(Protocol):
    """What a running task and whoever asked for it tell each other."""

    def say(self, index: int, done: int, total: int, text: str) -> None:
        """Tells how far task `index` is."""

    def stopped(self) -> bool:
        """Returns whether Ctrl-C came."""


class Engine(Protocol):
    """Queues tasks and runs them elsewhere."""

    lost: tuple[type[Exception], ...]  # raised where a task's workers died

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: Any) -> None: ...

    def submit(self, index: int, task: Task) -> "futures.Future[Answer]":
        """Queues a task."""

    def heard(self) -> Iterable[Words]:
        """Returns what tasks have said since it was last called."""

    def stop(self) -> None:
        """Tells running tasks to hand in what they have."""


def on_engine(
    engine: Callable[[], Engine], tasks: Sequence[Task], hear: Hear
) -> Iterator[tuple[int, Any]]:
    """Is an `Executor`, with the first argument given."""
    if not tasks:
        return
    with engine() as begun:
        waiting = {begun.submit(i, task): i for i, task in enumerate(tasks)}
        try:
            while waiting:
                yield from _taken(begun, waiting, tasks, hear)
        except KeyboardInterrupt:
            begun.stop()
            until = time.monotonic() + _FAREWELL
            while waiting and time.monotonic() < until:
                yield from _taken(begun, waiting, tasks, hear)
            raise


def _taken(
    engine: Engine,
    waiting: "dict[futures.Future[Answer], int]",
    tasks: Sequence[Task],
    hear: Hear,
) -> Iterator[tuple[int, Any]]:
    done, _ = futures.wait(waiting, PAUSE, futures.FIRST_COMPLETED)
    for words in engine.heard():
        hear(*words)
    for future in sorted(done, key=waiting.__getitem__):
        index = waiting.pop(future)
        try:
            answer = future.result()
        except engine.lost as problem:
            said = str(problem).strip() or type(problem).__name__
            yield index, LostProcess(_LOST.format(words=said.splitlines()[0]))
            continue
        if answer.folder is not None:
            files.unpack_folder(answer.folder, tasks[index].folder)
        if answer.error is not None:
            raise answer.error
        if not answer.interrupted or answer.value is not None:
            yield index, answer.value


_LOST = (
    "its worker was lost again and again ({words}): it was killed, perhaps because "
    "there was not enough memory"
)


def answered(index: int, task: Task, folder: pathlib.Path, line: Line) -> Answer:
    """Runs a task where it was sent to; never raises."""
    said = 0.0

    def tell(done: int, total: int, text: str = "") -> None:
        nonlocal said
        if time.monotonic() - said < PAUSE:
            return
        said = time.monotonic()
        if line.stopped():
            raise KeyboardInterrupt
        line.say(index, done, total, text)

    try:
        if line.stopped():
            return Answer(interrupted=True)
        line.say(index, 0, 1, "")
        return Answer(task.run(folder, tell))
    except KeyboardInterrupt as stop:
        return Answer(getattr(stop, "part", None), interrupted=True)
    except Exception as problem:
        return Answer(error=problem)


def core_count() -> int:
    """Returns how many cores this process may use; not every system tells."""
    allowed = getattr(os, "sched_getaffinity", None)
    return len(allowed(0)) if allowed is not None else os.cpu_count() or 1


def set_devices(cpus: int | None) -> None:
    """Says how many of the cores are devices; before jax is imported."""
    if cpus is not None:
        os.environ["JAX_NUM_CPU_DEVICES"] = str(cpus)


# --- processes of this machine

_GPUS = "CUDA_VISIBLE_DEVICES"
_pipe: Any = None  # of a process that runs tasks, to whoever started it


def _begin(pipe: Any, cpus: int | None, gpus: Sequence[str]) -> None:
    """Makes a process ready: Ctrl-C is said through the pipe, and none is left over."""
    global _pipe
    _pipe = pipe
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    set_devices(cpus)
    if gpus:
        os.environ[_GPUS] = ",".join(gpus)

    def follow() -> None:
        parent = multiprocessing.parent_process()
        assert parent is not None
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


@dataclasses.dataclass(frozen=True)
class _Pipe:
    """The line of a task that runs in a process of this machine."""

    def say(self, index: int, done: int, total: int, text: str) -> None:
        """Tells how far it is; whoever asked may be gone."""
        with contextlib.suppress(OSError):
            _pipe.send((index, done, total, text))

    def stopped(self) -> bool:
        """Returns whether anything was said: there is only one word."""
        return bool(_pipe.poll())


def _in_child(index: int, task: Task) -> Answer:
    return answered(index, task, task.folder, _Pipe())


class Processes:
    """Threads that wait for one process each: one that is killed costs one task."""

    lost: tuple[type[Exception], ...] = (futures.BrokenExecutor,)

    def __init__(self, count: int, cpus: int | None = None, gpus: int = 0) -> None:
        self._threads = futures.ThreadPoolExecutor(count)
        self._cpus, self._gpus = cpus, gpus
        self._numbers, self._own = itertools.count(), threading.local()
        self._begun: dict[int, _Begun] = {}
        self._stopped = threading.Event()
        self._said: collections.deque[Words] = collections.deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        """Ends the processes; whoever hears Ctrl-C too late is not waited for."""
        self._stopped.set()
        for process in list(self._begun.values()):
            process.end()
        self._threads.shutdown(cancel_futures=True)
        for process in self._begun.values():
            process.pool.shutdown()
            process.pipe.close()

    def submit(self, index: int, task: Task) -> "futures.Future[Answer]":
        """Queues a task."""
        return self._threads.submit(self._run, index, task)

    def heard(self) -> Iterator[Words]:
        """Yields what tasks have said since it was last called."""
        while self._said:
            yield self._said.popleft()

    def stop(self) -> None:
        """Tells running tasks to hand in what they have."""
        self._stopped.set()
        for process in list(self._begun.values()):
            with contextlib.suppress(OSError):
                process.pipe.send("stop")

    def _run(self, index: int, task: Task) -> Answer:
        for attempt in range(1, _TRIES + 1):
            if self._stopped.is_set():
                break
            try:
                process = self._process(anew=attempt > 1)
                future = process.pool.submit(_in_child, index, task)
                while not future.done():
                    futures.wait([future], PAUSE)
                    self._listen(process.pipe)
                return future.result()
            except futures.BrokenExecutor:
                if attempt == _TRIES and not self._stopped.is_set():
                    raise
        return Answer(interrupted=True)

    def _listen(self, pipe: Any) -> None:
        with contextlib.suppress(EOFError, OSError):
            while pipe.poll():
                self._said.append(pipe.recv())

    def _process(self, anew: bool) -> "_Begun":
        """Returns this thread's process; a new one if the last is gone."""
        number = getattr(self._own, "number", None)
        if number is None:
            number = self._own.number = next(self._numbers)
        if anew or number not in self._begun:
            self._begun[number] = _Begun.with_part(number, self._cpus, self._gpus)
        return self._begun[number]


@dataclasses.dataclass(frozen=True)
class _Begun:
    """A process of its own for one task after the other."""

    pool: futures.ProcessPoolExecutor
    pipe: Any
    pid: int

    @classmethod
    def with_part(cls, number: int, cpus: int | None, gpus: int) -> Self:
        """Begins process `number`, which has its part of the machine's devices."""
        context = multiprocessing.get_context("spawn")  # jax must not be forked
        ours, theirs = context.Pipe()
        known = [n for n in os.environ.get(_GPUS, "").split(",") if n]
        part = range(number * gpus, (number + 1) * gpus)
        mine = [known[i] if i < len(known) else str(i) for i in part]
        pool = futures.ProcessPoolExecutor(1, context, _begin, (theirs, cpus, mine))
        return cls(pool, ours, pool.submit(os.getpid).result())

    def end(self) -> None:
        with contextlib.suppress(OSError):
            os.kill(self.pid, signal.SIGKILL)
