"""Options that commands share, as types: one place for their words and panels."""

import pathlib
from typing import Annotated, Any

import typer

SETTING, STOP, SPEED = "The federation", "When to stop", "Speed"


def _of_setting(words: str) -> Any:
    return typer.Option(help=words, rich_help_panel=SETTING)


def _of_stop(words: str) -> Any:
    return typer.Option(help=words, rich_help_panel=STOP)


def _of_speed(words: str) -> Any:
    return typer.Option(help=words, rich_help_panel=SPEED)


SplitDataset = Annotated[
    str, typer.Option(help="A dataset with a train and a test split.")
]
Defense = Annotated[str, typer.Option(help="For example fed-cdp:clip=4,sigma=6.")]
Model = Annotated[
    str | None, typer.Option(help="A model; default: cnn (images), mlp (tables).")
]
Standardize = Annotated[
    bool, typer.Option("--standardize", help="Features to mean 0, deviation 1.")
]
StatisticsWord = Annotated[
    str,
    typer.Option(
        help="Of --standardize: private (no epsilon counts them), or public (those of "
        "the server's --public-examples)."
    ),
]
Seed = Annotated[int, typer.Option(help="Everything random follows from it.")]
Trust = Annotated[
    bool,
    typer.Option(
        "--trust", help="Python files that the saved run names may be run as code."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
Out = Annotated[pathlib.Path, typer.Option("--out", help="Where the result goes.")]

Centralized = Annotated[
    bool,
    typer.Option("--centralized", help="One client with all data, a step a round."),
]
Clients = Annotated[int | None, _of_setting("All clients, N.")]
ClientsPerRound = Annotated[int | None, _of_setting("Clients per round, K.")]
LocalSteps = Annotated[int | None, _of_setting("Local iterations, L.")]
BatchSize = Annotated[int | None, _of_setting("Batch size, B.")]
Examples = Annotated[int | None, _of_setting("Examples per client.")]
LearningRate = Annotated[float | None, _of_setting("The clients' step size.")]
OptimizerWord = Annotated[str | None, _of_setting("sgd or adam.")]
WeightingWord = Annotated[str | None, _of_setting("uniform or examples.")]
PartitionWord = Annotated[
    str | None,
    _of_setting(
        "shards:classes=2, dirichlet:alpha=0.5, iid or full-copy; default: as "
        "published."
    ),
]
SelectionWord = Annotated[
    str | None, _of_setting("How clients are drawn: fixed, poisson or active.")
]
BatchesWord = Annotated[
    str | None, _of_setting("How examples are drawn: fixed or poisson.")
]
PublicExamples = Annotated[
    int, _of_setting("The server fine-tunes on this many examples of its own.")
]

Rounds = Annotated[int | None, _of_stop("Rounds, T.")]
TargetAccuracy = Annotated[float | None, _of_stop("Stop here.")]
TargetEpsilon = Annotated[
    float | None, _of_stop("Stop before what is spent exceeds this.")
]
Delta = Annotated[float, _of_stop("Of epsilon.")]
Resume = Annotated[
    bool,
    typer.Option(
        "--resume",
        help="Go on from the checkpoint in --out, or fail.",
        rich_help_panel=STOP,
    ),
]
Overwrite = Annotated[
    bool,
    typer.Option(
        "--overwrite", help="Begin anew, whatever is in --out.", rich_help_panel=STOP
    ),
]

EvaluateEvery = Annotated[int | None, _of_speed("Rounds between two validations.")]
RecordEvery = Annotated[
    int | None,
    _of_speed(
        "Keep every so many rounds for `attack --run` (default: 1, 2, 4, 8 ... and "
        "the last)."
    ),
]
Chunk = Annotated[
    int | None,
    _of_speed("Clients vectorised together (default: what a core's cache holds)."),
]


# An attack.
_WHO, _SEARCH = "Who is attacked", "The search"
CAPTURED = "Your own system"

Type = Annotated[
    int,
    typer.Option(
        "--type",
        help="Where the adversary reads: 2 an example's gradient, 1 the update at the "
        "client, 0 the update at the server.",
    ),
]
Method = Annotated[
    str, typer.Option(help="The attack, see `gradaudit list`; cpl:init=uniform.")
]
ThreatWord = Annotated[
    str,
    typer.Option(
        "--threat",
        help="What the adversary knows: curious, aware, informed, malicious; what is "
        "granted beside: curious+labels.",
    ),
]
AnyDataset = Annotated[
    str,
    typer.Option(
        "--dataset",
        help="A name of `gradaudit data list`, or a file.",
        rich_help_panel=_WHO,
    ),
]
AttackModel = Annotated[
    str | None,
    typer.Option(
        "--model",
        help="A model, or path/to/file.py:build; default: cpl (images), mlp (tables).",
        rich_help_panel=_WHO,
    ),
]
Victims = Annotated[
    str,
    typer.Option(
        metavar="INTEGER|auto",
        help="How many are attacked; auto: until it is clear whether --max-asr holds, "
        "by a sequential test (mixture likelihood ratio) that is wrong in at most 5 % "
        "of runs, with a network for each victim.",
        rich_help_panel=_WHO,
    ),
]
Draws = Annotated[
    int | None,
    typer.Option(
        help="Networks drawn, victims dealt over them (default: 4 if untrained).",
        rich_help_panel=_WHO,
    ),
]
VictimBatch = Annotated[
    int | None,
    typer.Option(
        "--batch-size",
        help="Examples per local step (default: 1; 3 for types 0, 1).",
        rich_help_panel=_WHO,
    ),
]
VictimSteps = Annotated[
    int,
    typer.Option(
        "--local-steps", help="Local steps of a client's round.", rich_help_panel=_WHO
    ),
]
Round = Annotated[
    int,
    typer.Option(
        "--round", help="Rounds of training before the attack.", rich_help_panel=_WHO
    ),
]
RunFolder = Annotated[
    pathlib.Path | None,
    typer.Option(
        "--run",
        help="A recorded `gradaudit train` folder: its model in --round (or its "
        "weights under another --model of the same tensors), the clients that took "
        "part, its data and its defense.",
        rich_help_panel=_WHO,
    ),
]
ParamsFile = Annotated[
    pathlib.Path | None,
    typer.Option(
        "--params",
        help="Trained parameters of --model, by name: .safetensors, .npz or .pt; "
        "train writes parameters.npz.",
        rich_help_panel=_WHO,
    ),
]
Looks = Annotated[
    int,
    typer.Option(
        help="Rounds in succession in which the same examples are read.",
        rich_help_panel=_WHO,
    ),
]
CapturedFolder = Annotated[
    pathlib.Path | None,
    typer.Option(
        "--captured",
        help="Updates of your own system, as gradaudit.record writes them: a folder "
        "of one or of many. With --model path/to/file.py:build.",
        rich_help_panel=CAPTURED,
    ),
]
Truth = Annotated[
    pathlib.Path | None,
    typer.Option(
        help="The clients' examples: an .npz with x and y, or a folder of them.",
        rich_help_panel=CAPTURED,
    ),
]
AmongCandidates = Annotated[
    pathlib.Path | None,
    typer.Option(
        "--candidates",
        help="Examples as .npz: which of them was it? Needs no truth.",
        rich_help_panel=CAPTURED,
    ),
]
Place = Annotated[
    str | None,
    typer.Option(
        help="Attack what was recorded there: raw, wire, server, aggregate.",
        rich_help_panel=CAPTURED,
    ),
]
CapturedRate = Annotated[
    float | None,
    typer.Option(
        "--learning-rate",
        help="Of the client, where the sidecar does not say it.",
        rich_help_panel=CAPTURED,
    ),
]
Pictures = Annotated[
    bool,
    typer.Option(
        "--pictures",
        help="Write what was rebuilt; else it is withheld.",
        rich_help_panel=CAPTURED,
    ),
]
Iterations = Annotated[
    int | None,
    typer.Option(
        help="Attack iterations per restart at most.", rich_help_panel=_SEARCH
    ),
]
Restarts = Annotated[
    int | None,
    typer.Option(help="Independent starts per victim.", rich_help_panel=_SEARCH),
]
SuccessRmse = Annotated[
    float,
    typer.Option(
        help="RMSE at which a victim counts as rebuilt.", rich_help_panel=_SEARCH
    ),
]
LineUps = Annotated[
    int,
    typer.Option(
        help="Where there is noise: line-ups that an informed adversary plays beside "
        "the attack (0: the certificates alone).",
        rich_help_panel=_SEARCH,
    ),
]
Slots = Annotated[
    int | None,
    typer.Option(
        help="Victims per device at a time (speed only).", rich_help_panel=_SEARCH
    ),
]
_MANY = "Many machines"
On = Annotated[
    str,
    typer.Option(
        "--on",
        metavar="WHERE",
        help="Where cells run: local[:N] processes (local:1: this one), "
        "dask[:ADDRESS], ray[:ADDRESS]; ,cpus=N,gpus=N for each cell. auto: local, or "
        "this process if it has an accelerator. It changes no number.",
        rich_help_panel=_MANY,
    ),
]
Coordinator = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="Where process 0 listens: victims are cut over processes that are started "
        "with the same command, each with its own --process.",
        rich_help_panel=_MANY,
    ),
]
ProcessCount = Annotated[
    int | None,
    typer.Option(
        "--processes",
        help="How many there are (default: as SLURM, Open MPI, Kubernetes or a TPU pod "
        "say, or 1).",
        rich_help_panel=_MANY,
    ),
]
ProcessIndex = Annotated[
    int | None,
    typer.Option(
        "--process",
        help="Which one this is, from 0; 0 writes the result.",
        rich_help_panel=_MANY,
    ),
]
MaxAsr = Annotated[
    float | None,
    typer.Option(help="Gate: fail (exit 1) if the success rate is above this."),
]
