"""`gradaudit ldp`: how private is a randomized gradient, measured?"""

import functools
import pathlib
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gradaudit.cli import console, options
from gradaudit.errors import InputError

if TYPE_CHECKING:
    from gradaudit.distinguish import Box, LdpReport, MechanismReport

EPILOG = """[bold]Examples[/]

gradaudit ldp

gradaudit ldp --paper --dataset mnist

gradaudit ldp --adversary dummy-gradient --box white --trials 1000000

gradaudit ldp --mechanism fed-cdp:clip=4,sigma=6

gradaudit ldp --mechanism mine.py:randomize --epsilon 1 --gate

Exit codes: 0 done (gate held), 1 refuted (with --gate), 2 bad input,
3 can't tell (with --gate), 130 interrupted (what was done by then is written).
"""

_EPSILONS = "0.5,1,2,4"
_ANY, _WHITE, _BLACK = "Any mechanism", "The white box", "The black box"

Epsilons = Annotated[
    str | None,
    typer.Option(
        help=f"Claimed epsilons, with commas (default: {_EPSILONS}; with --mechanism: "
        "what it claims by itself)."
    ),
]
AdversaryWords = Annotated[
    str,
    typer.Option(
        help="all, or of: benign, input-perturbation, parameter-retrogression, "
        "gradient-flip, collusion, dummy-gradient."
    ),
]
BoxWord = Annotated[
    str, typer.Option(help="white (sees the gradient), black (the model), both.")
]
DatasetName = Annotated[
    str, typer.Option(help="A name of `gradaudit data list`, or a file.")
]
Network = Annotated[str, typer.Option(help="The network.")]
TrialCount = Annotated[
    int | None,
    typer.Option(help="Trials per measurement (10000), or of --mechanism (100000)."),
]
Paper = Annotated[
    bool,
    typer.Option(
        "--paper",
        help="10 measurements of 10000 trials in both boxes, as published: several "
        "times longer than the default.",
    ),
]
Measurements = Annotated[int, typer.Option(help="Measurements, averaged.")]
Clip = Annotated[float, typer.Option(help="The clipping norm L.")]
Significance = Annotated[
    float, typer.Option(help="1 - confidence that all lower bounds hold.")
]
Gate = Annotated[
    bool, typer.Option("--gate", help="Exit 1 if a claim is refuted, 3 if unclear.")
]
WhiteRuleWord = Annotated[
    str,
    typer.Option(
        help="cosine (the paper's) or likelihood (the strongest).",
        rich_help_panel=_WHITE,
    ),
]
Norms = Annotated[
    str | None,
    typer.Option(
        help="Also sweep the dummy gradient's norm, e.g. 0.1,0.5,1,2.",
        rich_help_panel=_WHITE,
    ),
]
BlackTrials = Annotated[
    int | None,
    typer.Option(
        help="Trials per measurement here (default: --trials, at most 2000).",
        rich_help_panel=_BLACK,
    ),
]
ClientCount = Annotated[
    int, typer.Option(help="Clients that one update averages.", rich_help_panel=_BLACK)
]
ServerRate = Annotated[
    float, typer.Option(help="Of the server's update.", rich_help_panel=_BLACK)
]
Radius = Annotated[
    float | None,
    typer.Option(
        help="Of the ball that the server projects onto.", rich_help_panel=_BLACK
    ),
]
AsPrinted = Annotated[
    bool,
    typer.Option(
        help="Take the server's factor as printed: 1/d of unbiased.",
        rich_help_panel=_BLACK,
    ),
]
MechanismText = Annotated[
    str | None,
    typer.Option(
        help="Test this instead of LDP-SGD: a defense (fed-cdp:clip=4,sigma=6) or "
        "your function (key, vector) -> vector (file.py:function).",
        rich_help_panel=_ANY,
    ),
]
MechanismDelta = Annotated[
    float, typer.Option(help="Of Gaussian noise.", rich_help_panel=_ANY)
]
NeighboursWord = Annotated[
    str | None,
    typer.Option(
        help="What it must hide: local (any two inputs) or add-remove (an input and "
        "none).",
        rich_help_panel=_ANY,
    ),
]

# Parameters that only mean something for one of the audits, or for one box.
_OF_MECHANISMS = ("delta", "neighbours")
_OF_BLACK = ("black_trials", "clients", "learning_rate", "radius", "as_printed")
_OF_WHITE = ("white_rule",)
_OF_LDP_SGD = (
    *("adversary", "box", "measurements", "clip", "norms", "paper"),
    *(*_OF_WHITE, *_OF_BLACK),
)


def ldp(
    context: typer.Context,
    epsilon: Epsilons = None,
    adversary: AdversaryWords = "all",
    box: BoxWord = "both",
    dataset: DatasetName = "digits",
    model: Network = "ldp-cnn",
    trials: TrialCount = None,
    measurements: Measurements = 10,
    paper: Paper = False,
    clip: Clip = 1.0,
    white_rule: WhiteRuleWord = "cosine",
    norms: Norms = None,
    black_trials: BlackTrials = None,
    clients: ClientCount = 1,
    learning_rate: ServerRate = 0.01,
    radius: Radius = None,
    as_printed: AsPrinted = False,
    mechanism: MechanismText = None,
    delta: MechanismDelta = 1e-5,
    neighbours: NeighboursWord = None,
    significance: Significance = 0.05,
    seed: options.Seed = 0,
    out_folder: options.Out = pathlib.Path("gradaudit-ldp"),
    overwrite: options.Overwrite = False,
    gate: Gate = False,
    as_json: options.Json = False,
) -> None:
    """Measure the epsilon that adversaries reach, and judge the one that is claimed.

    Six adversaries against LDP-SGD, or a test of any mechanism's claim.
    """
    with console.errors_in_words():
        _refuse_what_has_no_effect(context, box, mechanism, paper)
        claimed = None if epsilon is None else _numbers("--epsilon", epsilon)
        folder = console.ready_folder(out_folder)
        shared: dict[str, Any] = {
            "dataset": dataset, "model": model, "significance": significance,
            "seed": seed,
        }  # fmt: skip
        if mechanism is not None:
            own = {} if trials is None else {"trials": trials}
            report: LdpReport | MechanismReport = _audit_mechanism(
                mechanism, claimed, neighbours, (folder, overwrite), delta=delta,
                **shared, **own,
            )  # fmt: skip
        else:
            report = _audit_ldp_sgd(
                adversary, box, (learning_rate, radius, as_printed),
                (folder, overwrite),
                epsilons=claimed or _numbers("--epsilon", _EPSILONS),
                norms=() if norms is None else _numbers("--norms", norms),
                trials=10_000 if trials is None else trials,
                black_trials=10_000 if paper else black_trials,
                measurements=measurements, clip=clip, clients=clients,
                white_rule=white_rule, **shared,
            )  # fmt: skip
        report.save(folder)
        result = report.to_dict()
        _show(report, result, folder, as_json)
        if result["status"] == "interrupted":
            console.err.print("[yellow]interrupted: the result covers what was done[/]")
            raise typer.Exit(console.EXIT_INTERRUPTED)
        if gate:
            _judge(result)


def _audit_ldp_sgd(
    adversary: str,
    box: str,
    server: tuple[float, float | None, bool],
    place: tuple[pathlib.Path, bool],
    **arguments: Any,
) -> "LdpReport":
    from gradaudit.distinguish import ADVERSARIES, Server, ldp_audit

    names = tuple(word.strip() for word in adversary.split(","))
    arguments |= {
        "adversaries": tuple(ADVERSARIES) if adversary == "all" else names,
        "boxes": _boxes(box),
        "server": Server(*server),
    }
    _claim(place, "ldp", arguments)
    with console.progress_bar("compiling") as tell:
        return ldp_audit(progress=tell, **arguments)


def _audit_mechanism(
    mechanism: str,
    claimed: tuple[float, ...] | None,
    neighbours: str | None,
    place: tuple[pathlib.Path, bool],
    **arguments: Any,
) -> "MechanismReport":
    from gradaudit.distinguish import Neighbours, mechanism_audit

    if claimed is not None and len(claimed) != 1:
        raise InputError(
            f"--mechanism is tested against one epsilon, got {len(claimed)}"
        )
    kind = None
    if neighbours is not None:
        kind = console.word("kind of neighbours", neighbours, Neighbours)
    arguments |= {"epsilon": claimed[0] if claimed else None, "neighbours": kind}
    _claim(place, "ldp-mechanism", arguments | {"mechanism": mechanism})
    with console.progress_bar("compiling") as tell:
        return mechanism_audit(mechanism, progress=tell, **arguments)


def _claim(
    place: tuple[pathlib.Path, bool], command: str, arguments: dict[str, Any]
) -> None:
    """Refuses the folder of another run, unless it may be overwritten."""
    from gradaudit.report.result import claim
    from gradaudit.spec import Spec

    folder, overwrite = place
    claim(folder, Spec.of(command, **arguments), overwrite)


def _show(
    report: "LdpReport | MechanismReport",
    result: dict[str, Any],
    folder: pathlib.Path,
    as_json: bool,
) -> None:
    """Prints result.json, or tables for people."""
    from gradaudit.distinguish import LdpReport
    from gradaudit.files import finite
    from gradaudit.report import tables_of_privacy

    out, width = console.out, console.out.width
    if as_json:
        console.print_json(finite(result))
    elif isinstance(report, LdpReport):
        out.print(tables_of_privacy.cells_table(report, width))
        for line in tables_of_privacy.verdict_lines(report):
            out.print(line)
        if report.sweep:
            out.print(tables_of_privacy.sweep_table(report, width))
        out.print(f"written to {folder}/", markup=False)
    else:
        out.print(tables_of_privacy.mechanism_table(report))


def _judge(result: dict[str, Any]) -> None:
    """Ends with the contract's exit code."""
    cells = result.get("cells") or [result["result"]]
    verdicts = {cell["verdict"] for cell in cells}
    if "refuted" in verdicts:
        console.err.print("[red]gate broken[/]: a claim is refuted")
        raise typer.Exit(console.EXIT_GATE_BROKEN)
    if "can't tell" in verdicts:
        console.err.print("[yellow]inconclusive[/]: too few trials to refute the claim")
        raise typer.Exit(console.EXIT_INCONCLUSIVE)
    console.err.print("[green]gate held[/]: no claim is refuted")


def _refuse_what_has_no_effect(
    context: typer.Context, box: str, mechanism: str | None, paper: bool
) -> None:
    """Raises for an option that was given and would be ignored."""
    refuse = functools.partial(console.refuse, context)
    if mechanism is not None:
        refuse(_OF_LDP_SGD, "with --mechanism")
        return
    refuse(_OF_MECHANISMS, "without --mechanism")
    if box == "white":
        refuse(_OF_BLACK, "with --box white")
    if box == "black":
        refuse(_OF_WHITE, "with --box black")
    if paper:
        refuse(("trials", "black_trials", "measurements"), "beside --paper")


def _numbers(option: str, text: str) -> tuple[float, ...]:
    try:
        return tuple(float(word) for word in text.split(","))
    except ValueError:
        raise InputError(
            f"{option} must be numbers with commas between them, got {text!r}"
        ) from None


def _boxes(text: str) -> tuple["Box", ...]:
    from gradaudit.distinguish import Box

    if text == "both":
        return tuple(Box)
    names = {box.value: box for box in Box}
    if text not in names:
        raise InputError(f"--box must be white, black or both, got {text!r}")
    return (names[text],)
