"""`gradaudit captured` and `gradaudit model`: is your own system what you think?"""

import pathlib
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from gradaudit.cli import console, options
from gradaudit.cli.options import option
from gradaudit.errors import InputError

if TYPE_CHECKING:
    from gradaudit.audit.mechanism_check import MechanismCheck

captured = typer.Typer(
    help="Updates that were recorded: what is there, and is the noise on.",
    no_args_is_help=True,
)
_CHECK_EPILOG = """[bold]Examples[/]

gradaudit captured check recorded/

gradaudit captured check recorded/ --claim clip=0.5,noise_std=0.5

gradaudit captured check recorded/ --claim clip=0.5,epsilon=10,delta=1e-5

Exit codes: 0 the claim is consistent with what was measured, 1 it is refuted, 2 bad
input, 3 nothing was claimed or there are no pairs.
"""

Folder = Annotated[
    pathlib.Path, typer.Argument(help="A captured update, or a folder of many.")
]
ClaimWords = Annotated[
    str,
    option(
        "What the defense claims, over what the sidecars say: clip, noise_std, "
        "noise_multiplier, epsilon, delta, law (gaussian or laplace).",
        "--claim",
    ),
]


@captured.command("show", epilog="Example: gradaudit captured show recorded/")
@console.errors_in_words()
def show(folder: Folder, as_json: options.Json = False) -> None:
    """List captured updates, each read and checked."""
    from gradaudit.audit.captured_files import find, read_capture

    rows = []
    for path in find(folder):
        capture = read_capture(path)
        norm = sum(
            float((a.astype(float) ** 2).sum()) for a in capture.moved().values()
        )
        facts = capture.facts
        rows.append(
            {
                "folder": str(path),
                "round": facts.round,
                "client": facts.client,
                "place": facts.place,
                "sent": facts.sent,
                "tensors": len(capture.sent),
                "norm": norm**0.5,
                "batch_size": facts.batch_size,
                "local_steps": facts.local_steps,
                "learning_rate": facts.learning_rate,
            }
        )
    columns = [name for name in rows[0] if name != "folder"]
    table = Table(*columns)
    for row in rows:
        table.add_row(*(_cell(row[name]) for name in columns))
    console.show(rows, [table], as_json)


def _cell(value: object) -> str:
    if value is None:
        return "–"
    return f"{value:.3g}" if isinstance(value, float) else escape(str(value))


@captured.command("check", epilog=_CHECK_EPILOG)
@console.errors_in_words()
def check(
    folder: Folder,
    claim: ClaimWords = "",
    out_folder: options.Out = pathlib.Path("gradaudit-captured"),
    overwrite: options.Overwrite = False,
    as_json: options.Json = False,
) -> None:
    """Measure clip and noise of recorded updates, and compare with the claim."""
    claimed = _claim(claim)
    console.ready_folder(out_folder)
    from gradaudit.audit.mechanism_check import mechanism_check
    from gradaudit.report.result import claim as claim_folder

    result = mechanism_check(folder, claimed or None)
    claim_folder(out_folder, result.spec, overwrite)
    result.save(out_folder)
    console.show(result.to_dict(), [_table(result)], as_json, f"{out_folder}/")
    code = {"refuted": console.EXIT_GATE_BROKEN, "consistent": 0}
    end = code.get(result.verdict, console.EXIT_INCONCLUSIVE)
    if end:
        raise typer.Exit(end)


def _claim(text: str) -> dict[str, float | str]:
    """Returns the claims of a text like clip=0.5,noise_std=0.1."""
    found: dict[str, float | str] = {}
    for part in filter(None, text.split(",")):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not equals:
            raise InputError(f"--claim takes name=value with commas, got {part!r}")
        found[name] = value if name in ("law", "mechanism") else _number(name, value)
    return found


def _number(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise InputError(f"--claim: {name} must be a number from 0, got {text!r}")
    return value


_COLOURS = {"refuted": "red", "consistent": "green", "can't tell": "yellow"}


def _table(result: "MechanismCheck") -> Table:
    """Returns what was compared, a line each."""
    claim = result.claim
    table = Table(
        title=escape(f"{claim.mechanism}: claimed and measured"),
        title_justify="left",
        show_header=False,
    )
    counted = f"{len(result.pairs)} updates before and after"
    if not result.pairs:
        counted = f"{result.alone} updates, as they arrived only"
    table.add_row("looked at", counted)
    for finding in result.findings:
        words = escape(finding.sentence)
        table.add_row(finding.what, f"[red]{words}[/]" if finding.against else words)
    if result.epsilon is not None:
        delta = result.to_dict()["metrics"]["delta"]
        table.add_row("ε of one update", f"{result.epsilon:.3g} at delta {delta:g}")
    colour = _COLOURS[result.verdict]
    table.add_row("the claim", f"[{colour}]{result.verdict}[/]")
    return table


model = typer.Typer(help="Your own model: what works with it.", no_args_is_help=True)
_MODEL_EPILOG = """[bold]Examples[/]

gradaudit model check net.py:build

gradaudit model check examples/flower/net.py

Exit codes: 0 nothing speaks against it, 1 it differs from torch or can't be attacked,
2 bad input.
"""
_SIGNS = {"good": "[green]ok[/]", "note": "[yellow]note[/]", "bad": "[red]no[/]"}


@model.callback()
def _group() -> None:
    """Keeps `check` a command of its own."""


@model.command("check", epilog=_MODEL_EPILOG)
@console.errors_in_words()
def check_own_model(
    file: Annotated[
        str, typer.Argument(help="path/to/file.py:build, or a name of our own.")
    ],
    as_json: options.Json = False,
) -> None:
    """Compare a model with torch, and say what will not work with it."""
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
    table = Table(show_header=False)
    for line in lines:
        sign = _SIGNS[line.said.value]
        table.add_row(escape(line.what), sign, escape(line.words))
    console.show(rows, [table], as_json)
    if any(line.said is Said.BAD for line in lines):
        raise typer.Exit(console.EXIT_GATE_BROKEN)
