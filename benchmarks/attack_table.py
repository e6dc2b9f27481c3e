"""Type-2 attacks side by side: CPL, DLG, iDLG, Inverting Gradients, beside the paper.

Usage: python benchmarks/attack_table.py [--victims 100] [--draws 10]
       [--methods cpl,dlg] [--datasets lfw-patches,mnist,photos]
       [--out benchmarks/results/attacks.json]

The published figures are those of Wei et al. 2023, Table 1 (ASR, RMSE, iterations), on
MNIST, CIFAR-10 and LFW; our colour set is `photos` and our faces are `lfw-patches`.
"""

import argparse
import json
import pathlib

from rich.console import Console
from rich.table import Table

import gradaudit as ga

METHODS = {
    "cpl": "cpl",
    "dlg": "dlg",
    "idlg": "idlg",
    "gradinv": "gradinv:iterations=2400",
}
PUBLISHED = {  # (method, paper's set): ASR, RMSE, iterations
    ("dlg", "mnist"): (0.686, 0.145, 18.4),
    ("dlg", "photos"): (0.754, 0.109, 114.5),
    ("dlg", "lfw-patches"): (0.857, 0.089, 69.2),
    ("gradinv", "mnist"): (1.0, 0.122, 846),
    ("gradinv", "photos"): (0.985, 0.095, 2135),
    ("gradinv", "lfw-patches"): (0.994, 0.071, 1826),
    ("cpl", "mnist"): (1.0, 0.120, 11.5),
    ("cpl", "photos"): (0.973, 0.094, 28.3),
    ("cpl", "lfw-patches"): (1.0, 0.067, 25),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--victims", type=int, default=100)
    parser.add_argument("--draws", type=int, default=10, help="of the network")
    parser.add_argument("--iterations", type=int, help="instead of the method's own")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--datasets", default="lfw-patches,mnist,photos")
    parser.add_argument("--out", default="benchmarks/results/attacks.json")
    options = parser.parse_args()
    target = pathlib.Path(options.out)
    rows = json.loads(target.read_text()) if target.exists() else {}
    for dataset in options.datasets.split(","):
        for name in options.methods.split(","):
            result = ga.attack(
                type=2,
                method=METHODS[name],
                dataset=dataset,
                victims=options.victims,
                draws=options.draws,
                iterations=options.iterations,
            )
            rows[f"{name} {dataset}"] = result.to_dict()
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(json.dumps(rows, indent=1) + "\n")
            result.save(pathlib.Path("runs") / f"{name}-{dataset}")
            show(rows)


def show(rows: dict[str, dict]) -> None:
    table = Table(title="type 2, no defense: measured (published)")
    for column in (
        "attack",
        "data",
        "ASR [95 %]",
        "median RMSE",
        "iterations",
        "labels",
    ):
        table.add_column(column)
    for key, row in rows.items():
        name, dataset = key.split()
        asr, rmse, iterations = PUBLISHED.get((name, dataset), ("–",) * 3)
        m = row["metrics"]
        reached = m["iterations"]["median"]  # of those that succeeded
        table.add_row(
            name,
            dataset,
            f"{m['asr']['value']:.2f} [{m['asr']['low']:.2f}, {m['asr']['high']:.2f}]"
            f" ({asr})",
            f"{m['rmse']['median']:.1e} ({rmse})",
            f"{'–' if reached is None else f'{reached:g}'} ({iterations})",
            f"{m['label_accuracy']:.2f}",
        )
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
