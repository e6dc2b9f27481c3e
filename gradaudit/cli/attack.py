"""`gradaudit attack`: rebuild private data from what leaks."""

import pathlib
from typing import Any

import typer

from gradaudit.cli import console, options
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
DEFAULT_FOLDER = pathlib.Path("gradaudit-attack")


def attack(
    type_: options.Type = 2,
    method: options.Method = "cpl",
    defense: options.Defense = "none",
    threat: options.ThreatWord = "curious",
    dataset: options.AnyDataset = "lfw-patches",
    model: options.AttackModel = None,
    victims: options.Victims = 16,
    draws: options.Draws = None,
    batch_size: options.VictimBatch = None,
    local_steps: options.VictimSteps = 1,
    round_: options.Round = 0,
    run: options.RunFolder = None,
    iterations: options.Iterations = None,
    restarts: options.Restarts = None,
    success_rmse: options.SuccessRmse = 0.1,
    seed: options.Seed = 0,
    slots: options.Slots = None,
    out_folder: options.Out = DEFAULT_FOLDER,
    max_asr: options.MaxAsr = None,
    as_json: options.Json = False,
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
