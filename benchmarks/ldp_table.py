"""Matsumoto et al. 2022: measured epsilon of six adversaries, published beside it.

    python benchmarks/ldp_table.py run mnist benign ...  adversaries of Figures 2, 5, 6
    python benchmarks/ldp_table.py clients 1 2 4 10      rows of Table 3
    python benchmarks/ldp_table.py rates                 the server's learning rate
    python benchmarks/ldp_table.py norms                 Figure 3
    python benchmarks/ldp_table.py show                  everything measured so far

`--black-trials 2000` makes the black box's measurements that short (the white box costs
nothing); each row holds the number of its trials.

Every part adds its rows to results/ldp_table.json, so that the parts can be run apart.
The paper prints few numbers: of Figures 2, 5 and 6 there are those of its text only.
"""

import argparse
import dataclasses
import json
import pathlib
import time
from typing import Any

import jax

from gradaudit import __version__, machine
from gradaudit.data import load_dataset
from gradaudit.distinguish import (
    ADVERSARIES,
    Box,
    Cell,
    LdpConfig,
    Server,
    norm_sweep,
    play_cells,
)
from gradaudit.files import finite
from gradaudit.models.networks import build_model

RESULTS = pathlib.Path(__file__).parent / "results" / "ldp_table.json"
DATASETS = ("mnist", "fashion-mnist", "cifar10")
EPSILONS = (0.5, 1.0, 2.0, 4.0)
CLIENTS = (1, 2, 4, 10)
NORMS = (0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0)  # in units of the clip

# (dataset, adversary, box, epsilon) -> section 4.2; every other cell is a figure only.
PUBLISHED = {
    ("mnist", "benign", "white", 4.0): "0.94",
    ("mnist", "gradient-flip", "white", 4.0): "3.99",
    ("mnist", "collusion", "white", 0.5): "reaches 0.5",
    ("mnist", "collusion", "white", 1.0): "reaches 1",
    ("mnist", "collusion", "white", 2.0): "reaches 2",
    ("mnist", "collusion", "white", 4.0): "4.07",
}
PUBLISHED_CLIENTS = {1: 0.12, 2: 0.07, 4: 0.06, 10: 0.06}  # Table 3, epsilon unstated


def measure(dataset_name: str, config: LdpConfig) -> tuple[list[dict[str, Any]], float]:
    dataset = load_dataset(dataset_name)
    model = build_model("ldp-cnn", dataset.shape, dataset.classes)
    start = time.perf_counter()
    rows = [row(cell) for cell in play_cells(model, dataset, config)]
    return rows, time.perf_counter() - start


def row(cell: Cell) -> dict[str, Any]:
    values: dict[str, Any] = finite(cell.plain())
    values["measurements"] = [round(value, 4) for value in cell.measurements]
    return values


def run(dataset: str, adversary: str, black_trials: int) -> None:
    config = LdpConfig(
        epsilons=EPSILONS,
        adversaries=(ADVERSARIES[adversary],),
        black_trials=black_trials,
    )
    rows, seconds = measure(dataset, config)
    for entry in rows:
        key = (dataset, adversary, entry["box"], entry["epsilon"])
        entry["published"] = PUBLISHED.get(key)
    save(
        "table", f"{dataset}/{adversary}", {"seconds": round(seconds, 1), "rows": rows}
    )


def clients(count: int, trials: int) -> None:
    config = LdpConfig(
        epsilons=EPSILONS,
        adversaries=(ADVERSARIES["benign"],),
        boxes=(Box.BLACK,),
        clients=count,
        black_trials=trials,
    )
    rows, seconds = measure("mnist", config)
    entry = {"seconds": round(seconds, 1), "rows": rows}
    save("clients", str(count), entry | {"published": PUBLISHED_CLIENTS.get(count)})


def rates() -> None:
    """How far the black box depends on the learning rate, which is not published."""
    chosen = (ADVERSARIES["benign"], ADVERSARIES["gradient-flip"])
    servers = [Server(rate) for rate in (1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)]
    for server in [*servers, Server(0.01, as_printed=True)]:
        config = LdpConfig(
            epsilons=(1.0, 4.0),
            adversaries=chosen,
            boxes=(Box.BLACK,),
            measurements=5,
            black_trials=1_000,
            server=server,
        )
        rows, seconds = measure("mnist", config)
        name = f"{server.learning_rate:g}" + (
            " as printed" if server.as_printed else ""
        )
        save("rates", name, {"seconds": round(seconds, 1), "rows": rows})


def norms() -> None:
    start = time.perf_counter()
    points = norm_sweep(jax.random.key(0), 13_722, EPSILONS, NORMS)
    rows = [dataclasses.asdict(point) for point in points]
    seconds = round(time.perf_counter() - start, 1)
    save("norms", "dummy-gradient, white box", {"seconds": seconds, "rows": rows})


def save(part: str, name: str, entry: dict[str, Any]) -> None:
    results = load()
    results["environment"] = {
        "gradaudit": __version__,
        "jax": jax.__version__,
        "backend": jax.default_backend(),
        "network": "ldp-cnn, fresh Glorot parameters, seed 0",
        "measurements": "10, each with its own pair of inputs (rates: 5)",
    }
    results.setdefault(part, {})[name] = entry
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=1, allow_nan=False) + "\n")


def load() -> dict[str, Any]:
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {}


def show() -> None:
    results = load()
    print("| data | adversary | box | " + " | ".join(f"ε = {e:g}" for e in EPSILONS))
    for name, entry in results.get("table", {}).items():
        for box in ("black", "white"):
            cells = [cell for cell in entry["rows"] if cell["box"] == box]
            print(f"| {name.replace('/', ' | ')} | {box} | {_line(cells)} |")
    for name, entry in results.get("clients", {}).items():
        line = _line(entry["rows"])
        print(f"clients {name:>3}: {line} (published {entry['published']})")
    for entry in results.get("norms", {}).values():
        for point in entry["rows"]:
            exact = f"{point['mean']:.2f} (exact {point['exact']:.2f})"
            print(f"norm {point['norm']:g}, ε = {point['epsilon']:g}: {exact}")
    for name, entry in results.get("rates", {}).items():
        for cell in entry["rows"]:
            words = f"{cell['adversary']} at {cell['epsilon']:g}: {cell['mean']:.2f}"
            print(f"learning rate {name:>16}: {words}")


def _line(cells: list[dict[str, Any]]) -> str:
    return " | ".join(_words(cell) for cell in cells)


def _words(cell: dict[str, Any]) -> str:
    published = cell.get("published")
    text = f"{cell['mean']:.2f} ± {cell['spread']:.2f}"
    return text + (f" (published {published})" if published else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parts = parser.add_subparsers(dest="part", required=True)
    table = parts.add_parser("run")
    table.add_argument("dataset", choices=DATASETS)
    table.add_argument("adversary", choices=ADVERSARIES, nargs="+")
    table.add_argument("--black-trials", type=int, default=10_000)
    several = parts.add_parser("clients")
    several.add_argument("count", type=int, choices=CLIENTS, nargs="+")
    several.add_argument("--black-trials", type=int, default=10_000)
    for name in ("rates", "norms", "show"):
        parts.add_parser(name)
    arguments = parser.parse_args()
    machine.configure()
    if arguments.part == "run":
        for adversary in arguments.adversary:
            run(arguments.dataset, adversary, arguments.black_trials)
    elif arguments.part == "clients":
        for count in arguments.count:
            clients(count, arguments.black_trials)
    else:
        {"rates": rates, "norms": norms, "show": show}[arguments.part]()


if __name__ == "__main__":
    main()
