"""`gradaudit line-up` and `gradaudit calibrate`: measured beside certified."""

import pathlib
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from gradaudit.cli import console, options
from gradaudit.cli.options import option
from gradaudit.errors import InputError

if TYPE_CHECKING:
    from gradaudit.audit.informed import LineUpResult
    from gradaudit.audit.least_noise import EnoughResult


LINE_UP_EPILOG = """[bold]Examples[/]

gradaudit line-up --type 2 --defense fed-cdp:clip=4,sigma=6 --candidates 10,100
--looks 1,10,100 --dataset mnist

gradaudit line-up --defense fed-cdp --sigmas 0.5,1,2,4,8

gradaudit line-up --defense path/to/mine.py:defense --from worst

gradaudit line-up --captured round-3,round-9 --candidates-file people.npz --model cnn

Exit codes: 0 done, 1 more was picked than the noise can allow (it is not what the
defense says it is), 2 bad input, 70 a bug, 130 interrupted.
"""

Candidates = Annotated[str, option("n, one of which is the victim: 10 or 10,100.")]
Looks = Annotated[str, option("Readings of one victim: 1 or 1,10,100.")]
Sigmas = Annotated[str, option("Go through these noise multipliers: 0.5,1,2.")]
Source = Annotated[
    str,
    option(
        "Candidates: label (the victim's labels), any, or worst: constructed "
        "gradients, as far apart as the clip allows.",
        "--from",
    ),
]
Fresh = Annotated[
    bool, option("New parameters for every look (default: the same).", "--fresh")
]
LineUpVictims = Annotated[
    int, option("Line-ups that are played for each cell.", "--victims")
]
LineUpDraws = Annotated[
    int, option("Networks drawn, line-ups dealt over them.", "--draws")
]

Captured = Annotated[
    str,
    option(
        "Folders of captured observations of one victim, instead of simulating; "
        "with --candidates-file."
    ),
]
CandidatesFile = Annotated[
    str, option("Whom --captured may be of: a dataset, or your own file.")
]


# What a capture decides itself.
_OF_SIMULATION = (
    "type_",
    "dataset",
    "candidates",
    "looks",
    "sigmas",
    "victims",
    "draws",
    "batch_size",
    "local_steps",
    "candidates_from",
    "fresh",
    "seed",
)


@console.errors_in_words()
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
    candidates_from: Source = "label",
    fresh: Fresh = False,
    captured: Captured = "",
    candidates_file: CandidatesFile = "",
    seed: options.Seed = 0,
    out_folder: options.Out = pathlib.Path("gradaudit-line-up"),
    overwrite: options.Overwrite = False,
    as_json: options.Json = False,
) -> None:
    """Let an informed adversary pick the victim; measured beside certified."""
    if bool(captured) != bool(candidates_file):
        raise InputError("--captured and --candidates-file need each other")
    if captured:
        options.refuse(context, "with --captured", *_OF_SIMULATION)
        _identify(context)
        return
    numbers = {
        "candidates": options.numbers("--candidates", candidates, int),
        "looks": options.numbers("--looks", looks, int),
        "sigmas": options.numbers("--sigmas", sigmas, float),
    }
    with console.progress_bar("compiling") as tell:
        from gradaudit.audit.informed import line_up as play
        from gradaudit.report.tables import line_up_table

        asked = options.told(context, play) | numbers
        console.claim_folder(context, "line-up", asked)
        result = play(**asked, progress=lambda done, all_: tell("picking", done, all_))
    result.save(out_folder)
    written = f"{out_folder}/ (see figures/line_up.png)"
    console.show(result.to_dict(), [line_up_table(result)], as_json, written)
    _finish(result)


def _identify(context: typer.Context) -> None:
    """Picks out of a file's candidates, and prints the likeliest."""
    said = context.params
    known = {
        "captured": said["captured"].split(","),
        "candidates": said["candidates_file"],
        "defense": said["defense"],
        "model": said["model"],
    }
    folder = console.claim_folder(context, "identify", known)
    with console.progress_bar("reading"):
        from gradaudit.audit.captured_line_up import identify

        result = identify(**known)
    result.save(folder)
    report = result.to_dict()
    found = report["metrics"]
    bound = found["certified"]["value"]
    shown = found["certified"]["reason"] if bound is None else f"{bound:.3f}"
    lines = [
        f"candidate {row['candidate']}: posterior {row['posterior']:.4f}"
        for row in found["likeliest"][:5]
    ]
    lines.append(
        f"one of {found['candidates']}, {found['looks']} look(s); certified: {shown}"
    )
    console.show(report, map(escape, lines), said["as_json"], f"{folder}/")


def _finish(result: "LineUpResult | EnoughResult") -> None:
    """Ends with the contract's exit code."""
    if result.interrupted:
        console.err.print("[yellow]interrupted[/]: what was played is written")
        raise typer.Exit(console.EXIT_INTERRUPTED)
    from gradaudit.audit.line_up_cells import LOOK_AT

    for cell in result.broken:
        console.err.print(
            f"[red]certificate broken[/]: one of {cell.candidates}, {cell.looks} "
            f"look(s): picked {cell.measured.value:.3f}, certified "
            f"{cell.certified.value:.3f}. {LOOK_AT}",
            soft_wrap=True,
        )
    if result.broken:
        raise typer.Exit(console.EXIT_GATE_BROKEN)


CALIBRATE_EPILOG = """[bold]Examples[/]

gradaudit calibrate --threat informed --max-success 0.2 --candidates 10
--defense fed-cdp

gradaudit calibrate --max-success 0.2 --type 1 --defense fed-sdp-client

gradaudit calibrate --max-success 0.3 --dataset digits --train --rounds 20

Exit codes: 0 done, 1 more was picked than the noise can allow, 2 bad input, 70 a bug,
130 interrupted (what was done by then is written; the same command goes on with the
trainings).
"""

MaxSuccess = Annotated[float, option("How often the victim may be picked, at most.")]
OneCount = Annotated[int, option("n, one of which is the victim.", "--candidates")]
OneLook = Annotated[int, option("Readings of one victim.", "--looks")]
Whole = Annotated[
    bool,
    option(
        "Certify an example over the whole training of the dataset's setting "
        "(batches secret) instead of --looks.",
        "--whole-training",
    ),
]
Train = Annotated[bool, option("Also train, for the accuracy that is left.", "--train")]


@console.errors_in_words()
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
    candidates_from: Source = "label",
    train: Train = False,
    rounds: options.Rounds = None,
    seed: options.Seed = 0,
    out_folder: options.Out = pathlib.Path("gradaudit-calibrate"),
    overwrite: options.Overwrite = False,
    as_json: options.Json = False,
) -> None:
    """Find the least sigma that is enough against the informed adversary."""
    if threat != "informed":
        raise InputError(
            "noise is calibrated against the informed adversary, whose success has "
            f"a bound: --threat informed, not {threat!r}"
        )
    if not train:
        options.refuse(context, "without --train", "rounds")
    with console.progress_bar("searching for sigma") as tell:
        from gradaudit.audit.least_noise import enough_noise
        from gradaudit.report.tables import enough_table

        asked = options.told(context, enough_noise)
        asked.pop("overwrite", None)  # which is no part of the question
        folder = console.claim_folder(context, "calibrate", asked)
        result = enough_noise(**asked, keep=folder, overwrite=overwrite, progress=tell)
    result.save(folder)
    written = f"{folder}/ (see figures/enough.png)"
    console.show(result.to_dict(), [enough_table(result)], as_json, written)
    _finish(result)
