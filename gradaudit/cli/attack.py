"""`gradaudit attack`: rebuild private data from what leaks."""

import pathlib
from typing import Annotated, Any

import typer

from gradaudit.cli import console
from gradaudit.errors import require

EPILOG = """[bold]Examples[/]

gradaudit attack --type 2

gradaudit attack --type 2 --dataset mnist --victims 100 --draws 10

gradaudit attack --type 0 --batch-size 3 --defense fed-sdp

gradaudit attack --run runs/mnist --round 16 --type 1

gradaudit attack --type 2 --defense fed-cdp:clip=4,sigma=6 --max-asr 0.05

Exit codes: 0 done (gate held), 1 gate broken, 2 bad input, 3 inconclusive, 70 a bug,
130 interrupted (what was done by then is written).
"""
_WHO, _SEARCH, _WHERE = "Who is attacked", "The search", "Results"
DEFAULT_FOLDER = pathlib.Path("gradaudit-attack")


def attack(
    type_: Annotated[
        int,
        typer.Option(
            "--type",
            help="Where the adversary reads: 2 an example's gradient, 1 the update "
            "at the client, 0 the update at the server.",
        ),
    ] = 2,
    method: Annotated[
        str, typer.Option(help="The attack, see `gradaudit list`; cpl:init=uniform.")
    ] = "cpl",
    defense: Annotated[
        str, typer.Option(help="The defense under test; fed-cdp:clip=4,sigma=6.")
    ] = "none",
    threat: Annotated[
        str,
        typer.Option(help="What the adversary knows: curious, or curious+labels."),
    ] = "curious",
    dataset: Annotated[
        str,
        typer.Option(
            help="A name of `gradaudit data list`, or a file.", rich_help_panel=_WHO
        ),
    ] = "lfw-patches",
    model: Annotated[
        str | None,
        typer.Option(
            help="A model; default: cpl (images), mlp (tables).", rich_help_panel=_WHO
        ),
    ] = None,
    victims: Annotated[
        int, typer.Option(help="How many are attacked.", rich_help_panel=_WHO)
    ] = 16,
    draws: Annotated[
        int | None,
        typer.Option(
            help="Networks drawn, victims dealt over them (default: 4 untrained).",
            rich_help_panel=_WHO,
        ),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(
            help="Examples per local step (default: 1; 3 for types 0, 1).",
            rich_help_panel=_WHO,
        ),
    ] = None,
    local_steps: Annotated[
        int,
        typer.Option(help="Local steps of a client's round.", rich_help_panel=_WHO),
    ] = 1,
    round_: Annotated[
        int,
        typer.Option(
            "--round",
            help="Rounds of training before the attack.",
            rich_help_panel=_WHO,
        ),
    ] = 0,
    run: Annotated[
        pathlib.Path | None,
        typer.Option(
            help="A recorded `gradaudit train` folder: its model at --round, the "
            "clients that took part, its data and defense.",
            rich_help_panel=_WHO,
        ),
    ] = None,
    iterations: Annotated[
        int | None,
        typer.Option(
            help="Attack iterations per restart at most.", rich_help_panel=_SEARCH
        ),
    ] = None,
    restarts: Annotated[
        int | None,
        typer.Option(help="Independent starts per victim.", rich_help_panel=_SEARCH),
    ] = None,
    success_rmse: Annotated[
        float,
        typer.Option(
            help="RMSE at which a victim counts as rebuilt.", rich_help_panel=_SEARCH
        ),
    ] = 0.1,
    seed: Annotated[int, typer.Option(help="Everything random follows from it.")] = 0,
    slots: Annotated[
        int | None,
        typer.Option(
            help="Victims per device at a time (speed only).", rich_help_panel=_SEARCH
        ),
    ] = None,
    out_folder: Annotated[
        pathlib.Path,
        typer.Option("--out", help="Result folder.", rich_help_panel=_WHERE),
    ] = DEFAULT_FOLDER,
    max_asr: Annotated[
        float | None,
        typer.Option(
            help="Gate: fail (exit 1) if the success rate is above this.",
            rich_help_panel=_WHERE,
        ),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Print result.json on stdout, nothing else.",
            rich_help_panel=_WHERE,
        ),
    ] = False,
) -> None:
    """Rebuild private data from gradients, and say how well it worked."""
    asked = {
        "type": type_, "method": method, "defense": defense, "threat": threat,
        "dataset": dataset, "model": model, "victims": victims, "draws": draws,
        "batch_size": batch_size, "local_steps": local_steps, "round": round_,
        "run": run, "iterations": iterations, "restarts": restarts,
        "success_rmse": success_rmse, "seed": seed, "slots": slots,
    }  # fmt: skip
    with console.errors_in_words():
        require(
            max_asr is None or 0 <= max_asr <= 1,
            f"--max-asr must be in [0, 1], got {max_asr}",
        )
        report = attack_and_save(asked, out_folder, as_json)
        finish(report, max_asr)


def attack_and_save(
    asked: dict[str, Any], folder: pathlib.Path, as_json: bool
) -> dict[str, Any]:
    """Runs the attack with a bar, writes and shows the result; returns it."""
    console.ready_folder(folder)
    with console.progress_bar("compiling", asked.get("victims")) as tell:
        from gradaudit.audit.attack import attack as run_attack

        result = run_attack(
            **asked, progress=lambda done, total: tell("attacking", done, total)
        )
    result.save(folder)
    report = result.to_dict()
    if as_json:
        console.print_json(report)
    else:
        from gradaudit.report.tables import attack_table

        console.out.print(attack_table(report))
        looked = " (see figures/victims.png)" if result.figures() else ""
        console.out.print(f"written to {folder}/{looked}", markup=False)
    return report


def finish(report: dict[str, Any], max_asr: float | None) -> None:
    """Ends with the contract's exit code."""
    err = console.err
    if report["status"] == "interrupted":
        missing = len(report["victims"]["missing"])
        err.print(f"[yellow]interrupted[/]: {missing} victims were never begun")
        raise typer.Exit(console.EXIT_INTERRUPTED)
    if max_asr is None:
        return
    asr = report["metrics"]["asr"]
    if asr["low"] > max_asr:
        err.print(f"[red]gate broken[/]: ASR {asr['value']:.3f} > {max_asr:g}")
        raise typer.Exit(console.EXIT_GATE_BROKEN)
    if asr["high"] > max_asr:
        err.print(
            f"[yellow]inconclusive[/]: the interval [{asr['low']:.3f}, "
            f"{asr['high']:.3f}] straddles {max_asr:g}: attack more victims, over "
            "more draws"
        )
        raise typer.Exit(console.EXIT_INCONCLUSIVE)
    err.print(f"[green]gate held[/]: ASR at most {asr['high']:.3f} <= {max_asr:g}")
