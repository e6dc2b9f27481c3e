"""`gradaudit audit`: one command, one verdict, one page."""

import dataclasses
import pathlib
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gradaudit.cli import console, options
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
DEFAULT_FOLDER = pathlib.Path("gradaudit-audit")
_INIT, _FILE = "init", "audit.toml"
_GRID, _CELL, _GATES = "The grid", "Each cell", "Gates"
# Which parameters of the command are fields of AuditPlan, and which of Gates.
_PLAN = (
    "title", "datasets", "model", "defenses", "types", "threats", "attacks",
    "captured", "truth", "victims", "draws", "batch_size", "local_steps", "round_",
    "iterations", "restarts", "success_rmse", "candidates", "looks", "line_ups",
    "mechanism_trials", "train_rounds", "seed",
)  # fmt: skip
_LIMITS = ("max_asr", "max_line_up", "min_rmse", "max_epsilon", "require_certificate")


def _of(panel: str, words: str, *flags: str) -> Any:
    return typer.Option(*flags, help=words, rich_help_panel=panel)


Asked = Annotated[
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
    _of(
        _GRID,
        "Updates of your own system: a folder of recordings, or one of such folders "
        "for each run (docs/own-system.md).",
        "--captured",
    ),
]
Truth = Annotated[
    str | None,
    _of(_GRID, "With --captured: the clients' examples, .npz or a folder.", "--truth"),
]
Datasets = Annotated[
    list[str] | None,
    _of(_GRID, "A name, or your own file; again for more.", "--dataset"),
]
Model = Annotated[
    str | None, _of(_GRID, "A model; default: cpl (images), mlp (tables).", "--model")
]
Defenses = Annotated[
    list[str] | None,
    _of(_GRID, "As fed-cdp:clip=4,sigma=6; again for more.", "--defense"),
]
Types = Annotated[list[int] | None, _of(_GRID, "0, 1 or 2; again for more.", "--type")]
Threats = Annotated[
    list[str] | None,
    _of(_GRID, "curious, aware, informed or malicious; again.", "--threat"),
]
Attacks = Annotated[
    list[str] | None,
    _of(_GRID, "An attack; default: the strongest of each threat.", "--attack"),
]
Victims = Annotated[int | None, _of(_CELL, "Victims of each attack.")]
Draws = Annotated[int | None, _of(_CELL, "Networks, victims dealt over them.")]
BatchSize = Annotated[int | None, _of(_CELL, "Of types 0 and 1.")]
LocalSteps = Annotated[int | None, _of(_CELL, "Of a client's round.")]
Round = Annotated[int | None, _of(_CELL, "Rounds of training before it.", "--round")]
Iterations = Annotated[int | None, _of(_CELL, "The budget of attacks that have one.")]
Restarts = Annotated[int | None, _of(_CELL, "Independent starts.")]
SuccessRmse = Annotated[
    float | None, _of(_CELL, "RMSE at which a victim counts as rebuilt.")
]
Candidates = Annotated[int | None, _of(_CELL, "Of a line-up.")]
Looks = Annotated[
    list[int] | None, _of(_CELL, "Readings in a line-up; the first decides.")
]
LineUps = Annotated[int | None, _of(_CELL, "Line-ups of each cell.")]
Trials = Annotated[
    int | None, _of(_CELL, "Of the test whether the noise is on; 0: none.")
]
TrainRounds = Annotated[
    int | None, _of(_CELL, "Also train under each defense, for accuracy.")
]
MaxAsr = Annotated[
    float | None, _of(_GATES, "No attack may rebuild more of its victims.")
]
MaxLineUp = Annotated[
    float | None, _of(_GATES, "Nobody may pick the victim more often.")
]
MinRmse = Annotated[
    float | None, _of(_GATES, "No victim may be rebuilt better than this.")
]
MaxEpsilon = Annotated[float | None, _of(_GATES, "Of what is really released.")]
RequireCertificate = Annotated[
    bool,
    _of(_GATES, "Every cell needs a bound for anybody.", "--require-certificate"),
]
Title = Annotated[str | None, typer.Option(help="Of the page.")]
Seed = Annotated[int | None, typer.Option(help="Everything random follows from it.")]
Extend = Annotated[
    bool,
    typer.Option(
        "--extend",
        help="Go on in the folder of an audit that asked for other things: equal "
        "cells are kept.",
        rich_help_panel=options.STOP,
    ),
]
Trust = Annotated[
    bool,
    typer.Option("--trust", help="Python files that FILE names may be run as code."),
]
IncludeReconstructions = Annotated[
    bool,
    typer.Option(
        "--include-reconstructions",
        help="Show pictures of data that is no public set on the page.",
    ),
]


def audit(
    context: typer.Context,
    asked: Asked = None,
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
    out_folder: options.Out = DEFAULT_FOLDER,
    overwrite: options.Overwrite = False,
    extend: Extend = False,
    as_json: options.Json = False,
) -> None:
    """Audit types x threats x defenses: one verdict, one page, gates for CI.

    Without a file: a default on embedded data. What is said on the command line wins
    over the file. Cells are kept in --out as they finish: the same command does only
    what is missing.
    """
    with console.errors_in_words():
        if asked == _INIT:
            _init(context, pathlib.Path(_FILE if new_file is None else new_file))
            return
        if new_file is not None:
            raise InputError(f"{new_file!r} is too much: only init takes a file")
        console.refuse(context, ["trust"] * (asked is None), "without a FILE")
        console.ready_folder(out_folder)
        with without_plug_ins(unless=asked is None or trust):
            result = _run(
                asked, _said(context, _PLAN), _said(context, _LIMITS), on, out_folder,
                overwrite, extend, include_reconstructions,
            )  # fmt: skip
        _finish(result, out_folder, as_json)


def _said(context: typer.Context, names: tuple[str, ...]) -> dict[str, Any]:
    """Returns what was said on the command line, as an audit names it."""
    given = {name.rstrip("_"): context.params[name] for name in names}
    # A flag that is off and an empty list say nothing; 0 is a number.
    return {
        k: v for k, v in given.items() if v not in (None, (), []) and v is not False
    }


def _init(context: typer.Context, path: pathlib.Path) -> None:
    """Writes a commented file to begin with; never over another one."""
    from gradaudit import files
    from gradaudit.audit.audit_plan import TEMPLATE

    others = [p.name for p in context.command.params if p.param_type_name == "option"]
    console.refuse(context, filter(None, others), "with init")
    try:
        there = path.exists()
    except (OSError, ValueError) as error:
        raise InputError(f"{path} can't be written: {error}") from None
    if there:
        raise InputError(f"{path} is there already: choose another name")
    files.write_text(path, TEMPLATE)
    console.out.print(f"written: {path}; then: gradaudit audit {path}", markup=False)


def _run(
    file: str | None,
    given: dict[str, Any],
    limits: dict[str, Any],
    on: str,
    folder: pathlib.Path,
    overwrite: bool,
    extend: bool,
    include_reconstructions: bool,
) -> "AuditResult":
    with console.progress_bars("reading", "") as (overall, within):
        from gradaudit.audit.audit import audit as run_audit
        from gradaudit.audit.audit_gates import Gates
        from gradaudit.audit.audit_plan import AuditPlan, changed, read_plan

        plan, gates = AuditPlan(), Gates()
        if file is not None:
            plan, gates = read_plan(pathlib.Path(file))

        def tell(cells: float, total: int, name: str, done: int, of: int) -> None:
            # Within a cell the bar moves on, so that the time left is one.
            overall("audit", cells + done / max(of, 1), total)
            within(name, done, of)

        return run_audit(
            changed(plan, given),
            gates=dataclasses.replace(gates, **limits),
            out=folder,
            overwrite=overwrite,
            extend=extend,
            include_reconstructions=include_reconstructions,
            progress=tell,
            on=on,
        )


def _show(result: "AuditResult", folder: pathlib.Path, as_json: bool) -> None:
    if as_json:
        console.print_json(result.to_dict())
        return
    from gradaudit.report.summary import audit_table

    console.out.print(audit_table(result.to_dict()))
    console.out.print(f"written to {folder}/ (open report.html)", markup=False)


def _finish(result: "AuditResult", folder: pathlib.Path, as_json: bool) -> None:
    """Shows it, ends with the contract's exit code, and says why."""
    _show(result, folder, as_json)
    document = result.to_dict()
    cells, gates = document["cells"], document["gates"]
    if result.interrupted:
        left = sum(cell["status"] != "done" for cell in cells)
        console.err.print(
            f"[yellow]interrupted[/]: {left} of {len(cells)} cells are not done; the "
            "same command goes on"
        )
    failed = [cell["name"] for cell in cells if cell["status"] == "failed"]
    if failed:
        console.err.print(f"[red]failed[/]: {len(failed)} cells; see above or the page")
    said = {
        "held": "[green]gates held[/]",
        "broken": "[red]gate broken[/]",
        "unclear": "[yellow]inconclusive[/]",
    }.get(gates["verdict"])
    if said:
        counts = [c["verdict"] for c in gates["checks"]]
        words = ", ".join(
            f"{counts.count(each)} {each}" for each in ("broken", "unclear", "held")
        )
        console.err.print(f"{said}: {words}")
    if result.exit_code:
        raise typer.Exit(result.exit_code)
