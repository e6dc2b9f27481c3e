"""`gradaudit ldp`: how private is a randomized gradient, measured?"""

import functools
import pathlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType

from gradaudit import files
from gradaudit.cli import console, options
from gradaudit.cli.options import option
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
    option(
        f"Claimed epsilons, with commas (default: {_EPSILONS}; with --mechanism: "
        "what it claims by itself)."
    ),
]
AdversaryWords = Annotated[
    str,
    option(
        "all, or of: benign, input-perturbation, parameter-retrogression, "
        "gradient-flip, collusion, dummy-gradient."
    ),
]
BoxWord = Annotated[str, option("white (sees the gradient), black (the model), both.")]
DatasetName = Annotated[str, option("A name of `gradaudit data list`, or a file.")]
Network = Annotated[str, option("The network.")]
TrialCount = Annotated[
    int | None, option("Trials per measurement (10000), or of --mechanism (100000).")
]
Paper = Annotated[
    bool,
    option(
        "10 measurements of 10000 trials in both boxes, as published: several "
        "times longer than the default.",
        "--paper",
    ),
]
Measurements = Annotated[int, option("Measurements, averaged.")]
Clip = Annotated[float, option("The clipping norm L.")]
Significance = Annotated[float, option("1 - confidence that all lower bounds hold.")]
Gate = Annotated[bool, option("Exit 1 if a claim is refuted, 3 if unclear.", "--gate")]
WhiteRuleWord = Annotated[
    str, option("cosine (the paper's) or likelihood (the strongest).", panel=_WHITE)
]
Norms = Annotated[
    str | None,
    option("Also sweep the dummy gradient's norm, e.g. 0.1,0.5,1,2.", panel=_WHITE),
]
BlackTrials = Annotated[
    int | None,
    option(
        "Trials per measurement here (default: --trials, at most 2000).", panel=_BLACK
    ),
]
ClientCount = Annotated[int, option("Clients that one update averages.", panel=_BLACK)]
ServerRate = Annotated[float, option("Of the server's update.", panel=_BLACK)]
Radius = Annotated[
    float | None, option("Of the ball that the server projects onto.", panel=_BLACK)
]
AsPrinted = Annotated[
    bool, option("Take the server's factor as printed: 1/d of unbiased.", panel=_BLACK)
]
MechanismText = Annotated[
    str | None,
    option(
        "Test this instead of LDP-SGD: a defense (fed-cdp:clip=4,sigma=6) or "
        "your function (key, vector) -> vector (file.py:function).",
        panel=_ANY,
    ),
]
MechanismDelta = Annotated[float, option("Of Gaussian noise.", panel=_ANY)]
NeighboursWord = Annotated[
    str | None,
    option(
        "What it must hide: local (any two inputs) or add-remove (an input and none).",
        panel=_ANY,
    ),
]


@console.errors_in_words()
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
    _refuse_what_has_no_effect(context, box, mechanism, paper)
    audit = _audit_ldp_sgd if mechanism is None else _audit_mechanism
    report: LdpReport | MechanismReport = audit(context)
    report.save(out_folder)
    result = report.to_dict()
    written = f"{out_folder}/" if mechanism is None else None
    console.show(files.finite(result), _shown(report), as_json, written)
    if result["status"] == "interrupted":
        console.err.print("[yellow]interrupted: the result covers what was done[/]")
        raise typer.Exit(console.EXIT_INTERRUPTED)
    if gate:
        _judge(result)


def _audit_ldp_sgd(context: typer.Context) -> "LdpReport":
    from gradaudit.distinguish import ADVERSARIES, Server, ldp_audit

    said = context.params
    asked = options.told(context, ldp_audit) | {
        "epsilons": _numbers("--epsilon", said["epsilon"], _EPSILONS),
        "adversaries": tuple(word.strip() for word in said["adversary"].split(",")),
        "boxes": _boxes(said["box"]),
        "norms": _numbers("--norms", said["norms"], ""),
        "server": Server(**options.told(context, Server)),
    }
    if said["adversary"] == "all":
        asked["adversaries"] = tuple(ADVERSARIES)
    if said["trials"] is None:
        asked["trials"] = 10_000
    if said["paper"]:
        asked["black_trials"] = 10_000
    console.claim_folder(context, "ldp", asked)
    with console.progress_bar("compiling") as tell:
        return ldp_audit(progress=tell, **asked)


def _audit_mechanism(context: typer.Context) -> "MechanismReport":
    from gradaudit.distinguish import Neighbours, mechanism_audit

    said = context.params
    asked = options.told(context, mechanism_audit)
    if said["epsilon"] is not None:
        claimed = _numbers("--epsilon", said["epsilon"], "")
        if len(claimed) != 1:
            raise InputError(
                f"--mechanism is tested against one epsilon, got {len(claimed)}"
            )
        asked["epsilon"] = claimed[0]
    if said["neighbours"] is not None:
        kind = options.word("kind of neighbours", said["neighbours"], Neighbours)
        asked["neighbours"] = kind
    if said["trials"] is None:
        del asked["trials"]
    console.claim_folder(context, "ldp-mechanism", asked)
    with console.progress_bar("compiling") as tell:
        return mechanism_audit(progress=tell, **asked)


def _shown(report: "LdpReport | MechanismReport") -> Iterator[RenderableType]:
    from gradaudit.distinguish import LdpReport
    from gradaudit.report import tables_of_privacy

    width = console.out.width
    if not isinstance(report, LdpReport):
        yield tables_of_privacy.mechanism_table(report)
        return
    yield tables_of_privacy.cells_table(report, width)
    yield from tables_of_privacy.verdict_lines(report)
    if report.sweep:
        yield tables_of_privacy.sweep_table(report, width)


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
    refuse = functools.partial(options.refuse, context)
    if mechanism is not None:
        of_ldp_sgd = ("adversary", "box", "measurements", "clip", "paper")
        refuse("with --mechanism", *of_ldp_sgd, _WHITE, _BLACK)
        return
    refuse("without --mechanism", _ANY)
    if box == "white":
        refuse("with --box white", _BLACK)
    if box == "black":
        refuse("with --box black", "white_rule")
    if paper:
        refuse("beside --paper", "trials", "black_trials", "measurements")


def _numbers(name: str, text: str | None, default: str) -> tuple[float, ...]:
    return tuple(options.numbers(name, default if text is None else text, float))


def _boxes(text: str) -> tuple["Box", ...]:
    from gradaudit.distinguish import Box

    if text == "both":
        return tuple(Box)
    names = {box.value: box for box in Box}
    if text not in names:
        raise InputError(f"--box must be white, black or both, got {text!r}")
    return (names[text],)
