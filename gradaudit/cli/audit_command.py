"""`gradaudit audit`: one command, one verdict, one page."""

import dataclasses
import pathlib
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gradaudit.cli import console, options
from gradaudit.cli.options import option
from gradaudit.errors import InputError
from gradaudit.text import without_plug_ins

if TYPE_CHECKING:
    from gradaudit.audit.audit import AuditResult

EPILOG = """[bold]Examples[/]

gradaudit audit

gradaudit audit init

gradaudit audit audit.toml --max-asr 0.05 --require-certificate

gradaudit audit --dataset mnist --defense none --defense fed-cdp:clip=4,sigma=6

gradaudit audit audit.toml --on dask:tcp://scheduler:8786

gradaudit audit --captured recorded/ --model net.py:build --truth truth/

Exit codes: 0 done (gates held), 1 a gate is broken, 2 bad input, 3 inconclusive (a gate
can't be decided, or a cell failed), 70 a bug, 130 interrupted (the report covers what
was done; the same command goes on).
"""
_INIT, _FILE = "init", "audit.toml"
_GRID, _CELL, _GATES = "The grid", "Each cell", "Gates"

PlanFile = Annotated[
    str | None,
    typer.Argument(
        metavar="[FILE.toml|init]",
        help="What is audited; init writes a commented file to begin with.",
        show_default=False,
    ),
]
InitFile = Annotated[
    str | None,
    typer.Argument(
        metavar="[NEW.toml]", help=f"With init: the file ({_FILE}).", show_default=False
    ),
]
Captured = Annotated[
    str | None,
    option(
        "Updates of your own system: a folder of recordings, or one of such folders "
        "for each run (docs/own-system.md).",
        panel=_GRID,
    ),
]
Truth = Annotated[
    str | None,
    option("With --captured: the clients' examples, .npz or a folder.", panel=_GRID),
]
Datasets = Annotated[
    list[str] | None,
    option("A name, or your own file; again for more.", "--dataset", panel=_GRID),
]
Model = Annotated[
    str | None, option("A model; default: cpl (images), mlp (tables).", panel=_GRID)
]
Defenses = Annotated[
    list[str] | None,
    option("As fed-cdp:clip=4,sigma=6; again for more.", "--defense", panel=_GRID),
]
Types = Annotated[
    list[int] | None, option("0, 1 or 2; again for more.", "--type", panel=_GRID)
]
Threats = Annotated[
    list[str] | None,
    option("curious, aware, informed or malicious; again.", "--threat", panel=_GRID),
]
Attacks = Annotated[
    list[str] | None,
    option(
        "An attack; default: the strongest of each threat.", "--attack", panel=_GRID
    ),
]
Victims = Annotated[int | None, option("Victims of each attack.", panel=_CELL)]
Draws = Annotated[int | None, option("Networks, victims dealt over them.", panel=_CELL)]
BatchSize = Annotated[int | None, option("Of types 0 and 1.", panel=_CELL)]
LocalSteps = Annotated[int | None, option("Of a client's round.", panel=_CELL)]
Round = Annotated[
    int | None, option("Rounds of training before it.", "--round", panel=_CELL)
]
Iterations = Annotated[
    int | None, option("The budget of attacks that have one.", panel=_CELL)
]
Restarts = Annotated[int | None, option("Independent starts.", panel=_CELL)]
SuccessRmse = Annotated[
    float | None, option("RMSE at which a victim counts as rebuilt.", panel=_CELL)
]
Candidates = Annotated[int | None, option("Of a line-up.", panel=_CELL)]
Looks = Annotated[
    list[int] | None, option("Readings in a line-up; the first decides.", panel=_CELL)
]
LineUps = Annotated[int | None, option("Line-ups of each cell.", panel=_CELL)]
Trials = Annotated[
    int | None, option("Of the test whether the noise is on; 0: none.", panel=_CELL)
]
TrainRounds = Annotated[
    int | None, option("Also train under each defense, for accuracy.", panel=_CELL)
]
MaxAsr = Annotated[
    float | None, option("No attack may rebuild more of its victims.", panel=_GATES)
]
MaxLineUp = Annotated[
    float | None, option("Nobody may pick the victim more often.", panel=_GATES)
]
MinRmse = Annotated[
    float | None, option("No victim may be rebuilt better than this.", panel=_GATES)
]
MaxEpsilon = Annotated[
    float | None, option("Of what is really released.", panel=_GATES)
]
RequireCertificate = Annotated[
    bool,
    option(
        "Every cell needs a bound for anybody.", "--require-certificate", panel=_GATES
    ),
]
Title = Annotated[str | None, option("Of the page.")]
Seed = Annotated[int | None, option("Everything random follows from it.")]
Extend = Annotated[
    bool,
    option(
        "Go on in the folder of an audit that asked for other things: equal "
        "cells are kept.",
        "--extend",
        panel=options.STOP,
    ),
]
Trust = Annotated[
    bool, option("Python files that FILE names may be run as code.", "--trust")
]
IncludeReconstructions = Annotated[
    bool,
    option(
        "Show pictures of data that is no public set on the page.",
        "--include-reconstructions",
    ),
]


@console.errors_in_words()
def audit(
    context: typer.Context,
    file: PlanFile = None,
    new_file: InitFile = None,
    captured: Captured = None,
    truth: Truth = None,
    datasets: Datasets = None,
    model: Model = None,
    defenses: Defenses = None,
    types: Types = None,
    threats: Threats = None,
    attacks: Attacks = None,
    victims: Victims = None,
    draws: Draws = None,
    batch_size: BatchSize = None,
    local_steps: LocalSteps = None,
    round_: Round = None,
    iterations: Iterations = None,
    restarts: Restarts = None,
    success_rmse: SuccessRmse = None,
    candidates: Candidates = None,
    looks: Looks = None,
    line_ups: LineUps = None,
    mechanism_trials: Trials = None,
    train_rounds: TrainRounds = None,
    max_asr: MaxAsr = None,
    max_line_up: MaxLineUp = None,
    min_rmse: MinRmse = None,
    max_epsilon: MaxEpsilon = None,
    require_certificate: RequireCertificate = False,
    title: Title = None,
    seed: Seed = None,
    trust: Trust = False,
    include_reconstructions: IncludeReconstructions = False,
    on: options.On = "auto",
    out_folder: options.Out = pathlib.Path("gradaudit-audit"),
    overwrite: options.Overwrite = False,
    extend: Extend = False,
    as_json: options.Json = False,
) -> None:
    """Audit types x threats x defenses: one verdict, one page, gates for CI.

    Without a file: a default on embedded data. What is said on the command line wins
    over the file. Cells are kept in --out as they finish: the same command does only
    what is missing.
    """
    if file == _INIT:
        _init(context, pathlib.Path(_FILE if new_file is None else new_file))
        return
    if new_file is not None:
        raise InputError(f"{new_file!r} is too much: only init takes a file")
    if file is None:
        options.refuse(context, "without a FILE", "trust")
    console.ready_folder(out_folder)
    with without_plug_ins(unless=file is None or trust):
        result = _run(context)
    report = result.to_dict()
    from gradaudit.report.summary import audit_table

    written = f"{out_folder}/ (open report.html)"
    console.show(report, [audit_table(report)], as_json, written)
    _say(report, result.interrupted)
    if result.exit_code:
        raise typer.Exit(result.exit_code)


def _init(context: typer.Context, path: pathlib.Path) -> None:
    """Writes a commented file to begin with; never over another one."""
    from gradaudit import files
    from gradaudit.audit.audit_plan import TEMPLATE

    others = [p.name for p in context.command.params if p.param_type_name == "option"]
    options.refuse(context, "with init", *filter(None, others))
    try:
        there = path.exists()
    except (OSError, ValueError) as error:
        raise InputError(f"{path} can't be written: {error}") from None
    if there:
        raise InputError(f"{path} is there already: choose another name")
    files.write_text(path, TEMPLATE)
    console.out.print(f"written: {path}; then: gradaudit audit {path}", markup=False)


def _run(context: typer.Context) -> "AuditResult":
    """Audits what the file asks for, and what the command line says over it."""
    with console.progress_bars("reading", "") as (overall, within):
        from gradaudit.audit.audit import audit as run_audit
        from gradaudit.audit.audit_gates import Gates
        from gradaudit.audit.audit_plan import AuditPlan, changed, read_plan

        said, plan, gates = context.params, AuditPlan(), Gates()
        if said["file"] is not None:
            plan, gates = read_plan(pathlib.Path(said["file"]))

        def tell(cells: float, total: int, name: str, done: int, of: int) -> None:
            # Within a cell the bar moves on, so that the time left is one.
            overall("audit", cells + done / max(of, 1), total)
            within(name, done, of)

        return run_audit(
            changed(plan, options.changes(context, AuditPlan)),
            gates=dataclasses.replace(gates, **options.changes(context, Gates)),
            out=said["out_folder"],
            progress=tell,
            **options.told(context, run_audit),
        )


def _say(report: dict[str, Any], interrupted: bool) -> None:
    """Says what is missing, and what came of the gates."""
    cells, gates = report["cells"], report["gates"]
    if interrupted:
        left = sum(cell["status"] != "done" for cell in cells)
        console.err.print(
            f"[yellow]interrupted[/]: {left} of {len(cells)} cells are not done; the "
            "same command goes on"
        )
    failed = sum(cell["status"] == "failed" for cell in cells)
    if failed:
        console.err.print(f"[red]failed[/]: {failed} cells; see above or the page")
    said = {
        "held": "[green]gates held[/]",
        "broken": "[red]gate broken[/]",
        "unclear": "[yellow]inconclusive[/]",
    }.get(gates["verdict"])
    if said:
        counts = [check["verdict"] for check in gates["checks"]]
        words = ", ".join(
            f"{counts.count(each)} {each}" for each in ("broken", "unclear", "held")
        )
        console.err.print(f"{said}: {words}")
