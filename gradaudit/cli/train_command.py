"""`gradaudit train`: what a defense costs in accuracy, time and privacy budget."""

import dataclasses
import pathlib
from typing import TYPE_CHECKING, Any

import typer

from gradaudit.cli import console, options

if TYPE_CHECKING:
    from gradaudit.federation.setting import Setting
    from gradaudit.federation.training import Progress

EPILOG = """[bold]Examples[/]

gradaudit train

gradaudit train --dataset mnist --rounds 30 --out runs/mnist

gradaudit train --dataset mnist --rounds 100 --out runs/mnist --resume

gradaudit train --dataset mnist --defense fed-cdp:clip=4,sigma=6 --target-epsilon 0.5

gradaudit train --centralized --dataset mnist --batch-size 600 --rounds 2000

gradaudit attack --dataset mnist --model cnn --params runs/mnist/parameters.npz

gradaudit account --log runs/mnist/rounds.csv --target-accuracy 0.9
"""


def train(
    dataset: options.SplitDataset = "digits",
    defense: options.Defense = "none",
    model: options.Model = None,
    standardize: options.Standardize = False,
    statistics: options.StatisticsWord = "private",
    centralized: options.Centralized = False,
    clients: options.Clients = None,
    clients_per_round: options.ClientsPerRound = None,
    local_steps: options.LocalSteps = None,
    batch_size: options.BatchSize = None,
    examples: options.Examples = None,
    learning_rate: options.LearningRate = None,
    optimizer: options.OptimizerWord = None,
    weighting: options.WeightingWord = None,
    partition: options.PartitionWord = None,
    selection: options.SelectionWord = None,
    batches: options.BatchesWord = None,
    public_examples: options.PublicExamples = 0,
    rounds: options.Rounds = None,
    target_accuracy: options.TargetAccuracy = None,
    target_epsilon: options.TargetEpsilon = None,
    delta: options.Delta = 1e-5,
    resume: options.Resume = False,
    overwrite: options.Overwrite = False,
    evaluate_every: options.EvaluateEvery = None,
    record_every: options.RecordEvery = None,
    chunk: options.Chunk = None,
    seed: options.Seed = 0,
    out_folder: options.Out = pathlib.Path("gradaudit-train"),
    as_json: options.Json = False,
) -> None:
    """Train under a defense: accuracy, epsilon, cost, and the gradient's norm."""
    with console.errors_in_words():
        numbers = {
            "clients": clients, "clients_per_round": clients_per_round,
            "local_steps": local_steps, "batch_size": batch_size,
            "examples": examples, "learning_rate": learning_rate, "rounds": rounds,
        }  # fmt: skip
        words = {
            "optimizer": optimizer, "weighting": weighting, "partition": partition,
            "selection": selection, "batches": batches,
        }  # fmt: skip
        setting = _setting(dataset, centralized, numbers, words)
        if evaluate_every is None:
            evaluate_every = max(1, setting.rounds // 100)
        report = _run(
            setting, statistics, dataset=dataset, defense=defense, model=model,
            standardize=standardize, public_examples=public_examples, seed=seed,
            target_accuracy=target_accuracy, target_epsilon=target_epsilon,
            delta=delta, evaluate_every=evaluate_every, record=record_every,
            chunk=chunk, out=console.ready_folder(out_folder), resume=resume,
            overwrite=overwrite,
        )  # fmt: skip
        if as_json:
            console.print_json(report)
        else:
            _print(report, out_folder)
        if report["status"] == "interrupted":
            raise typer.Exit(console.EXIT_INTERRUPTED)


def _run(setting: "Setting", statistics: str, **arguments: Any) -> dict[str, Any]:
    """Trains behind a progress bar; returns result.json."""
    from gradaudit.audit.train import train as run
    from gradaudit.audit.training_plan import Statistics

    whose = console.word("statistics", statistics, Statistics)
    with console.progress_bar("compiling", setting.rounds) as tell:

        def show(progress: "Progress") -> None:
            last = progress.last
            if last is not None:
                text = f"loss {last.training_loss:.3f}"
                if last.accuracy is not None:
                    text = f"accuracy {last.accuracy:.3f}, {text}"
                tell(text, last.round, setting.rounds)

        result = run(setting=setting, statistics=whose, on_round=show, **arguments)
    return result.to_dict()


def _setting(
    dataset: str,
    centralized: bool,
    numbers: dict[str, Any],
    words: dict[str, str | None],
) -> "Setting":
    """Returns the dataset's setting with what the command line changes."""
    from gradaudit.audit.training_plan import centralized_setting, default_setting
    from gradaudit.data import load_dataset
    from gradaudit.data.partition import parse_partition
    from gradaudit.federation.setting import Batches, Optimizer, Selection, Weighting

    members = {
        "optimizer": Optimizer,
        "weighting": Weighting,
        "selection": Selection,
        "batches": Batches,
    }
    changes = {name: value for name, value in numbers.items() if value is not None}
    for name, text in words.items():
        if text is not None:
            kind = members.get(name)
            value = console.word(name, text, kind) if kind else parse_partition(text)
            changes[name] = value
    setting = default_setting(dataset)
    if centralized:
        setting = centralized_setting(len(load_dataset(dataset, "train")))
    return dataclasses.replace(setting, **changes)


def _print(report: dict[str, Any], folder: pathlib.Path) -> None:
    from rich.markup import escape
    from rich.table import Table

    config, metrics = report["config"], report["metrics"]
    table = Table(title="training", title_justify="left", show_header=False)
    table.add_row("dataset, model", escape(f"{config['dataset']}, {config['model']}"))
    table.add_row("defense", escape(config["defense"]))
    table.add_row("rounds", f"{metrics['rounds']} ({report['stopped']['says']})")
    if metrics["accuracy"] is not None:
        table.add_row("validation accuracy", f"{metrics['accuracy']:.4f}")
    cost = metrics["milliseconds_per_client_and_iteration"]
    if cost is not None:
        table.add_row("per client and local iteration", f"{cost:.3f} ms")
    if report["rounds"] and report["status"] != "diverged":
        last = report["rounds"][-1]
        for when in ("before", "after"):
            norm = sum(value**2 for value in last[f"norm_{when}"]) ** 0.5
            table.add_row(f"gradient norm {when} the defense", f"{norm:.4g}")
    if report["accounting"] is not None:
        for name, value in report["accounting"]["epsilon"].items():
            text = value if isinstance(value, str) else f"{value:.4g}"
            table.add_row(f"epsilon, {name.replace('_', ' ')}", text)
    console.out.print(table)
    for sentence in report["limitations"]:
        console.out.print(f"[dim]{escape(sentence)}[/]", soft_wrap=True)
    console.out.print(
        f"written to {escape(str(folder))}/ (see curve.png)", soft_wrap=True
    )
