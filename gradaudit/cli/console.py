"""What every command shares: consoles, progress, exit codes, clean JSON."""

import _thread
import codecs
import contextlib
import io
import json
import os
import pathlib
import re
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import IO, Annotated, Any, NoReturn, TextIO

import typer
from rich.console import Console, ConsoleDimensions, RenderableType
from rich.markup import escape

from gradaudit import __version__, files
from gradaudit.errors import InputError, LostProcess
from gradaudit.report.tables import fitted

EXIT_GATE_BROKEN = 1
EXIT_BAD_INPUT = 2
EXIT_INCONCLUSIVE = 3
EXIT_CRASHED = 70
EXIT_INTERRUPTED = 130


class _Out(Console):
    """What people read: tables fit the terminal, on where stdout was at the start."""

    kept: TextIO | None = None  # the real stdout, while others' prints go to stderr

    @property  # type: ignore[misc]
    def file(self) -> IO[str]:
        """Returns the real stdout."""
        return self.kept or sys.stdout

    @property  # type: ignore[misc]
    def size(self) -> ConsoleDimensions:
        """Returns columns and lines; rich forgets COLUMNS on a dumb terminal."""
        found, asked = super().size, os.environ.get("COLUMNS", "")
        columns = int(asked) if asked.isdecimal() and int(asked) else found.width
        return ConsoleDimensions(columns, found.height)

    def print(self, *objects: Any, **options: Any) -> None:
        """Prints; no name and no number of a table is ever cut."""
        super().print(*(fitted(part, self.width) for part in objects), **options)


# Tables and progress are for people; stdout stays clean for `--json`.
out = _Out(highlight=False)
err = Console(stderr=True, highlight=False)

Tell = Callable[[str, float, float], None]  # what is running, how much is done, of what


_IN_ASCII = {
    "ε": "epsilon", "δ": "delta", "σ": "sigma", "≥": ">=", "≤": "<=", "±": "+-",
    "·": "-", "–": "-", "×": "x", "…": "...", "•": "*",
}  # fmt: skip


def speak_any_encoding() -> None:
    """Lets terminals without Unicode show our signs in letters, instead of failing."""

    def in_letters(error: UnicodeError) -> tuple[str, int]:
        if not isinstance(error, UnicodeEncodeError):
            raise error
        wrong = error.object[error.start : error.end]
        return "".join(_IN_ASCII.get(letter, "?") for letter in wrong), error.end

    codecs.register_error("gradaudit", in_letters)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="gradaudit")


def flushed(code: int) -> int:
    """Writes what is still in stdout's buffer; returns the exit code that remains.

    What can't be written is an error, unless the reader has gone because it has seen
    enough; both would otherwise end in Python's own words at its exit.
    """
    try:
        sys.stdout.flush()
        return code
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return code
        err.print(f"[bold red]error:[/] standard output can't be written: {error}")
        return code or EXIT_BAD_INPUT


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"gradaudit {__version__}")
        raise typer.Exit


def global_options(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Print the version and exit.",
        ),
    ] = False,
) -> None:
    """Quiets XLA and absl; must run before jax is imported."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    os.environ.setdefault("ABSL_MIN_LOG_LEVEL", "3")


@contextlib.contextmanager
def errors_in_words() -> Iterator[None]:
    """Turns whatever goes wrong into words and the exit code that it has.

    A user's mistake is 2, and so is what the machine refuses (no space, no memory, a
    plug-in that ends the program); a process that was lost leaves no answer, 3; Ctrl-C
    and SIGTERM are 130, and what nobody foresaw is 70, with the traceback in a file: 1
    is for a gate that is broken, nothing else.
    Whatever is printed by others meanwhile goes to stderr.
    """
    with _termination_is_an_interrupt(), _only_we_print(), _held:
        try:
            yield
        except InputError as error:
            _end("[bold red]error:[/]", str(error), EXIT_BAD_INPUT)
        except LostProcess as error:
            _end("[bold red]incomplete:[/]", str(error), EXIT_INCONCLUSIVE)
        except KeyboardInterrupt as stop:
            err.print(f"[yellow]{escape(str(stop)) or 'interrupted'}[/]")
            raise typer.Exit(EXIT_INTERRUPTED) from None
        except (typer.Exit, typer.Abort):
            raise
        except SystemExit as end:
            said = f"something called sys.exit({end.code}) before the work was done"
            _end("[bold red]error:[/]", said, EXIT_BAD_INPUT)
        except BrokenPipeError:  # the reader has seen enough: not our error
            os.dup2(os.open(os.devnull, os.O_WRONLY), out.file.fileno())
        except MemoryError as error:
            said = f"not enough memory: {error}; ask for less"
            _end("[bold red]error:[/]", said, EXIT_BAD_INPUT)
        except Exception as error:
            if isinstance(error, OSError) and error.errno is not None:
                _end("[bold red]error:[/]", str(error), EXIT_BAD_INPUT)
            said = f"{type(error).__name__}: {error}; this is a bug of gradaudit; "
            where = f"the traceback is in {_keep_traceback()}"
            _end("[bold red]crashed:[/]", said + where, EXIT_CRASHED)


def _end(title: str, text: str, code: int) -> NoReturn:
    err.print(f"{title} {escape(readable(text))}", soft_wrap=True)
    raise typer.Exit(code) from None


def readable(text: str) -> str:
    """Returns one line that a terminal shows as it is, overlong words cut.

    What a message repeats may come from a file: it must not steer the terminal.
    """
    shown = "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text.encode(errors="backslashreplace").decode()
    )
    return re.sub(r"\S{400,}", lambda word: f"{word[0][:80]}...{word[0][-80:]}", shown)


@contextlib.contextmanager
def _only_we_print() -> Iterator[None]:
    """Sends the prints of plug-ins and libraries to stderr; `out` stays where it is."""
    before, out.kept = out.kept, out.kept or sys.stdout
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        out.kept = before


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
    """SIGTERM ends a run like Ctrl-C: what there is gets written.

    Python drops what a handler raises inside a destructor or a callback of the garbage
    collector, as jax has one: such an interrupt comes again a moment later.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # not the main thread: whoever runs us decides
        yield
        return
    others = sys.unraisablehook

    def dropped(what: "sys.UnraisableHookArgs") -> None:
        if isinstance(what.exc_value, KeyboardInterrupt):
            again = threading.Timer(0.05, _thread.interrupt_main, [signal.SIGTERM])
            again.daemon = True
            again.start()
        else:
            others(what)

    sys.unraisablehook = dropped
    try:
        yield
    finally:
        sys.unraisablehook = others
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def progress_bars(*descriptions: str) -> Iterator[tuple[Tell, ...]]:
    """Shows a bar for each description on stderr; yields what moves each of them."""
    from rich.progress import (
        BarColumn,
        Progress,
        TaskID,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.table import Column

    # A name may be long; the bar and the times stay in sight.
    text = Column(no_wrap=True, overflow="ellipsis", ratio=1, max_width=48)
    with Progress(
        TextColumn("{task.description}", table_column=text),
        BarColumn(bar_width=24),
        TaskProgressColumn(show_speed=False),
        TextColumn("{task.fields[count]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=err,
        transient=True,
        disable=not err.is_terminal,  # it would leave an empty line
    ) as bar:

        def moving(task: TaskID) -> Tell:
            def tell(text: str, done: float, total: float) -> None:
                count = f"{int(done)}/{int(total)}"
                words = escape(readable(text))
                bar.update(
                    task, description=words, completed=done, total=total, count=count
                )

            return tell

        yield tuple(
            moving(bar.add_task(escape(each), total=None, count=""))
            for each in descriptions
        )


@contextlib.contextmanager
def progress_bar(description: str, total: int | None = None) -> Iterator[Tell]:
    """Shows one bar on stderr; yields what moves it: tell(text, done, total)."""
    with progress_bars(description) as (tell,):
        if total is not None:
            tell(description, 0, total)
        yield tell


_SMALL_RESULT = 1 << 12  # bytes of room without which no work is begun
_held = contextlib.ExitStack()  # folders, until the command ends


def check_folder(folder: pathlib.Path) -> pathlib.Path:
    """Makes the folder, with room for a small result, or says why it can't be used."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(bytes(_SMALL_RESULT))
            probe.flush()
    except (OSError, ValueError) as error:
        raise InputError(
            f"results can't be written to {folder}: {error}; choose another --out"
        ) from None
    return folder


def ready_folder(folder: pathlib.Path) -> pathlib.Path:
    """Makes the result folder before the work, or says why it can't be used.

    Until the command ends, no other run may write there.
    """
    _held.enter_context(files.one_run_in(check_folder(folder)))
    return folder


def claim_folder(
    context: typer.Context, command: str, arguments: dict[str, Any]
) -> pathlib.Path:
    """Makes --out ready; refuses another run's, without --overwrite; returns it."""
    from gradaudit.report.result import claim
    from gradaudit.spec import Spec

    folder = ready_folder(context.params["out_folder"])
    claim(folder, Spec.of(command, **arguments), context.params["overwrite"])
    return folder


def print_json(value: Any) -> None:
    """Writes one JSON document to stdout and nothing else."""
    try:
        json.dump(value, out.file, indent=2, allow_nan=False)
        out.file.write("\n")
        out.file.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise InputError(f"standard output can't be written: {error}") from None


def show(
    report: Any,
    parts: Iterable[RenderableType],
    as_json: bool,
    written: str | None = None,
) -> None:
    """Prints a result: one JSON document, or tables, lines and where it was written."""
    if as_json:
        print_json(report)
        return
    for part in parts:
        out.print(part)
    if written is not None:
        out.print(f"written to {written}", markup=False)
