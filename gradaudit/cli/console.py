"""What every command shares: consoles, errors as exit codes, clean JSON."""

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from typing import Any

import typer
from rich.console import Console

from gradaudit.errors import InputError

EXIT_GATE_BROKEN = 1


EXIT_BAD_INPUT = 2


EXIT_INCONCLUSIVE = 3


EXIT_INTERRUPTED = 130


# Tables and progress are for people; stdout stays clean for `--json`.
out = Console(highlight=False)


err = Console(stderr=True, highlight=False)


def silence_backend() -> None:
    """Quiets XLA and absl; must run before jax is imported."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    os.environ.setdefault("ABSL_MIN_LOG_LEVEL", "3")


@contextlib.contextmanager
def errors_in_words() -> Iterator[None]:
    """Turns what a user can get wrong into one line and exit code 2."""
    try:
        yield
    except InputError as error:
        err.print(f"[bold red]error:[/] {_escape(str(error))}", soft_wrap=True)
        raise typer.Exit(EXIT_BAD_INPUT) from None
    except KeyboardInterrupt as stop:
        err.print(f"[yellow]{str(stop) or 'interrupted'}[/]")
        raise typer.Exit(EXIT_INTERRUPTED) from None


def print_json(value: Any) -> None:
    """Writes one JSON document to stdout and nothing else."""
    json.dump(value, sys.stdout, indent=2, allow_nan=False)
    sys.stdout.write("\n")


def _escape(text: str) -> str:
    return text.replace("[", r"\[")
