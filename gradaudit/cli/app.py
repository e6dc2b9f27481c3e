"""The `gradaudit` program: global options and the table of its commands."""

import os
import sys
from typing import Annotated

import typer

from gradaudit._version import __version__
from gradaudit.cli import (
    account,
    attack,
    calibrate,
    data,
    ldp,
    line_up,
    listing,
    run,
    train,
)
from gradaudit.cli.console import EXIT_INTERRUPTED, silence_backend

app = typer.Typer(
    name="gradaudit",
    help=(
        "Do your federated gradients leak your clients' data, and does your defense "
        "stop it?"
    ),
    epilog="Start with: gradaudit attack --type 2",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


app.command("attack", epilog=attack.EPILOG)(attack.attack)


app.command("train", epilog=train.EPILOG)(train.train)


app.command("run", epilog=run.EPILOG)(run.run)
app.command("list", epilog="Example: gradaudit list defenses")(listing.list_everything)


app.add_typer(data.app, name="data")


app.command("account", epilog=account.EPILOG)(account.account)


app.command("ldp", epilog=ldp.EPILOG)(ldp.ldp)


app.command("line-up", epilog=line_up.EPILOG)(line_up.line_up)
app.command("calibrate", epilog=calibrate.EPILOG)(calibrate.calibrate)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"gradaudit {__version__}")
        raise typer.Exit


@app.callback()
def _global_options(
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
    silence_backend()


def main() -> None:
    """Runs the program.

    An interrupt may leave a compilation running on a thread of jax; ending the process
    at once keeps it from touching what the interpreter's exit has taken away.
    """
    try:
        app()
    except SystemExit as end:
        if end.code == EXIT_INTERRUPTED:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(EXIT_INTERRUPTED)
        raise
