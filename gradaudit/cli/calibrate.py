"""`gradaudit calibrate`: the least noise that keeps an adversary below a success."""

import pathlib
from typing import Annotated, Any

import typer

from gradaudit.cli import console, options
from gradaudit.cli.line_up import LineUpDraws, LineUpVictims, Source, finish
from gradaudit.errors import require

EPILOG = """[bold]Examples[/]

gradaudit calibrate --threat informed --max-success 0.2 --candidates 10
--defense fed-cdp

gradaudit calibrate --max-success 0.2 --type 1 --defense fed-sdp-client

gradaudit calibrate --max-success 0.3 --dataset digits --train --rounds 20

Exit codes: 0 done, 1 more was picked than the noise can allow, 2 bad input, 70 a bug,
130 interrupted (what was done by then is written; the same command goes on with the
trainings).
"""
DEFAULT_FOLDER = pathlib.Path("gradaudit-calibrate")

MaxSuccess = Annotated[
    float, typer.Option(help="How often the victim may be picked, at most.")
]
OneCount = Annotated[
    int, typer.Option("--candidates", help="n, one of which is the victim.")
]
OneLook = Annotated[int, typer.Option("--looks", help="Readings of one victim.")]
Whole = Annotated[
    bool,
    typer.Option(
        "--whole-training",
        help="Certify an example over the whole training of the dataset's setting "
        "(batches secret) instead of --looks.",
    ),
]
Train = Annotated[
    bool, typer.Option("--train", help="Also train, for the accuracy that is left.")
]


def calibrate(
    context: typer.Context,
    max_success: MaxSuccess,
    threat: options.ThreatWord = "informed",
    defense: options.Defense = "fed-cdp",
    type_: options.Type = 2,
    candidates: OneCount = 10,
    looks: OneLook = 1,
    whole_training: Whole = False,
    dataset: options.AnyDataset = "lfw-patches",
    model: options.AttackModel = None,
    victims: LineUpVictims = 400,
    draws: LineUpDraws = 4,
    batch_size: options.VictimBatch = None,
    source: Source = "label",
    train: Train = False,
    rounds: options.Rounds = None,
    seed: options.Seed = 0,
    out_folder: options.Out = DEFAULT_FOLDER,
    overwrite: options.Overwrite = False,
    as_json: options.Json = False,
) -> None:
    """Find the least sigma that is enough against the informed adversary."""
    with console.errors_in_words():
        require(
            threat == "informed",
            "noise is calibrated against the informed adversary, whose success has a "
            f"bound: --threat informed, not {threat!r}",
        )
        if not train:
            console.refuse(context, ["rounds"], "without --train")
        asked: dict[str, Any] = {
            "max_success": max_success, "defense": defense, "type": type_,
            "candidates": candidates, "looks": looks, "dataset": dataset,
            "whole_training": whole_training, "model": model, "victims": victims,
            "draws": draws, "batch_size": batch_size, "candidates_from": source,
            "train": train, "rounds": rounds, "seed": seed,
        }  # fmt: skip
        console.claim_folder(out_folder, overwrite, "calibrate", asked)
        with console.progress_bar("searching for sigma") as tell:
            from gradaudit.audit.enough import enough_noise

            result = enough_noise(
                **asked, keep=out_folder, overwrite=overwrite, progress=tell
            )
        result.save(out_folder)
        if as_json:
            console.print_json(result.to_dict())
        else:
            from gradaudit.report.certified import enough_table

            console.out.print(enough_table(result))
            where = f"written to {out_folder}/ (see figures/enough.png)"
            console.out.print(where, markup=False)
        finish(result.interrupted, result.broken)
