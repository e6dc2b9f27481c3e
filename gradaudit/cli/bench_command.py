"""`gradaudit bench`: the papers' tables, published beside measured."""

import itertools
import pathlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table

from gradaudit.cli import console, options
from gradaudit.cli.options import option
from gradaudit.errors import InputError, check_seed

if TYPE_CHECKING:
    from gradaudit.benchmarks.logbook import Record
    from gradaudit.benchmarks.suite import Benchmark, Cell, Scale

app = typer.Typer(
    help="The papers' tables: published beside measured.",
    epilog=(
        "Start with: gradaudit bench list. A run that is interrupted goes on from the "
        "last finished cell."
    ),
    no_args_is_help=True,
)

DEFAULT = pathlib.Path("gradaudit-bench")
Names = Annotated[
    list[str], typer.Argument(help="Names of `gradaudit bench list`, or `all`.")
]
SomeNames = Annotated[
    list[str] | None, typer.Argument(help="Names; default: all that were measured.")
]
ScaleWord = Annotated[
    str,
    option("smoke (seconds), small (minutes) or paper (the published sizes, hours)."),
]
Only = Annotated[
    list[str] | None,
    option(
        "Run only the cell of this name, or those whose names contain the text; "
        "can be given several times."
    ),
]
DryRun = Annotated[
    bool, option("List the cells and, from a sample, how long they take.", "--dry-run")
]
From = Annotated[
    pathlib.Path | None,
    option(
        "Where the records are; default: gradaudit-bench if it is there, else "
        "the project's own measurements.",
        "--from",
    ),
]
Page = Annotated[
    pathlib.Path | None, option("Also write them as a page in Markdown.", "--page")
]


@app.command("list", epilog="Example: gradaudit bench list")
@console.errors_in_words()
def list_benchmarks(as_json: options.Json = False) -> None:
    """Show every benchmark, what it repeats and how many cells it has."""
    from gradaudit.benchmarks.contents import BENCHMARKS
    from gradaudit.benchmarks.suite import Scale

    rows: list[dict[str, Any]] = [
        {
            "name": each.name,
            "title": each.title,
            "published": each.published,
            "cells": {scale.value: len(each.cells(scale, 0)) for scale in Scale},
        }
        for each in BENCHMARKS.values()
    ]
    table = Table(title="benchmarks, the cheap ones first", title_justify="left")
    for column in ("name", "what", "published in", "cells"):
        table.add_column(column, no_wrap=column == "name")
    for row in rows:
        name, title, published, cells = row.values()
        table.add_row(name, title, published, "/".join(map(str, cells.values())))
    console.show(rows, [table, "cells: at the scales smoke/small/paper"], as_json)


@app.command(
    epilog="Examples: gradaudit bench run accounting; gradaudit bench run clients "
    "--scale paper --only 'N=1000, 10%'"
)
@console.errors_in_words()
def run(
    names: Names,
    scale: ScaleWord = "small",
    only: Only = None,
    seed: options.Seed = 0,
    dry_run: DryRun = False,
    on: options.On = "local:1",
    out_folder: options.Out = DEFAULT,
    overwrite: options.Overwrite = False,
    as_json: options.Json = False,
) -> None:
    """Measure what the folder does not have yet, cell after cell, and show it."""
    from gradaudit.benchmarks.contents import chosen
    from gradaudit.benchmarks.suite import Scale
    from gradaudit.clusters import placed

    size = options.word("scale", scale, Scale)
    benchmarks, executor = chosen(names), placed(on)
    check_seed(seed)
    if dry_run:
        _preview(benchmarks, size, seed, only or [])
        return
    folder = console.ready_folder(out_folder)
    if size is Scale.PAPER:
        _preview(benchmarks, size, seed, only or [], folder)
    asked = {"only": only or [], "overwrite": overwrite, "executor": executor}
    records = [_run(each, size, seed, folder, **asked) for each in benchmarks]
    _show(records, as_json)


def _run(
    benchmark: "Benchmark",
    scale: "Scale",
    seed: int,
    folder: pathlib.Path,
    **asked: Any,
) -> "Record":
    from gradaudit.benchmarks.running import run_benchmark

    def say(line: str) -> None:
        console.err.print(f"{benchmark.name}: {line}", markup=False, soft_wrap=True)

    try:
        with console.progress_bar(benchmark.name) as tell:
            return run_benchmark(
                benchmark,
                scale,
                seed,
                folder,
                **asked,
                tell=lambda text, done, total: tell(
                    f"{benchmark.name} {text}", done, total
                ),
                say=say,
            )
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"interrupted: finished cells are in {folder}/{benchmark.name}; the same "
            "command goes on from there"
        ) from None


def _preview(
    benchmarks: "list[Benchmark]",
    scale: "Scale",
    seed: int,
    only: list[str],
    folder: pathlib.Path | None = None,
) -> None:
    """Says what would run and how long that takes here, from a measured sample."""
    from gradaudit.benchmarks.running import estimate, selected

    cells: list[Cell] = []
    for each in benchmarks:
        cells += selected(each, scale, seed, only, folder)
    if folder is None:
        for cell in cells:
            console.out.print(cell.name, markup=False, soft_wrap=True)
    unique = list({cell.fingerprint: cell for cell in cells}.values())
    with console.progress_bar("measuring a sample") as tell:
        seconds, uncounted = estimate(unique, tell)
    rest = f"; {len(uncounted)} cells can't be estimated" if uncounted else ""
    minutes = seconds / 60
    console.err.print(
        f"{len(unique)} cells are left: about {minutes:,.0f} minutes here, from a "
        f"measured sample{rest}"
    )


@app.command(epilog="Example: gradaudit bench show clients --from benchmarks/results")
@console.errors_in_words()
def show(
    names: SomeNames = None,
    source: From = None,
    page: Page = None,
    as_json: options.Json = False,
) -> None:
    """Print the tables of what was measured, with the published figures beside."""
    from gradaudit.benchmarks.contents import chosen
    from gradaudit.benchmarks.logbook import SHIPPED, records_in
    from gradaudit.files import write_text

    folder = source or (DEFAULT if DEFAULT.is_dir() else SHIPPED)
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}; run `gradaudit bench run`")
    wanted = {each.name for each in chosen(names or ["all"])}
    records = [
        record for record in records_in(folder) if record.content["benchmark"] in wanted
    ]
    if not records:
        raise InputError(f"{folder} has no record of that; run `gradaudit bench run`")
    if page is not None:
        from gradaudit.benchmarks.results_page import as_page

        ours = folder.resolve() == SHIPPED.resolve()
        write_text(page, as_page(records, remarks=ours))
    _show(records, as_json)


def _show(records: "list[Record]", as_json: bool) -> None:
    parts = itertools.chain.from_iterable(map(_shown, records))
    console.show([record.content for record in records], parts, as_json)


def _shown(record: "Record") -> Iterator[RenderableType]:
    from gradaudit.benchmarks.contents import BENCHMARKS
    from gradaudit.benchmarks.suite import Scale

    benchmark = BENCHMARKS[record.content["benchmark"]]
    scale = Scale(record.content["scale"])
    yield f"[bold]{benchmark.name}[/] ({scale.value}): {escape(benchmark.published)}"
    for made in benchmark.tables(record.measured, scale):
        table = Table(title=escape(made.title), title_justify="left")
        for column in made.columns:
            table.add_column(escape(column))
        for row in made.rows:
            table.add_row(*(escape(str(entry)) for entry in row))
        yield table
    for line in benchmark.differences(scale):
        yield escape(f"differs: {line}")
    for name, why in record.missing.items():
        yield escape(f"left out: {name} ({why})")
