"""`gradaudit attack`: rebuild private data from what leaks."""

import pathlib
from typing import Annotated, Any

import typer

from gradaudit.cli.console import (
    EXIT_GATE_BROKEN,
    EXIT_INCONCLUSIVE,
    EXIT_INTERRUPTED,
    err,
    errors_in_words,
    out,
    print_json,
)

EPILOG = """[bold]Examples[/]

gradaudit attack --type 2

gradaudit attack --type 2 --dataset mnist --victims 100

gradaudit attack --type 0 --batch-size 3 --defense fed-sdp

gradaudit attack --type 2 --defense fed-cdp:clip=4,sigma=6 --max-asr 0.05

Exit codes: 0 done (gate held), 1 gate broken, 2 bad input, 3 inconclusive,
130 interrupted (what was done by then is written).
"""


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
    dataset: Annotated[
        str, typer.Option(help="A name of `gradaudit data list`, or a file.")
    ] = "lfw-patches",
    model: Annotated[
        str | None, typer.Option(help="A model; default: cpl (images), mlp (tables).")
    ] = None,
    victims: Annotated[int, typer.Option(help="How many are attacked.")] = 16,
    batch_size: Annotated[
        int | None,
        typer.Option(help="Examples per local step (default: 1; 3 for types 0, 1)."),
    ] = None,
    local_steps: Annotated[
        int, typer.Option(help="Local steps of a client's round.")
    ] = 1,
    round_: Annotated[
        int, typer.Option("--round", help="Rounds of training before the attack.")
    ] = 0,
    iterations: Annotated[
        int | None, typer.Option(help="Attack iterations per restart at most.")
    ] = None,
    restarts: Annotated[
        int | None, typer.Option(help="Independent starts per victim.")
    ] = None,
    success_rmse: Annotated[
        float, typer.Option(help="RMSE at which a victim counts as rebuilt.")
    ] = 0.1,
    seed: Annotated[int, typer.Option(help="Everything random follows from it.")] = 0,
    slots: Annotated[
        int | None, typer.Option(help="Victims per device at a time (speed only).")
    ] = None,
    out_folder: Annotated[
        pathlib.Path | None,
        typer.Option("--out", help="Result folder (default: gradaudit-attack)."),
    ] = None,
    max_asr: Annotated[
        float | None,
        typer.Option(help="Gate: fail (exit 1) if the success rate is above this."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print result.json on stdout, nothing else.")
    ] = False,
) -> None:
    """Rebuild private data from gradients, and say how well it worked."""
    with errors_in_words():
        if max_asr is not None:
            from gradaudit.errors import require

            require(0 <= max_asr <= 1, f"--max-asr must be in [0, 1], got {max_asr}")
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
        )

        with Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=err,
            transient=True,
        ) as bar:
            task = bar.add_task("compiling", total=victims)

            def tell(finished: int, total: int) -> None:
                bar.update(
                    task, completed=finished, total=total, description="attacking"
                )

            from gradaudit.audit.attack import attack as run

            result = run(
                type=type_,
                method=method,
                defense=defense,
                dataset=dataset,
                model=model,
                victims=victims,
                batch_size=batch_size,
                local_steps=local_steps,
                round=round_,
                iterations=iterations,
                restarts=restarts,
                success_rmse=success_rmse,
                seed=seed,
                slots=slots,
                progress=tell,
            )
        folder = result.save(out_folder or pathlib.Path("gradaudit-attack"))
        report = result.to_dict()
        if as_json:
            print_json(report)
        else:
            from gradaudit.report.tables import attack_table

            out.print(attack_table(report))
            out.print(f"written to {folder}/ (see figures/victims.png)")
        _finish(report, max_asr)


def _finish(report: dict[str, Any], max_asr: float | None) -> None:
    """Ends with the contract's exit code."""
    if report["interrupted"]:
        err.print("[yellow]interrupted: the result covers what was done[/]")
        raise typer.Exit(EXIT_INTERRUPTED)
    if max_asr is None:
        return
    asr = report["metrics"]["asr"]
    if asr["low"] > max_asr:
        err.print(f"[red]gate broken[/]: ASR {asr['value']:.3f} > {max_asr:g}")
        raise typer.Exit(EXIT_GATE_BROKEN)
    if asr["high"] > max_asr:
        err.print(
            f"[yellow]inconclusive[/]: the interval [{asr['low']:.3f}, "
            f"{asr['high']:.3f}] straddles {max_asr:g}: attack more victims"
        )
        raise typer.Exit(EXIT_INCONCLUSIVE)
    err.print(f"[green]gate held[/]: ASR at most {asr['high']:.3f} <= {max_asr:g}")
