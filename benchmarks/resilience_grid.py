"""Which defense stops which adversary: presets x types x datasets, beside the papers.

Usage: python benchmarks/resilience_grid.py [--datasets lfw-patches,mnist]
       [--defenses none,fed-sdp] [--types 2,1,0] [--victims 100]
       [--iterations 300] [--out benchmarks/results/resilience.json]

Resumes: a cell that is in the output file is not run again. `resilient` means that the
upper end of the ASR's interval stays below 0.5. Published: Wei et al. 2023, Table 3;
Wei et al. 2021, Table VII (resilient, distance, iterations) on MNIST and LFW.
"""

import argparse
import json
import pathlib

from rich.console import Console
from rich.table import Table

import gradaudit as ga

BATCH = {"lfw-patches": 3, "mnist": 5, "photos": 4, "digits": 3}
# (defense, type): MNIST (distance, iterations), LFW (distance, iterations)
_LEAKS_BATCH = ((0.1549, 6), (0.2214, 24))
_LEAKS_EXAMPLE = ((0.0008, 7), (0.0015, 25))
_SDP = ((0.6991, 300), (0.7352, 300))
PUBLISHED = {
    ("none", 0): _LEAKS_BATCH,
    ("none", 1): _LEAKS_BATCH,
    ("none", 2): _LEAKS_EXAMPLE,
    ("fed-sdp", 0): _SDP,
    ("fed-sdp", 1): _LEAKS_BATCH,
    ("fed-sdp", 2): _LEAKS_EXAMPLE,
    ("fed-sdp-client", 0): _SDP,
    ("fed-sdp-client", 1): _SDP,
    ("fed-sdp-client", 2): _LEAKS_EXAMPLE,
    ("fed-cdp", 0): ((0.7695, 300), (0.8036, 300)),
    ("fed-cdp", 1): ((0.7695, 300), (0.8036, 300)),
    ("fed-cdp", 2): ((0.739, 300), (0.6626, 300)),
    ("fed-cdp-decay", 0): ((0.937, 300), (0.941, 300)),
    ("fed-cdp-decay", 1): ((0.937, 300), (0.941, 300)),
    ("fed-cdp-decay", 2): ((0.943, 300), (0.945, 300)),
    ("fed-alpha-cdp-sigma", 0): ((0.937, 300), (0.9417, 300)),
    ("fed-alpha-cdp-sigma", 1): ((0.937, 300), (0.9417, 300)),
    ("fed-alpha-cdp-sigma", 2): ((0.9415, 300), (0.947, 300)),
    ("quantile-clip", 0): ((0.4113, 9), (0.3955, 28)),
    ("quantile-clip", 1): ((0.5113, 9), (0.3955, 28)),
    ("quantile-clip", 2): ((0.1252, 9), (0.3955, 28)),
    ("adaclip", 0): ((0.4647, 9), (0.3421, 27)),
    ("adaclip", 1): ((0.4647, 9), (0.3421, 27)),
    ("adaclip", 2): ((0.2465, 9), (0.3421, 27)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--datasets", default="lfw-patches,mnist")
    parser.add_argument("--defenses", default=",".join(ga.defenses.PRESETS))
    parser.add_argument("--types", default="2,1,0")
    parser.add_argument("--victims", type=int, default=100)
    parser.add_argument("--iterations", type=int, default=300)
    parser.add_argument("--out", default="benchmarks/results/resilience.json")
    options = parser.parse_args()
    target = pathlib.Path(options.out)
    cells = json.loads(target.read_text()) if target.exists() else {}
    for dataset in options.datasets.split(","):
        for kind in map(int, options.types.split(",")):
            for defense in options.defenses.split(","):
                name = f"{dataset} {kind} {defense}"
                if cells.get(name, {}).get("victims", 0) >= options.victims:
                    continue
                cells[name] = run(dataset, kind, defense, options)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(json.dumps(cells, indent=1) + "\n")
                print(name, json.dumps(cells[name]), flush=True)
    show(cells)


def run(dataset: str, kind: int, defense: str, options: argparse.Namespace) -> dict:
    result = ga.attack(
        type=kind,
        defense=defense,
        dataset=dataset,
        victims=options.victims,
        batch_size=BATCH.get(dataset, 3) if kind < 2 else None,
        iterations=options.iterations,
    ).to_dict()
    metrics = result["metrics"]
    return {
        "victims": result["victims"],
        "asr": metrics["asr"],
        "rmse": metrics["rmse"]["mean"],
        "rmse_median": metrics["rmse"]["median"],
        "rmse_raw": metrics["rmse_raw"]["median"],
        "iterations": metrics["iterations"]["median"],
        "cap": metrics["iterations"]["cap"],
        "resilient": metrics["asr"]["high"] < 0.5,
        "status": result["status"],
        "seconds": result["timing"]["total_s"],
    }


def show(cells: dict[str, dict]) -> None:
    table = Table(title="resilience, measured (published)")
    for column in ("data", "type", "defense", "resilient", "ASR", "RMSE", "iterations"):
        table.add_column(column)
    for name, cell in cells.items():
        dataset, kind, defense = name.split()
        published = PUBLISHED.get((defense, int(kind)))
        column = {"mnist": 0, "lfw-patches": 1}.get(dataset)
        distance, iterations = ("–", "–")
        if published is not None and column is not None:
            distance, iterations = published[column]
        resilient = "–" if iterations == "–" else ("Y" if iterations == 300 else "N")
        asr = cell["asr"]
        table.add_row(
            dataset,
            kind,
            defense,
            f"{'Y' if cell['resilient'] else 'N'} ({resilient})",
            f"{asr['value']:.2f} [{asr['low']:.2f}, {asr['high']:.2f}]",
            f"{cell['rmse']:.3g} ({distance})",
            f"{cell['iterations'] or cell['cap']} ({iterations})",
        )
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
