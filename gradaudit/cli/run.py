"""`gradaudit run`: a saved result, run again to the same numbers."""

import pathlib
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gradaudit.cli import console, options

if TYPE_CHECKING:
    from gradaudit.report.result import Result

EPILOG = """[bold]Examples[/]

gradaudit run gradaudit-attack/result.json

gradaudit run runs/mnist --out runs/mnist-again
"""


def run(
    path: Annotated[
        pathlib.Path, typer.Argument(help="result.json, its folder, or a bare spec.")
    ],
    out_folder: options.Out = pathlib.Path("gradaudit-run"),
    as_json: options.Json = False,
) -> None:
    """Run a saved result again: the same numbers, or words why that can't be."""
    with console.errors_in_words():
        from gradaudit.spec import Spec

        spec = Spec.read(path)
        arguments = spec.call()
        console.ready_folder(out_folder)
        with console.progress_bar(f"running {spec.command} again") as tell:
            result = _repeated(spec.command, arguments, tell)
        result.save(out_folder)
        if as_json:
            console.print_json(result.to_dict())
            return
        console.out.print(
            f"{spec.command} run again: {out_folder}/result.json", markup=False
        )


def _repeated(command: str, arguments: dict[str, Any], tell: console.Tell) -> "Result":
    """Calls the library function of the command."""
    import gradaudit

    if command in ("attack", "attack-gate"):
        from gradaudit.audit.gate import attack_until_clear

        again = gradaudit.attack if command == "attack" else attack_until_clear
        attacked: Result = again(
            **arguments, progress=lambda done, total: tell("attacking", done, total)
        )
        return attacked
    commands = {
        "train": gradaudit.train,
        "line-up": gradaudit.line_up,
        "calibrate": gradaudit.enough_noise,
        "identify": gradaudit.identify,
        "ldp": gradaudit.ldp_audit,
        "ldp-mechanism": gradaudit.distinguish.mechanism_audit,
    }
    if command not in commands:
        from gradaudit.errors import unknown_name

        raise unknown_name(
            "command of a spec", command, ["attack", "attack-gate", *commands]
        )
    repeated: Result = commands[command](**arguments)
    return repeated
