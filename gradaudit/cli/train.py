"""`gradaudit train`: what a defense costs in accuracy, time and privacy budget."""

import enum
import pathlib
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gradaudit.cli.console import (
    EXIT_INTERRUPTED,
    err,
    errors_in_words,
    out,
    print_json,
)
from gradaudit.errors import unknown_name

if TYPE_CHECKING:
    from gradaudit.data import Partition
    from gradaudit.federation.setting import Setting
    from gradaudit.federation.training import Progress


EPILOG = """[bold]Examples[/]

gradaudit train

gradaudit train --dataset mnist --rounds 30 --out runs/mnist

gradaudit train --dataset mnist --rounds 100 --out runs/mnist --resume

gradaudit train --dataset mnist --defense fed-cdp:clip=4,sigma=6 --target-epsilon 0.5

gradaudit train --centralized --dataset mnist --batch-size 600 --rounds 2000
"""


_SETTING, _STOP, _SPEED = "The federation", "When to stop", "Speed"


def train(
    dataset: Annotated[
        str, typer.Option(help="A dataset with a train and a test split.")
    ] = "digits",
    defense: Annotated[
        str, typer.Option(help="For example fed-cdp:clip=4,sigma=6.")
    ] = "none",
    model: Annotated[
        str | None, typer.Option(help="A model; default: cnn (images), mlp (tables).")
    ] = None,
    standardize: Annotated[
        bool, typer.Option("--standardize", help="Features to mean 0, deviation 1.")
    ] = False,
    centralized: Annotated[
        bool,
        typer.Option("--centralized", help="One client with all data, a step a round."),
    ] = False,
    clients: Annotated[
        int | None, typer.Option(help="All clients, N.", rich_help_panel=_SETTING)
    ] = None,
    clients_per_round: Annotated[
        int | None, typer.Option(help="Clients per round, K.", rich_help_panel=_SETTING)
    ] = None,
    local_steps: Annotated[
        int | None,
        typer.Option(help="Local iterations, L.", rich_help_panel=_SETTING),
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Batch size, B.", rich_help_panel=_SETTING)
    ] = None,
    examples: Annotated[
        int | None, typer.Option(help="Examples per client.", rich_help_panel=_SETTING)
    ] = None,
    learning_rate: Annotated[
        float | None,
        typer.Option(help="The clients' step size.", rich_help_panel=_SETTING),
    ] = None,
    optimizer: Annotated[
        str | None, typer.Option(help="sgd or adam.", rich_help_panel=_SETTING)
    ] = None,
    weighting: Annotated[
        str | None, typer.Option(help="uniform or examples.", rich_help_panel=_SETTING)
    ] = None,
    partition: Annotated[
        str | None,
        typer.Option(
            help="shards, dirichlet, iid or full-copy; default: as published.",
            rich_help_panel=_SETTING,
        ),
    ] = None,
    selection: Annotated[
        str,
        typer.Option(help="fixed, poisson or active.", rich_help_panel=_SETTING),
    ] = "fixed",
    public_examples: Annotated[
        int,
        typer.Option(
            help="The server fine-tunes on this many examples of its own.",
            rich_help_panel=_SETTING,
        ),
    ] = 0,
    rounds: Annotated[
        int | None, typer.Option(help="Rounds, T.", rich_help_panel=_STOP)
    ] = None,
    target_accuracy: Annotated[
        float | None, typer.Option(help="Stop here.", rich_help_panel=_STOP)
    ] = None,
    target_epsilon: Annotated[
        float | None,
        typer.Option(
            help="Stop before the defense's claim exceeds this.", rich_help_panel=_STOP
        ),
    ] = None,
    delta: Annotated[float, typer.Option(help="Of epsilon.", rich_help_panel=_STOP)] = (
        1e-5
    ),
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Go on from the checkpoint in --out.",
            rich_help_panel=_STOP,
        ),
    ] = False,
    evaluate_every: Annotated[
        int | None,
        typer.Option(help="Rounds between two validations.", rich_help_panel=_SPEED),
    ] = None,
    chunk: Annotated[
        int | None,
        typer.Option(
            help="Clients vectorised together (default: what a core's cache holds).",
            rich_help_panel=_SPEED,
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Everything random follows from it.")] = 0,
    out_folder: Annotated[
        pathlib.Path, typer.Option("--out", help="Where the result goes.")
    ] = pathlib.Path("gradaudit-train"),
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON on stdout.")
    ] = False,
) -> None:
    """Train under a defense: accuracy, epsilon, cost, and the gradient's norm."""
    with errors_in_words():
        from gradaudit.audit.train import train as run
        from gradaudit.federation.setting import Selection

        changes = {
            "clients": clients,
            "clients_per_round": clients_per_round,
            "local_steps": local_steps,
            "batch_size": batch_size,
            "examples": examples,
            "learning_rate": learning_rate,
            "rounds": rounds,
        }
        setting = _setting(dataset, centralized, changes, optimizer, weighting)
        with _Bar(setting.rounds) as bar:
            result = run(
                dataset=dataset,
                defense=defense,
                model=model,
                standardize=standardize,
                setting=setting,
                partition=_partition(partition),
                selection=_word("selection", selection, Selection),
                public_examples=public_examples,
                seed=seed,
                target_accuracy=target_accuracy,
                target_epsilon=target_epsilon,
                delta=delta,
                evaluate_every=evaluate_every or max(1, setting.rounds // 100),
                chunk=chunk,
                out=out_folder,
                resume=resume,
                on_round=bar.show,
            )
        report = result.to_dict()
        if as_json:
            print_json(report)
        else:
            _print(report, out_folder)
        if report["stopped"]["reason"] == "interrupted":
            raise typer.Exit(EXIT_INTERRUPTED)


def _word(kind: str, text: str, words: type[enum.Enum]) -> Any:
    """Returns the member of an enum that a word of the command line means."""
    known = {member.value: member for member in words}
    if text not in known:
        raise unknown_name(kind, text, known)
    return known[text]


def _setting(
    dataset: str,
    centralized: bool,
    changes: dict[str, Any],
    optimizer: str | None,
    weighting: str | None,
) -> "Setting":
    """Returns the dataset's setting with what the command line changes."""
    import dataclasses

    from gradaudit.audit.train import centralized_setting, default_setting
    from gradaudit.data import load_dataset
    from gradaudit.federation.setting import Optimizer, Weighting

    given = {name: value for name, value in changes.items() if value is not None}
    words = (
        ("optimizer", optimizer, Optimizer),
        ("weighting", weighting, Weighting),
    )
    for name, text, members in words:
        if text is not None:
            given[name] = _word(name, text, members)
    if centralized:
        size = len(load_dataset(dataset, "train"))
        return dataclasses.replace(centralized_setting(size), **given)
    return dataclasses.replace(default_setting(dataset), **given)


def _partition(name: str | None) -> "Partition | None":
    from gradaudit.data import PARTITIONS

    if name is None:
        return None
    if name not in PARTITIONS:
        raise unknown_name("partition", name, PARTITIONS)
    return PARTITIONS[name]()


class _Bar:
    """The rounds that are done, on stderr."""

    def __init__(self, rounds: int) -> None:
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
        )

        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=err,
            transient=True,
        )
        self._task = self._progress.add_task("compiling", total=rounds)

    def __enter__(self) -> "_Bar":
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def show(self, progress: "Progress") -> None:
        """Moves the bar to a finished round."""
        last = progress.history[-1]
        words = f"loss {last.training_loss:.3f}"
        if last.accuracy is not None:
            words = f"accuracy {last.accuracy:.3f}, {words}"
        self._progress.update(self._task, completed=last.round, description=words)


def _print(report: dict[str, Any], folder: pathlib.Path) -> None:
    from rich.table import Table

    config, metrics = report["config"], report["metrics"]
    table = Table(title="training", title_justify="left", show_header=False)
    table.add_row("dataset, model", f"{config['dataset']}, {config['model']}")
    table.add_row("defense", config["defense"])
    table.add_row("rounds", f"{metrics['rounds']} ({report['stopped']['says']})")
    if metrics["accuracy"] is not None:
        table.add_row("validation accuracy", f"{metrics['accuracy']:.4f}")
    cost = metrics["milliseconds_per_client_and_iteration"]
    if cost is not None:
        table.add_row("per client and local iteration", f"{cost:.3f} ms")
    if report["rounds"]:
        last = report["rounds"][-1]
        for when in ("before", "after"):
            norm = sum(value**2 for value in last[f"norm_{when}"]) ** 0.5
            table.add_row(f"gradient norm {when} the defense", f"{norm:.4g}")
    if report["accounting"] is not None:
        for name, value in report["accounting"]["epsilon"].items():
            text = value if isinstance(value, str) else f"{value:.4g}"
            table.add_row(f"epsilon, {name.replace('_', ' ')}", text)
    out.print(table)
    for sentence in report["limitations"]:
        out.print(f"[dim]{sentence}[/]", soft_wrap=True)
    out.print(f"written to {folder}/ (see curve.png)")
