"""`gradaudit train`: what a defense costs in accuracy, time and privacy budget."""

import pathlib
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from gradaudit.cli import console, options
from gradaudit.cli.options import option

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
_SPEED = "Speed"

SplitDataset = Annotated[str, option("A dataset with a train and a test split.")]
Model = Annotated[str | None, option("A model; default: cnn (images), mlp (tables).")]
Standardize = Annotated[
    bool, option("Features to mean 0, deviation 1.", "--standardize")
]
StatisticsWord = Annotated[
    str,
    option(
        "Of --standardize: private (no epsilon counts them), or public (those of "
        "the server's --public-examples)."
    ),
]
Centralized = Annotated[
    bool, option("One client with all data, a step a round.", "--centralized")
]
LearningRate = Annotated[
    float | None, option("The clients' step size.", panel=options.SETTING)
]
OptimizerWord = Annotated[str | None, option("sgd or adam.", panel=options.SETTING)]
WeightingWord = Annotated[
    str | None, option("uniform or examples.", panel=options.SETTING)
]
PublicExamples = Annotated[
    int,
    option(
        "The server fine-tunes on this many examples of its own.", panel=options.SETTING
    ),
]
TargetAccuracy = Annotated[float | None, option("Stop here.", panel=options.STOP)]
TargetEpsilon = Annotated[
    float | None, option("Stop before what is spent exceeds this.", panel=options.STOP)
]
Delta = Annotated[float, option("Of epsilon.", panel=options.STOP)]
Resume = Annotated[
    bool,
    option(
        "Go on from the checkpoint in --out, or fail.", "--resume", panel=options.STOP
    ),
]
EvaluateEvery = Annotated[
    int | None, option("Rounds between two validations.", panel=_SPEED)
]
RecordEvery = Annotated[
    int | None,
    option(
        "Keep every so many rounds for `attack --run` (default: 1, 2, 4, 8 ... and "
        "the last).",
        panel=_SPEED,
    ),
]
Chunk = Annotated[
    int | None,
    option(
        "Clients vectorised together (default: what a core's cache holds).",
        panel=_SPEED,
    ),
]


@console.errors_in_words()
def train(
    context: typer.Context,
    dataset: SplitDataset = "digits",
    defense: options.Defense = "none",
    model: Model = None,
    standardize: Standardize = False,
    statistics: StatisticsWord = "private",
    centralized: Centralized = False,
    clients: options.Clients = None,
    clients_per_round: options.ClientsPerRound = None,
    local_steps: options.LocalSteps = None,
    batch_size: options.BatchSize = None,
    examples: options.Examples = None,
    learning_rate: LearningRate = None,
    optimizer: OptimizerWord = None,
    weighting: WeightingWord = None,
    partition: options.PartitionWord = None,
    selection: options.SelectionWord = None,
    batches: options.BatchesWord = None,
    public_examples: PublicExamples = 0,
    rounds: options.Rounds = None,
    target_accuracy: TargetAccuracy = None,
    target_epsilon: TargetEpsilon = None,
    delta: Delta = 1e-5,
    resume: Resume = False,
    overwrite: options.Overwrite = False,
    evaluate_every: EvaluateEvery = None,
    record_every: RecordEvery = None,
    chunk: Chunk = None,
    seed: options.Seed = 0,
    out_folder: options.Out = pathlib.Path("gradaudit-train"),
    as_json: options.Json = False,
) -> None:
    """Train under a defense: accuracy, epsilon, cost, and the gradient's norm."""
    from gradaudit.audit.train import train as run
    from gradaudit.audit.training_plan import Statistics

    setting = _setting(context)
    whose = options.word("statistics", statistics, Statistics)
    if evaluate_every is None:
        evaluate_every = max(1, setting.rounds // 100)
    folder = console.ready_folder(out_folder)
    with console.progress_bar("compiling", setting.rounds) as tell:

        def show(progress: "Progress") -> None:
            last = progress.last
            if last is not None:
                text = f"loss {last.training_loss:.3f}"
                if last.accuracy is not None:
                    text = f"accuracy {last.accuracy:.3f}, {text}"
                tell(text, last.round, setting.rounds)

        asked = options.told(context, run)
        result = run(
            **asked | {"statistics": whose, "evaluate_every": evaluate_every},
            setting=setting,
            record=record_every,
            out=folder,
            on_round=show,
        )
    report = result.to_dict()
    if as_json:
        console.print_json(report)
    else:
        _print(report, folder)
    if report["status"] == "interrupted":
        raise typer.Exit(console.EXIT_INTERRUPTED)


def _setting(context: typer.Context) -> "Setting":
    """Returns the dataset's setting with what the command line changes."""
    from gradaudit.audit.training_plan import centralized_setting, default_setting
    from gradaudit.data import load_dataset

    dataset = context.params["dataset"]
    setting = default_setting(dataset)
    if context.params["centralized"]:
        setting = centralized_setting(len(load_dataset(dataset, "train")))
    return options.changed_setting(context, setting)


def _print(report: dict[str, Any], folder: pathlib.Path) -> None:
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
    where = f"written to {folder}/ (see curve.png)"
    console.out.print(where, markup=False, soft_wrap=True)
