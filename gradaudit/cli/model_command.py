"""`gradaudit model`: is your model what your framework computes?"""

from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from gradaudit.cli import console, options

app = typer.Typer(help="Your own model: what works with it.", no_args_is_help=True)
EPILOG = """[bold]Examples[/]

gradaudit model check net.py:build

gradaudit model check examples/flower/net.py

Exit codes: 0 nothing speaks against it, 1 it differs from torch or can't be attacked,
2 bad input.
"""
_COLOURS = {"good": "green", "note": "yellow", "bad": "red"}


@app.callback()
def _group() -> None:
    """Keeps `check` a command of its own."""


@app.command("check", epilog=EPILOG)
def check(
    file: Annotated[
        str, typer.Argument(help="path/to/file.py:build, or a name of our own.")
    ],
    as_json: options.Json = False,
) -> None:
    """Compare a model with torch, and say what will not work with it."""
    with console.errors_in_words():
        with console.progress_bar("comparing"):
            from gradaudit import machine
            from gradaudit.models.adapters import model_for
            from gradaudit.models.check import Said, check_model

            machine.configure()
            lines = check_model(model_for(file))
        rows = [
            {
                "what": line.what,
                "verdict": line.said.value,
                "words": line.words,
                "relative_difference": line.figure,
            }
            for line in lines
        ]
        if as_json:
            console.print_json(rows)
        else:
            table = Table(show_header=False)
            for line in lines:
                colour = _COLOURS[line.said.value]
                sign = {"good": "ok", "note": "note", "bad": "no"}[line.said.value]
                table.add_row(
                    escape(line.what), f"[{colour}]{sign}[/]", escape(line.words)
                )
            console.out.print(table)
        if any(line.said is Said.BAD for line in lines):
            raise typer.Exit(console.EXIT_GATE_BROKEN)
