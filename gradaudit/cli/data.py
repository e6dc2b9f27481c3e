"""`gradaudit data`: what data is here, and what can be had."""

from typing import Annotated

import typer
from rich.table import Table

from gradaudit.cli.console import out, print_json

app = typer.Typer(
    help="Datasets: what is here and what can be had.", no_args_is_help=True
)


@app.command("list", epilog="Example: gradaudit data list --json")
def list_datasets(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON on stdout.")
    ] = False,
) -> None:
    """Show every dataset: shape, classes and how it comes to this machine."""
    from gradaudit.data import CATALOGUE

    rows = [
        {
            "name": entry.name,
            "shape": "x".join(map(str, entry.shape)),
            "classes": entry.classes,
            "origin": entry.origin.value,
            "summary": entry.summary,
        }
        for entry in CATALOGUE.values()
    ]
    if as_json:
        print_json(rows)
        return
    table = Table(title="datasets", title_justify="left")
    for column in ("name", "shape", "classes", "origin", "what it is"):
        table.add_column(column, no_wrap=column == "name")
    for row in rows:
        table.add_row(*(str(value) for value in row.values()))
    out.print(table)
