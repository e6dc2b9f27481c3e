"""What every command shares: consoles, progress, exit codes, clean JSON."""

import contextlib
import json
import os
import pathlib
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape

from gradaudit.errors import InputError

EXIT_GATE_BROKEN = 1
EXIT_BAD_INPUT = 2
EXIT_INCONCLUSIVE = 3
EXIT_CRASHED = 70
EXIT_INTERRUPTED = 130

# Tables and progress are for people; stdout stays clean for `--json`.
out = Console(highlight=False)
err = Console(stderr=True, highlight=False)

Tell = Callable[[str, int, int], None]  # what is running, how much is done, of what


def silence_backend() -> None:
    """Quiets XLA and absl; must run before jax is imported."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    os.environ.setdefault("ABSL_MIN_LOG_LEVEL", "3")


@contextlib.contextmanager
def errors_in_words() -> Iterator[None]:
    """Turns whatever goes wrong into words and the exit code that it has.

    A user's mistake is 2, Ctrl-C and SIGTERM are 130, and what nobody foresaw is 70,
    with the traceback in a file: 1 is for a gate that is broken, nothing else.
    """
    with _termination_is_an_interrupt():
        try:
            yield
        except InputError as error:
            err.print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True)
            raise typer.Exit(EXIT_BAD_INPUT) from None
        except KeyboardInterrupt as stop:
            err.print(f"[yellow]{escape(str(stop)) or 'interrupted'}[/]")
            raise typer.Exit(EXIT_INTERRUPTED) from None
        except (typer.Exit, typer.Abort, SystemExit):
            raise
        except BrokenPipeError:  # the reader has seen enough: not our error
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except Exception as error:
            where = _keep_traceback()
            err.print(
                f"[bold red]crashed:[/] {escape(f'{type(error).__name__}: {error}')}; "
                f"this is a bug of gradaudit; the traceback is in {escape(where)}",
                soft_wrap=True,
            )
            raise typer.Exit(EXIT_CRASHED) from None


def _keep_traceback() -> str:
    text = traceback.format_exc()
    try:
        handle, name = tempfile.mkstemp(prefix="gradaudit-crash-", suffix=".txt")
        with os.fdopen(handle, "w") as file:
            file.write(text)
        return name
    except OSError:
        err.print(escape(text))
        return "the lines above"


@contextlib.contextmanager
def _termination_is_an_interrupt() -> Iterator[None]:
    """SIGTERM ends a run like Ctrl-C: what there is gets written."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # not the main thread: whoever runs us decides
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def progress_bar(description: str, total: int | None = None) -> Iterator[Tell]:
    """Shows one bar on stderr; yields what moves it: tell(text, done, total)."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=err,
        transient=True,
    ) as bar:
        task = bar.add_task(escape(description), total=total)

        def tell(text: str, done: int, total: int) -> None:
            bar.update(task, description=escape(text), completed=done, total=total)

        yield tell


def ready_folder(folder: pathlib.Path) -> pathlib.Path:
    """Makes the result folder before the work, or says why it can't be used."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except (OSError, ValueError) as error:
        raise InputError(
            f"results can't be written to {folder}: {error}; choose another --out"
        ) from None


def print_json(value: Any) -> None:
    """Writes one JSON document to stdout and nothing else."""
    try:
        json.dump(value, sys.stdout, indent=2, allow_nan=False)
        sys.stdout.write("\n")
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise InputError(f"standard output can't be written: {error}") from None
