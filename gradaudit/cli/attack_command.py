"""`gradaudit attack`: rebuild private data from what leaks."""

import contextlib
import functools
import pathlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from gradaudit.cli import console, options
from gradaudit.errors import InputError
from gradaudit.text import without_plug_ins

if TYPE_CHECKING:
    from gradaudit.audit.attack_result import AttackResult
    from gradaudit.report.metrics import Rate
    from gradaudit.report.result import Result

EPILOG = """[bold]Examples[/]

gradaudit attack --type 2

gradaudit attack --type 2 --dataset mnist --victims 100 --draws 10

gradaudit attack --type 0 --batch-size 3 --defense fed-sdp

gradaudit attack --run runs/mnist --round 16 --type 1

gradaudit attack --dataset mnist --model cnn --params trained.npz --method strongest

gradaudit attack --defense fed-cdp:clip=4,sigma=0.1 --threat aware --looks 4

gradaudit attack --defense fed-cdp:clip=4,sigma=6 --max-asr 0.05 --victims auto

gradaudit attack --captured recorded/ --model mine.py:build --truth batch.npz

gradaudit attack --victims 64 --coordinator host0:9911 --processes 4 --process 0

Exit codes: 0 done (gate held), 1 gate broken or more rebuilt than the noise can allow,
2 bad input, 3 inconclusive, 70 a bug, 130 interrupted (what was done by then is
written).
"""


@console.errors_in_words()
def attack(
    context: typer.Context,
    type_: options.Type = 2,
    method: options.Method = "cpl",
    defense: options.Defense = "none",
    threat: options.ThreatWord = "curious",
    dataset: options.AnyDataset = "lfw-patches",
    model: options.AttackModel = None,
    victims: options.Victims = "16",
    draws: options.Draws = None,
    batch_size: options.VictimBatch = None,
    local_steps: options.VictimSteps = 1,
    round_: options.Round = 0,
    run: options.RunFolder = None,
    params: options.ParamsFile = None,
    looks: options.Looks = 1,
    trust: options.Trust = False,
    captured: options.CapturedFolder = None,
    truth: options.Truth = None,
    candidates: options.AmongCandidates = None,
    place: options.Place = None,
    learning_rate: options.CapturedRate = None,
    pictures: options.Pictures = False,
    iterations: options.Iterations = None,
    restarts: options.Restarts = None,
    success_rmse: options.SuccessRmse = 0.1,
    seed: options.Seed = 0,
    line_ups: options.LineUps = 100,
    slots: options.Slots = None,
    coordinator: options.Coordinator = None,
    processes: options.ProcessCount = None,
    process: options.ProcessIndex = None,
    out_folder: options.Out = pathlib.Path("gradaudit-attack"),
    overwrite: options.Overwrite = False,
    max_asr: options.MaxAsr = None,
    as_json: options.Json = False,
) -> None:
    """Rebuild private data from gradients, and say how well it worked.

    Victims are kept in --out as they finish: the same command goes on from them, and
    shows the result again if all are. Another attack's folder is refused.
    """
    if not (max_asr is None or 0 <= max_asr <= 1):
        raise InputError(f"--max-asr must be in [0, 1], got {max_asr}")
    if captured is not None:
        report = _attack_captured(context)
    else:
        # A plug-in of the command line may run, and one of a file with --trust.
        with without_plug_ins(unless=run is None or trust):
            report = _attack_victims(context)
    _finish(report, max_asr)


def _attack_captured(context: typer.Context) -> dict[str, Any]:
    """Attacks captured updates, and shows what came out; returns result.json."""
    said = context.params
    options.refuse(context, "with --captured", *_NOT_CAPTURED, options.MANY)
    victims = _count(said["victims"]) if options.given(context, "victims") else None
    steps = said["local_steps"] if options.given(context, "local_steps") else None
    if said["model"] is None:
        raise InputError(
            "--captured needs the client's model: --model path/to/file.py:build"
        )
    folder = console.ready_folder(said["out_folder"])
    with console.progress_bar("compiling") as tell:
        from gradaudit.audit.captured_attack import attack_captured

        asked = options.told(context, attack_captured)
        result = attack_captured(
            **asked | {"victims": victims, "local_steps": steps},
            keep=folder,
            progress=lambda done, total: tell("attacking", done, total),
        )
    withheld = "" if said["pictures"] else "; the pictures are withheld (--pictures)"
    return _shown(result, context, withheld)


def _attack_victims(context: typer.Context) -> dict[str, Any]:
    """Attacks victims of a dataset, and shows what came out; returns result.json."""
    said, folder = context.params, context.params["out_folder"]
    auto = said["victims"] == "auto"
    _refuse_what_has_no_effect(context, auto)
    victims = None if auto else _count(said["victims"])
    if said["process"] in (None, 0):  # before anything is waited for
        console.check_folder(folder)
    with _together(context, auto) as leads:
        if leads:
            console.ready_folder(folder)
        with console.progress_bar("compiling", victims) as tell:
            from gradaudit.audit.attack import attack as attack_once
            from gradaudit.audit.gate import attack_until_clear

            asked = options.told(context, attack_once) | {"victims": victims}
            if auto:
                del asked["victims"], asked["draws"]
                asked["max_asr"] = said["max_asr"]
            result = (attack_until_clear if auto else attack_once)(
                **asked,
                keep=folder,
                progress=lambda done, total: tell("attacking", done, total),
            )
        if not leads:
            _end_of_a_part(result)
        looked = " (see figures/victims.png)" if result.figures() else ""
        return _shown(result, context, looked)


def _shown(result: "Result", context: typer.Context, beside: str) -> dict[str, Any]:
    """Writes and prints a result; returns result.json."""
    from gradaudit.report.tables import attack_table, unseen_table

    folder = context.params["out_folder"]
    result.save(folder)
    report = result.to_dict()
    table = attack_table if "asr" in report["metrics"] else unseen_table
    tables = map(table, [report])  # made only if they are shown
    console.show(report, tables, context.params["as_json"], f"{folder}/{beside}")
    return report


# What the captured updates decide themselves, beside the processes.
_NOT_CAPTURED = (
    "type_",
    "dataset",
    "draws",
    "round_",
    "run",
    "trust",
    "line_ups",
    "params",
    "looks",
)
# What a recorded training decides itself.
_OF_SIMULATION = (
    "defense",
    "dataset",
    "draws",
    "batch_size",
    "local_steps",
    "params",
    "looks",
)


def _refuse_what_has_no_effect(context: typer.Context, auto: bool) -> None:
    """Raises for an option that an attack on a dataset's victims would ignore."""
    refuse, said = functools.partial(options.refuse, context), context.params
    refuse("without --captured", options.CAPTURED)
    if said["run"] is not None:
        refuse("with --run, which has its own", *_OF_SIMULATION)
    else:
        refuse("without --run", "trust")
    if auto:
        refuse("with --victims auto: one each", "draws")
        if said["max_asr"] is None:
            raise InputError("--victims auto needs --max-asr, its question")


def _count(victims: str) -> int:
    try:
        return int(victims)
    except ValueError:
        raise InputError(
            f"--victims must be a whole number or auto, got {victims!r}"
        ) from None


@contextlib.contextmanager
def _together(context: typer.Context, until_clear: bool) -> Iterator[bool]:
    """Joins the other processes, if any; yields whether this one is process 0."""
    from gradaudit import machine

    machine.configure()
    machine.join(**options.told(context, machine.join))
    try:
        index, count, _ = machine.joined()
        if count != 1 and until_clear:
            raise InputError(
                "--victims auto needs the answers of one batch to choose the next: "
                "give a number of victims to several processes"
            )
        yield index == 0
    finally:
        machine.leave()


def _end_of_a_part(result: "AttackResult") -> NoReturn:
    """Ends a process that isn't 0, and attacked its part of the victims."""
    done = f"{len(result.scores)} victims were attacked here: process 0 has the result"
    console.err.print(done)
    raise typer.Exit(console.EXIT_INTERRUPTED if result.interrupted else 0)


def _finish(report: dict[str, Any], max_asr: float | None) -> None:
    """Ends with the contract's exit code, and says why."""
    if report["status"] == "interrupted":
        missing = len(report["victims"]["missing"])
        console.err.print(f"[yellow]interrupted[/]: {missing} victims were never begun")
        raise typer.Exit(console.EXIT_INTERRUPTED)
    broken = (report.get("certificate") or {}).get("broken", [])
    for sentence in broken:
        console.err.print(f"[red]certificate broken[/]: {sentence}", soft_wrap=True)
    code = _gate(report, max_asr) if max_asr is not None else 0
    if broken or code:
        raise typer.Exit(console.EXIT_GATE_BROKEN if broken else code)


def _gate(report: dict[str, Any], max_asr: float) -> int:
    """Says what came of the gate; returns its exit code."""
    if "asr" not in report["metrics"]:
        raise InputError(
            "--max-asr is a gate on the success rate, which only --truth can tell"
        )
    from gradaudit.audit.gate import Verdict, judge
    from gradaudit.report.metrics import Rate

    said = {
        Verdict.HELD: ("[green]gate held[/]", 0),
        Verdict.BROKEN: ("[red]gate broken[/]", console.EXIT_GATE_BROKEN),
        Verdict.UNCLEAR: ("[yellow]inconclusive[/]", console.EXIT_INCONCLUSIVE),
    }
    if "gate" in report:
        verdict, words = Verdict(report["gate"]["verdict"]), _sequential(report["gate"])
    else:
        asr = report["metrics"]["asr"]
        rate = Rate(asr["value"], asr["low"], asr["high"])
        verdict = judge(rate, max_asr)
        words = _fixed(rate, verdict is Verdict.UNCLEAR, max_asr, len(report["draws"]))
    title, code = said[verdict]
    console.err.print(f"{title}: {words}", soft_wrap=True)
    return code


def _fixed(rate: "Rate", unclear: bool, limit: float, draws: int) -> str:
    """Says what a fixed number of victims tells about the limit."""
    interval = f"ASR {rate.value:.3f}, at 95 % in \\[{rate.low:.3f}, {rate.high:.3f}]"
    if not unclear:
        return f"{interval}; the limit is {limit:g}"
    from gradaudit.audit.gate import victims_needed

    words = f"{interval} has the limit {limit:g} inside"
    if rate.value > limit or limit == 0:
        return f"{words}: attack more victims, over more draws, or --victims auto"
    alone, dealt = victims_needed(limit), victims_needed(limit, draws)
    few = f"{draws} draws are too few for it"
    if dealt is not None:
        few = f"{dealt} victims over {draws} draws would do"
    return (
        f"{words}. Even without any success it needs {alone} victims with a network "
        f"each (--victims {alone} --draws {alone}); {few}. --victims auto takes as "
        "many as it needs"
    )


def _sequential(gate: dict[str, Any]) -> str:
    """Says what the sequential test found, and after how many victims."""
    return (
        f"{gate['successes']} of {gate['victims']} victims were rebuilt, the limit is "
        f"{gate['limit']:g} (sequential test, wrong in at most "
        f"{gate['error_rate']:.0%} of runs)"
    )
