"""`gradaudit line-up` and `gradaudit calibrate`: measured beside certified."""

import pathlib
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gradaudit.cli import console, options
from gradaudit.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gradaudit.audit.line_up_cells import Cell


LINE_UP_EPILOG = """[bold]Examples[/]

gradaudit line-up --type 2 --defense fed-cdp:clip=4,sigma=6 --candidates 10,100
--looks 1,10,100 --dataset mnist

gradaudit line-up --defense fed-cdp --sigmas 0.5,1,2,4,8

gradaudit line-up --defense path/to/mine.py:defense --from worst

gradaudit line-up --captured round-3,round-9 --candidates-file people.npz --model cnn

Exit codes: 0 done, 1 more was picked than the noise can allow (it is not what the
defense says it is), 2 bad input, 70 a bug, 130 interrupted.
"""
LINE_UP_FOLDER = pathlib.Path("gradaudit-line-up")

Candidates = Annotated[
    str, typer.Option(help="n, one of which is the victim: 10 or 10,100.")
]
Looks = Annotated[str, typer.Option(help="Readings of one victim: 1 or 1,10,100.")]
Sigmas = Annotated[
    str, typer.Option(help="Go through these noise multipliers: 0.5,1,2.")
]
Source = Annotated[
    str,
    typer.Option(
        "--from",
        help="Candidates: label (the victim's labels), any, or worst: constructed "
        "gradients, as far apart as the clip allows.",
    ),
]
Fresh = Annotated[
    bool,
    typer.Option("--fresh", help="New parameters for every look (default: the same)."),
]
LineUpVictims = Annotated[
    int, typer.Option("--victims", help="Line-ups that are played for each cell.")
]
LineUpDraws = Annotated[
    int, typer.Option("--draws", help="Networks drawn, line-ups dealt over them.")
]

Captured = Annotated[
    str,
    typer.Option(
        help="Folders of captured observations of one victim, instead of simulating; "
        "with --candidates-file."
    ),
]
CandidatesFile = Annotated[
    str, typer.Option(help="Whom --captured may be of: a dataset, or your own file.")
]


# What a capture decides itself.
_OF_SIMULATION = (
    *("type_", "dataset", "candidates", "looks", "sigmas", "victims", "draws"),
    *("batch_size", "local_steps", "source", "fresh", "seed"),
)


def line_up(
    context: typer.Context,
    type_: options.Type = 2,
    defense: options.Defense = "fed-cdp",
    dataset: options.AnyDataset = "lfw-patches",
    model: options.AttackModel = None,
    candidates: Candidates = "10",
    looks: Looks = "1",
    sigmas: Sigmas = "",
    victims: LineUpVictims = 400,
    draws: LineUpDraws = 4,
    batch_size: options.VictimBatch = None,
    local_steps: options.VictimSteps = 1,
    source: Source = "label",
    fresh: Fresh = False,
    captured: Captured = "",
    candidates_file: CandidatesFile = "",
    seed: options.Seed = 0,
    out_folder: options.Out = LINE_UP_FOLDER,
    overwrite: options.Overwrite = False,
    as_json: options.Json = False,
) -> None:
    """Let an informed adversary pick the victim; measured beside certified."""
    with console.errors_in_words():
        asked: dict[str, Any] = {
            "type": type_, "defense": defense, "dataset": dataset, "model": model,
            "candidates": [int(n) for n in numbers("--candidates", candidates, int)],
            "looks": [int(n) for n in numbers("--looks", looks, int)],
            "sigmas": numbers("--sigmas", sigmas, float), "victims": victims,
            "draws": draws, "batch_size": batch_size, "local_steps": local_steps,
            "candidates_from": source, "fresh": fresh, "seed": seed,
        }  # fmt: skip
        if bool(captured) != bool(candidates_file):
            raise InputError("--captured and --candidates-file need each other")
        if captured:
            console.refuse(context, _OF_SIMULATION, "with --captured")
            known = {
                "captured": captured.split(","), "candidates": candidates_file,
                "defense": defense, "model": model,
            }  # fmt: skip
            _identify(known, out_folder, overwrite, as_json)
            return
        console.claim_folder(out_folder, overwrite, "line-up", asked)
        with console.progress_bar("compiling") as tell:
            from gradaudit.audit.informed import line_up as play

            result = play(
                **asked, progress=lambda done, all_: tell("picking", done, all_)
            )
        result.save(out_folder)
        if as_json:
            console.print_json(result.to_dict())
        else:
            from gradaudit.report.tables import line_up_table

            console.out.print(line_up_table(result))
            where = f"written to {out_folder}/ (see figures/line_up.png)"
            console.out.print(where, markup=False)
        finish(result.interrupted, result.broken)


def _identify(
    known: dict[str, Any], folder: pathlib.Path, overwrite: bool, as_json: bool
) -> None:
    """Picks out of a file's candidates, and prints the likeliest."""
    console.claim_folder(folder, overwrite, "identify", known)
    with console.progress_bar("reading"):
        from gradaudit.audit.captured_line_up import identify

        result = identify(**known)
    result.save(folder)
    report = result.to_dict()
    if as_json:
        console.print_json(report)
        return
    found = report["metrics"]
    bound = found["certified"]["value"]
    shown = found["certified"]["reason"] if bound is None else f"{bound:.3f}"
    for row in found["likeliest"][:5]:
        words = f"candidate {row['candidate']}: posterior {row['posterior']:.4f}"
        console.out.print(words, markup=False)
    console.out.print(
        f"one of {found['candidates']}, {found['looks']} look(s); certified: {shown}",
        markup=False,
    )
    console.out.print(f"written to {folder}/", markup=False)


def finish(interrupted: bool, broken: "Sequence[Cell]") -> None:
    """Ends with the contract's exit code."""
    if interrupted:
        console.err.print("[yellow]interrupted[/]: what was played is written")
        raise typer.Exit(console.EXIT_INTERRUPTED)
    from gradaudit.audit.line_up_cells import LOOK_AT

    for cell in broken:
        console.err.print(
            f"[red]certificate broken[/]: one of {cell.candidates}, {cell.looks} "
            f"look(s): picked {cell.measured.value:.3f}, certified "
            f"{cell.certified.value:.3f}. {LOOK_AT}",
            soft_wrap=True,
        )
    if broken:
        raise typer.Exit(console.EXIT_GATE_BROKEN)


def numbers(option: str, text: str, kind: type[int] | type[float]) -> list[float]:
    """Returns the numbers of a list like 1,10,100."""
    try:
        return [kind(word) for word in text.split(",") if word.strip()]
    except ValueError:
        words = "whole numbers" if kind is int else "numbers"
        raise InputError(
            f"{option} takes {words} with commas between them, got {text!r}"
        ) from None


CALIBRATE_EPILOG = """[bold]Examples[/]

gradaudit calibrate --threat informed --max-success 0.2 --candidates 10
--defense fed-cdp

gradaudit calibrate --max-success 0.2 --type 1 --defense fed-sdp-client

gradaudit calibrate --max-success 0.3 --dataset digits --train --rounds 20

Exit codes: 0 done, 1 more was picked than the noise can allow, 2 bad input, 70 a bug,
130 interrupted (what was done by then is written; the same command goes on with the
trainings).
"""
CALIBRATE_FOLDER = pathlib.Path("gradaudit-calibrate")

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
    out_folder: options.Out = CALIBRATE_FOLDER,
    overwrite: options.Overwrite = False,
    as_json: options.Json = False,
) -> None:
    """Find the least sigma that is enough against the informed adversary."""
    with console.errors_in_words():
        if threat != "informed":
            raise InputError(
                "noise is calibrated against the informed adversary, whose success has "
                f"a bound: --threat informed, not {threat!r}"
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
            from gradaudit.audit.least_noise import enough_noise

            result = enough_noise(
                **asked, keep=out_folder, overwrite=overwrite, progress=tell
            )
        result.save(out_folder)
        if as_json:
            console.print_json(result.to_dict())
        else:
            from gradaudit.report.tables import enough_table

            console.out.print(enough_table(result))
            where = f"written to {out_folder}/ (see figures/enough.png)"
            console.out.print(where, markup=False)
        finish(result.interrupted, result.broken)
