"""`gradaudit run` and `gradaudit report`: a saved result, run or shown again."""

import inspect
import pathlib
import types
import typing
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from gradaudit.cli import console, options
from gradaudit.cli.options import option
from gradaudit.errors import InputError
from gradaudit.text import without_plug_ins

if TYPE_CHECKING:
    from gradaudit.report.result import Result


RUN_EPILOG = """[bold]Examples[/]

gradaudit run gradaudit-attack/result.json

gradaudit run runs/mnist --out runs/mnist-again
"""


@console.errors_in_words()
def run(
    path: Annotated[
        pathlib.Path, typer.Argument(help="result.json, its folder, or a bare spec.")
    ],
    trust: options.Trust = False,
    out_folder: options.Out = pathlib.Path("gradaudit-run"),
    overwrite: options.Overwrite = False,
    as_json: options.Json = False,
) -> None:
    """Run a saved result again: the same numbers, or words why that can't be."""
    from gradaudit.spec import Spec

    spec = Spec.read(path)
    with without_plug_ins(unless=trust):
        arguments = spec.call()
        from gradaudit.report.result import claim

        claim(console.ready_folder(out_folder), spec, overwrite)
        with console.progress_bar(f"running {spec.command} again") as tell:
            result = _repeated(spec.command, arguments, tell)
    result.save(out_folder)
    said = f"{spec.command} run again: {out_folder}/{result.file}"
    console.show(result.to_dict(), [escape(said)], as_json)


def _repeated(command: str, arguments: dict[str, Any], tell: console.Tell) -> "Result":
    """Calls the library function of the command."""
    import gradaudit
    from gradaudit.audit.audit import audit as run_audit
    from gradaudit.audit.gate import attack_until_clear
    from gradaudit.errors import unknown_name

    attacks = {"attack": gradaudit.attack, "attack-gate": attack_until_clear}
    commands = attacks | {
        "audit": run_audit,
        "train": gradaudit.train,
        "line-up": gradaudit.line_up,
        "calibrate": gradaudit.enough_noise,
        "identify": gradaudit.identify,
        "captured-check": gradaudit.mechanism_check,
        "attack-captured": gradaudit.attack_captured,
        "ldp": gradaudit.ldp_audit,
        "ldp-mechanism": gradaudit.distinguish.mechanism_audit,
    }
    if command not in commands:
        raise unknown_name("command of a spec", command, commands)
    function: Callable[..., Result] = commands[command]
    _check(function, arguments)
    if command in attacks:
        arguments["progress"] = lambda done, total: tell("attacking", done, total)
    if command == "audit":
        arguments["progress"] = lambda done, all_, name, *_: tell(name, done, all_)
    return function(**arguments)


# Where a run writes is said by who runs it, never by a file.
_OURS = {
    "keep",
    "out",
    "overwrite",
    "resume",
    "progress",
    "on_round",
    "plan",
    "gates",
    "extend",
    "include_reconstructions",
    "on",
}


def _check(function: Callable[..., Any], arguments: dict[str, Any]) -> None:
    """Raises in words if a spec's arguments are not what the command takes."""
    ours = sorted(_OURS & set(arguments))
    if ours:
        raise InputError(f"a spec can't say {', '.join(ours)}: the command line does")
    try:
        inspect.signature(function).bind(**arguments)
    except TypeError as error:
        raise InputError(f"the spec can't be run again: {error}") from None
    hints = typing.get_type_hints(function)
    for name, value in arguments.items():
        hint = hints.get(name)
        kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        if float in kinds:
            kinds = (*kinds, int)
        plain = all(isinstance(kind, type) for kind in kinds)
        if plain and not isinstance(value, kinds):
            raise InputError(f"the spec's {name} can't be {value!r}")


REPORT_EPILOG = """[bold]Examples[/]

gradaudit report gradaudit-audit

gradaudit report gradaudit-attack/result.json --to attack.html
"""


@console.errors_in_words()
def report(
    path: Annotated[
        str, typer.Argument(help="A result's folder, its result.json or audit.json.")
    ],
    to: Annotated[
        pathlib.Path | None, option("The page (default: report.html in that folder).")
    ] = None,
    include_reconstructions: Annotated[
        bool,
        option(
            "Show pictures of data that is no public set.", "--include-reconstructions"
        ),
    ] = False,
) -> None:
    """Build report.html again, from what is in a result's folder."""
    from gradaudit import files
    from gradaudit.report.page import PAGE, page
    from gradaudit.report.result import load

    saved = load(path)
    target = saved.folder / PAGE if to is None else to
    text = page(saved.to_dict(), saved.folder, include_reconstructions)
    files.write_text(target, text)
    console.out.print(f"written: {target}", markup=False)
