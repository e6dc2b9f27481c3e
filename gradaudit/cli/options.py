"""Options that commands share, as types, and how what was told is read."""

import dataclasses
import enum
import inspect
import pathlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from gradaudit.errors import InputError, unknown_name

if TYPE_CHECKING:
    from gradaudit.federation.setting import Setting

E = TypeVar("E", bound=enum.Enum)
N = TypeVar("N", int, float)


def option(
    words: str, *flags: str, panel: str | None = None, metavar: str | None = None
) -> Any:
    """Returns an option of a command: its help, its flags and the panel it stands in.

    Without flags it is called like the parameter.
    """
    return typer.Option(*flags, help=words, rich_help_panel=panel, metavar=metavar)


def told(context: typer.Context, function: Callable[..., Any]) -> dict[str, Any]:
    """Returns what a command was told of what a function takes, by name.

    Parameters are called like the argument that they mean; a `_` at the end is ours.
    """
    takes = inspect.signature(function).parameters
    said = {name.rstrip("_"): value for name, value in context.params.items()}
    return {name: said[name] for name in takes if name in said}


def changes(context: typer.Context, function: Callable[..., Any]) -> dict[str, Any]:
    """Returns those that say something: no empty list, no flag that is off."""
    found = told(context, function).items()
    # 0 is a number, and says something.
    return {k: v for k, v in found if v not in (None, [], ()) and v is not False}


def given(context: typer.Context, name: str) -> bool:
    """Whether a parameter of the command was given, or is at its default."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def refuse(context: typer.Context, why: str, *names: str) -> None:
    """Raises for an option that was given and would be ignored.

    `names` are parameters of the command, or whole panels of its help; what is left at
    its default was not given.
    """
    for part in context.command.params:
        its_names = {part.name, getattr(part, "rich_help_panel", None)}
        if its_names & set(names) and given(context, str(part.name)):
            raise InputError(f"{part.opts[0]} has no effect {why}; leave it out")


def word(kind: str, text: str, words: type[E]) -> E:
    """Returns the member of an enum that a word of the command line means."""
    known = {str(member.value): member for member in words}
    if text not in known:
        raise unknown_name(kind, text, known)
    return known[text]


def numbers(name: str, text: str, kind: Callable[[str], N]) -> list[N]:
    """Returns the numbers of a list like 1,10,100."""
    try:
        return [kind(part) for part in text.split(",") if part.strip()]
    except ValueError:
        words = "whole numbers" if kind is int else "numbers"
        raise InputError(
            f"{name} must be {words} with commas between them, got {text!r}"
        ) from None


def changed_setting(context: typer.Context, setting: "Setting") -> "Setting":
    """Returns the setting with what the command line changes of it."""
    from gradaudit.data.partition import parse_partition
    from gradaudit.federation import setting as settings

    said = changes(context, settings.Setting)
    kinds: dict[str, type[enum.Enum]] = {
        "optimizer": settings.Optimizer,
        "weighting": settings.Weighting,
        "selection": settings.Selection,
        "batches": settings.Batches,
    }
    for name, kind in kinds.items():
        if name in said:
            said[name] = word(name, said[name], kind)
    if "partition" in said:
        said["partition"] = parse_partition(said["partition"])
    return dataclasses.replace(setting, **said)


SETTING, STOP, MANY = "The federation", "When to stop", "Many machines"
WHO, SEARCH, CAPTURED = "Who is attacked", "The search", "Your own system"

Defense = Annotated[str, option("For example fed-cdp:clip=4,sigma=6.")]
Seed = Annotated[int, option("Everything random follows from it.")]
Trust = Annotated[
    bool, option("Python files that the saved run names may be run as code.", "--trust")
]
Json = Annotated[bool, option("Print JSON on stdout.", "--json")]
Out = Annotated[pathlib.Path, option("Where the result goes.", "--out")]
Overwrite = Annotated[
    bool, option("Begin anew, whatever is in --out.", "--overwrite", panel=STOP)
]

Clients = Annotated[int | None, option("All clients, N.", panel=SETTING)]
ClientsPerRound = Annotated[int | None, option("Clients per round, K.", panel=SETTING)]
LocalSteps = Annotated[int | None, option("Local iterations, L.", panel=SETTING)]
BatchSize = Annotated[int | None, option("Batch size, B.", panel=SETTING)]
Examples = Annotated[int | None, option("Examples per client.", panel=SETTING)]
PartitionWord = Annotated[
    str | None,
    option(
        "shards:classes=2, dirichlet:alpha=0.5, iid or full-copy; default: as "
        "published.",
        panel=SETTING,
    ),
]
SelectionWord = Annotated[
    str | None,
    option("How clients are drawn: fixed, poisson or active.", panel=SETTING),
]
BatchesWord = Annotated[
    str | None, option("How examples are drawn: fixed or poisson.", panel=SETTING)
]
Rounds = Annotated[int | None, option("Rounds, T.", panel=STOP)]

Type = Annotated[
    int,
    option(
        "Where the adversary reads: 2 an example's gradient, 1 the update at the "
        "client, 0 the update at the server.",
        "--type",
    ),
]
ThreatWord = Annotated[
    str,
    option(
        "What the adversary knows: curious, aware, informed, malicious; what is "
        "granted beside: curious+labels."
    ),
]
AnyDataset = Annotated[
    str, option("A name of `gradaudit data list`, or a file.", panel=WHO)
]
AttackModel = Annotated[
    str | None,
    option(
        "A model, or path/to/file.py:build; default: cpl (images), mlp (tables).",
        panel=WHO,
    ),
]
VictimBatch = Annotated[
    int | None,
    option("Examples per local step (default: 1; 3 for types 0, 1).", panel=WHO),
]
VictimSteps = Annotated[int, option("Local steps of a client's round.", panel=WHO)]

On = Annotated[
    str,
    option(
        "Where cells run: local[:N] processes (local:1: this one), "
        "dask[:ADDRESS], ray[:ADDRESS]; ,cpus=N,gpus=N for each cell. auto: local, or "
        "this process if it has an accelerator. It changes no number.",
        panel=MANY,
        metavar="WHERE",
    ),
]

# Of an attack alone.
Method = Annotated[str, option("The attack, see `gradaudit list`; cpl:init=uniform.")]
Victims = Annotated[
    str,
    option(
        "How many are attacked; auto: until it is clear whether --max-asr holds, "
        "by a sequential test (mixture likelihood ratio) that is wrong in at most 5 % "
        "of runs, with a network for each victim.",
        panel=WHO,
        metavar="INTEGER|auto",
    ),
]
Draws = Annotated[
    int | None,
    option(
        "Networks drawn, victims dealt over them (default: 4 if untrained).", panel=WHO
    ),
]
Round = Annotated[
    int, option("Rounds of training before the attack.", "--round", panel=WHO)
]
RunFolder = Annotated[
    pathlib.Path | None,
    option(
        "A recorded `gradaudit train` folder: its model in --round (or its "
        "weights under another --model of the same tensors), the clients that took "
        "part, its data and its defense.",
        panel=WHO,
    ),
]
ParamsFile = Annotated[
    pathlib.Path | None,
    option(
        "Trained parameters of --model, by name: .safetensors, .npz or .pt; "
        "train writes parameters.npz.",
        panel=WHO,
    ),
]
Looks = Annotated[
    int, option("Rounds in succession in which the same examples are read.", panel=WHO)
]
CapturedFolder = Annotated[
    pathlib.Path | None,
    option(
        "Updates of your own system, as gradaudit.record writes them: a folder "
        "of one or of many. With --model path/to/file.py:build.",
        panel=CAPTURED,
    ),
]
Truth = Annotated[
    pathlib.Path | None,
    option(
        "The clients' examples: an .npz with x and y, or a folder of them.",
        panel=CAPTURED,
    ),
]
AmongCandidates = Annotated[
    pathlib.Path | None,
    option("Examples as .npz: which of them was it? Needs no truth.", panel=CAPTURED),
]
Place = Annotated[
    str | None,
    option(
        "Attack what was recorded there: raw, wire, server, aggregate.", panel=CAPTURED
    ),
]
CapturedRate = Annotated[
    float | None,
    option("Of the client, where the sidecar does not say it.", panel=CAPTURED),
]
Pictures = Annotated[
    bool,
    option(
        "Write what was rebuilt; else it is withheld.", "--pictures", panel=CAPTURED
    ),
]
Iterations = Annotated[
    int | None, option("Attack iterations per restart at most.", panel=SEARCH)
]
Restarts = Annotated[int | None, option("Independent starts per victim.", panel=SEARCH)]
SuccessRmse = Annotated[
    float, option("RMSE at which a victim counts as rebuilt.", panel=SEARCH)
]
LineUps = Annotated[
    int,
    option(
        "Where there is noise: line-ups that an informed adversary plays beside "
        "the attack (0: the certificates alone).",
        panel=SEARCH,
    ),
]
Slots = Annotated[
    int | None, option("Victims per device at a time (speed only).", panel=SEARCH)
]
Coordinator = Annotated[
    str | None,
    option(
        "Where process 0 listens: victims are cut over processes that are started "
        "with the same command, each with its own --process.",
        panel=MANY,
        metavar="HOST:PORT",
    ),
]
ProcessCount = Annotated[
    int | None,
    option(
        "How many there are (default: as SLURM, Open MPI, Kubernetes or a TPU pod "
        "say, or 1).",
        panel=MANY,
    ),
]
ProcessIndex = Annotated[
    int | None, option("Which one this is, from 0; 0 writes the result.", panel=MANY)
]
MaxAsr = Annotated[
    float | None, option("Gate: fail (exit 1) if the success rate is above this.")
]
