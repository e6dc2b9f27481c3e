"""`gradaudit report`: the page of a result folder, built again."""

import pathlib
from typing import Annotated

import typer

from gradaudit.cli import console

EPILOG = """[bold]Examples[/]

gradaudit report gradaudit-audit

gradaudit report gradaudit-attack/result.json --to attack.html
"""


def report(
    path: Annotated[
        str, typer.Argument(help="A result's folder, its result.json or audit.json.")
    ],
    to: Annotated[
        pathlib.Path | None,
        typer.Option(help="The page (default: report.html in that folder)."),
    ] = None,
    include_reconstructions: Annotated[
        bool,
        typer.Option(
            "--include-reconstructions",
            help="Show pictures of data that is no public set.",
        ),
    ] = False,
) -> None:
    """Build report.html again, from what is in a result's folder."""
    with console.errors_in_words():
        from gradaudit import files
        from gradaudit.report.page import PAGE, page
        from gradaudit.report.saved import load

        saved = load(path)
        target = saved.folder / PAGE if to is None else to
        text = page(saved.to_dict(), saved.folder, include_reconstructions)
        files.write_text(target, text)
        console.out.print(f"written: {target}", markup=False)
