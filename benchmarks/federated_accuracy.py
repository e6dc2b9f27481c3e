"""Non-private federated accuracy, published (Wei et al. 2021, Table I) and measured.

    python benchmarks/federated_accuracy.py cancer adult
    python benchmarks/federated_accuracy.py mnist --rounds 100 --seeds 1

1,000 clients, 100 a round, 100 local iterations, the papers' partitions. Trainings
keep their checkpoints in --work and go on from there when the program is started
again. Writes results/federated_accuracy.json, one entry per dataset.
"""

import argparse
import dataclasses
import json
import pathlib
import statistics
import tempfile

from rich.console import Console
from rich.table import Table

from gradaudit import machine
from gradaudit.audit.train import train
from gradaudit.audit.training_plan import default_setting

RESULTS = pathlib.Path(__file__).parent / "results" / "federated_accuracy.json"


@dataclasses.dataclass(frozen=True)
class Case:
    """The published accuracy, and our settings where the paper is silent."""

    published: float
    learning_rate: float = 0.05
    standardize: bool = False


CASES = {
    "mnist": Case(0.980),
    "cancer": Case(0.993, learning_rate=0.1, standardize=True),
    "adult": Case(0.8424, standardize=True),
}


def measure(name: str, seed: int, rounds: int | None, work: pathlib.Path):
    case, setting = CASES[name], default_setting(name)
    setting = dataclasses.replace(
        setting,
        learning_rate=case.learning_rate,
        rounds=rounds or setting.rounds,
    )
    folder = work / f"{name}-{seed}"
    return train(
        name,
        setting=setting,
        standardize=case.standardize,
        seed=seed,
        out=folder,
    )


def entry(name: str, runs: list) -> dict[str, object]:
    finals = [run.accuracy for run in runs]
    return {
        "settings": dataclasses.asdict(CASES[name]),
        "federation": runs[0].config["setting"],
        "rounds_done": [run.history[-1].round for run in runs],
        "accuracy": finals,
        "mean_accuracy": statistics.fmean(finals),
        "curve": [[record.accuracy for record in run.history] for run in runs],
        "milliseconds_per_client_and_iteration": [run.milliseconds for run in runs],
        "environment": machine.describe(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("datasets", nargs="+", choices=sorted(CASES))
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--work", type=pathlib.Path)
    asked = parser.parse_args()
    work = asked.work or pathlib.Path(tempfile.mkdtemp(prefix="gradaudit-accuracy-"))
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    table = Table("dataset", "rounds", "published", "measured", "each seed")
    for name in asked.datasets:
        runs = [measure(name, seed, asked.rounds, work) for seed in range(asked.seeds)]
        known[name] = row = entry(name, runs)
        RESULTS.write_text(json.dumps(known, indent=2) + "\n")
        table.add_row(
            name,
            str(row["rounds_done"][0]),
            f"{CASES[name].published:.4f}",
            f"{row['mean_accuracy']:.4f}",
            ", ".join(f"{value:.4f}" for value in row["accuracy"]),
        )
    Console().print(table)


if __name__ == "__main__":
    main()
