"""`gradaudit list`: every attack, defense, dataset and model, one line each."""

from typing import Annotated, Any

import typer
from rich.table import Table

from gradaudit.cli.console import errors_in_words, out, print_json


def list_everything(
    what: Annotated[
        str | None,
        typer.Argument(
            help="attacks, defenses, datasets or models (all by default); fits: which "
            "attack fits which network, and why not."
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON on stdout.")
    ] = False,
) -> None:
    """Show what there is: attacks, defenses, datasets, models, with their papers."""
    with errors_in_words():
        from gradaudit.errors import unknown_name

        tables = _fits() if what == "fits" else _tables()
        if what is not None and what not in tables:
            raise unknown_name("list", what, [*tables, "fits"])
        chosen = tables if what is None else {what: tables[what]}
        if as_json:
            print_json(chosen)
            return
        for title, rows in chosen.items():
            table = Table(title=title, title_justify="left", show_header=False)
            table.add_column(no_wrap=True)
            for row in rows:
                table.add_row(row["name"], f"{row['summary']} [dim]{row['paper']}[/]")
            out.print(table)


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
    from gradaudit.audit.fits import all_fits

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
