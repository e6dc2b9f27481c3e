"""Which defense stops which adversary: presets x types x datasets, beside the papers.

Usage: python benchmarks/resilience_grid.py [--datasets lfw-patches,mnist]
       [--defenses none,fed-sdp] [--types 2,1,0] [--out results/resilience.json]

CPL, 300 iterations at most; 100 victims for the methods of the published tables, 32
for the others, dealt over 10 draws of the network: of fewer, even no success at all
says little. Resumes: a cell that is in the file is not run again. `resilient` means
that the upper end of the ASR's interval stays below 0.5. Published: Wei et al. 2023,
Table 3; Wei et al. 2021, Table VII (resilient, distance, iterations) on MNIST and LFW.
"""

import argparse
import pathlib

from cells import RESULTS, Cells, attack_cell, rate
from rich.console import Console
from rich.table import Table

import gradaudit as ga
from gradaudit.audit.threat import transforms_seen
from gradaudit.types import Leakage

DRAWS = 10
BATCH = {"lfw-patches": 3, "mnist": 5}
# A stalled victim stops early: its objective fell by less than 1 % in 5 iterations.
METHOD = "cpl:patience=5"
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
    """Runs the missing cells and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--datasets", default="lfw-patches,mnist")
    parser.add_argument("--defenses", default=",".join(ga.defenses.PRESETS))
    parser.add_argument("--types", default="2,1,0")
    parser.add_argument("--out", type=pathlib.Path, default=RESULTS / "resilience.json")
    options = parser.parse_args()
    cells = Cells(options.out)
    published = {defense for defense, _ in PUBLISHED}
    names = sorted(options.defenses.split(","), key=lambda name: name not in published)
    for dataset in options.datasets.split(","):
        for defense in names:
            for kind in map(int, options.types.split(",")):
                run(cells, dataset, kind, defense, 100 if defense in published else 32)
    show(cells.values)


def run(cells: Cells, dataset: str, kind: int, defense: str, victims: int) -> dict:
    """Returns one cell; what reads the same bytes of the same round is not run twice.

    Where a defense acts after the adversary's tap, the victim is undefended; where
    nothing lies between the client and the server, types 1 and 0 see the same.
    """
    guard = ga.defenses.parse(defense)
    twin = kind, defense
    if kind == 0 and not guard.server:
        twin = 1, defense
    elif not transforms_seen(guard, Leakage(kind)):
        twin = kind, "none"
    name = f"{dataset} {kind} {defense}"
    if twin != (kind, defense):
        alike = run(cells, dataset, *twin, victims)
        return cells.need(
            name, lambda: {**alike, "same_as": "type {} {}".format(*twin)}
        )
    batch = BATCH[dataset]
    # The faces are 200: of batches of 3 there are 66.
    fit = min(victims, 200 // batch) if kind < 2 and dataset != "mnist" else victims
    return cells.need(
        name,
        lambda: attack_cell(
            type=kind,
            method=METHOD,
            defense=defense,
            dataset=dataset,
            victims=fit,
            draws=DRAWS,
            batch_size=batch if kind < 2 else None,
        ),
    )


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
        table.add_row(
            dataset,
            kind,
            defense,
            f"{'Y' if cell['asr']['high'] < 0.5 else 'N'} ({resilient})",
            rate(cell),
            f"{cell['rmse']:.3g} ({distance})",
            f"{cell['iterations'] or cell['cap']} ({iterations})",
        )
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
