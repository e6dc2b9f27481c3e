"""The smaller tables of the papers: one study after the other, each resumable.

    python benchmarks/studies.py                  all of them
    python benchmarks/studies.py layers rounds    only these

  layers         CPL from convolutions or dense layers only (003, Figure 1)
  batches        batches of 2, 4, 8: RMSE after matching
  surfaces       types 0, 1, 2 without a defense, 30 clients (001, Table VII)
  local-steps    5 local steps: replayed by the attack, or taken for one gradient
  rounds         type 2 at rounds 0, 1, 5, 20 of a training run
  pruning        10 to 90 % of an example's gradient dropped (001, Figure 5)
  partial-noise  noise on some layers only (003, Figure 10)

Writes results/studies.json, and figures beside it.
"""

import argparse
from collections.abc import Iterator
from typing import Any

from cells import RESULTS, Cells, attack_cell, rate
from rich.console import Console
from rich.table import Table

Arguments = dict[str, Any]
VICTIMS = 100
RATIOS = tuple(range(10, 100, 10))
SETS = ("mnist", "photos", "lfw-patches")
PUBLISHED_PRUNING = {"mnist": 40, "photos": 50, "lfw-patches": 80}
# A stalled victim stops early: its objective fell by less than 1 % in 5 iterations.
STALL = "patience=5"
LABELS_GIVEN = "curious+labels"  # with the local step that each belongs to


def layers() -> Iterator[tuple[str, Arguments]]:
    for part in ("all", "conv", "dense"):
        picture = RESULTS / f"layers-{part}.png"
        yield (
            f"from {part}",
            {
                "method": f"cpl:layers={part},{STALL}",
                "dataset": "mnist",
                "victims": VICTIMS,
                "pictures": picture,
            },
        )


def batches() -> Iterator[tuple[str, Arguments]]:
    for dataset in ("lfw-patches", "mnist"):
        for size in (2, 4, 8):
            yield (
                f"{dataset} B={size}",
                {
                    "type": 1,
                    "method": f"cpl:labels=counts,{STALL}",
                    "dataset": dataset,
                    "victims": 12,
                    "batch_size": size,
                },
            )


def surfaces() -> Iterator[tuple[str, Arguments]]:
    for dataset, batch in (("lfw-patches", 3), ("mnist", 5)):
        for kind in (2, 1, 0):
            yield (
                f"{dataset} type {kind}",
                {
                    "type": kind,
                    "dataset": dataset,
                    "victims": 30,
                    "batch_size": batch if kind < 2 else None,
                },
            )


def local_steps() -> Iterator[tuple[str, Arguments]]:
    """Labels as the gradient's sum suggests them, in any order; or given, in order."""
    attacks = (("replayed", "true"), ("as one gradient", "false"))
    for dataset in ("lfw-patches", "mnist"):
        for name, unroll in attacks:
            method = f"cpl:unroll={unroll},labels=counts,{STALL}"
            yield f"{dataset} {name}", _five_steps(dataset, method)
    for name, unroll in attacks:
        method = f"cpl:unroll={unroll},labels=known,iterations=150"
        given = _five_steps("lfw-patches", method) | {"threat": LABELS_GIVEN}
        yield f"lfw-patches {name}, labels given", given


def _five_steps(dataset: str, method: str) -> Arguments:
    return {
        "type": 1,
        "method": method,
        "dataset": dataset,
        "victims": 12,
        "batch_size": 1,
        "local_steps": 5,
    }


def rounds() -> Iterator[tuple[str, Arguments]]:
    for dataset in ("lfw-patches", "mnist"):
        steps = 6 if dataset == "lfw-patches" else 40
        for index in (0, 1, 5, 20):
            yield (
                f"{dataset} round {index}",
                {
                    "method": f"cpl:{STALL}",
                    "dataset": dataset,
                    "victims": 32,
                    "batch_size": 1 if dataset == "lfw-patches" else 5,
                    "local_steps": steps,
                    "round": index,
                },
            )


def pruning() -> Iterator[tuple[str, Arguments]]:
    for dataset in SETS:
        for ratio in RATIOS:
            yield (
                f"{dataset} {ratio} %",
                {
                    "method": f"cpl:{STALL}",
                    "defense": f"prune:ratio={ratio / 100},at=per_example",
                    "dataset": dataset,
                    "victims": 20,
                },
            )


def partial_noise() -> Iterator[tuple[str, Arguments]]:
    """As published: cosine matching, labels known; which layers carry noise is too."""
    noised = {
        "fc": ("output", ("all", "conv")),
        "conv1 + fc": ("conv1/output", ("all", "conv2")),
        "conv2 + fc": ("conv2/output", ("all", "conv1")),
        "all": ("conv1/conv2/output", ("all", "conv")),
    }
    for name, (noisy, matched) in noised.items():
        for part in matched:
            yield (
                f"noise on {name}, matching {part}",
                {
                    "type": 1,
                    "method": f"gradinv:labels=known,layers={part}",
                    "threat": LABELS_GIVEN,
                    "defense": f"lip:layers={noisy}",
                    "dataset": "mnist",
                    "model": "dpfl-2conv",
                    "victims": 32,
                    "batch_size": 1,
                },
            )


STUDIES = {
    "layers": layers,
    "batches": batches,
    "surfaces": surfaces,
    "local-steps": local_steps,
    "rounds": rounds,
    "pruning": pruning,
    "partial-noise": partial_noise,
}


def main() -> None:
    """Runs what is missing and prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("studies", nargs="*", metavar="study", default=list(STUDIES))
    options = parser.parse_args()
    unknown = set(options.studies) - set(STUDIES)
    if unknown:
        parser.error(
            f"no such study: {', '.join(unknown)}; known: {', '.join(STUDIES)}"
        )
    cells = Cells(RESULTS / "studies.json")
    for study in options.studies:
        table = Table(title=study)
        for column in ("", "ASR", "RMSE", "iterations", "run", "labels"):
            table.add_column(column)
        for name, arguments in STUDIES[study]():
            cell = cells.need(
                f"{study}: {name}", lambda given=arguments: attack_cell(**given)
            )
            table.add_row(name, rate(cell), *_figures(cell))
        Console(width=100).print(table)
    if {"rounds", "pruning"} & set(options.studies):
        draw(cells)


def _figures(cell: dict[str, Any]) -> list[str]:
    reached = cell["iterations"]
    return [
        f"{cell['rmse_median']:.2g}",
        "–" if reached is None else f"{reached:g}",
        f"{cell['spent']:g}",
        f"{cell['labels']:.2f}",
    ]


def draw(cells: Cells) -> None:
    """Draws success over the rounds and over the share that is pruned."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 3, figsize=(11, 3.2), layout="constrained")
    for dataset in ("lfw-patches", "mnist"):
        line = _line(cells, f"rounds: {dataset} round ", (0, 1, 5, 20), "")
        if line:
            asr = [cell["asr"]["value"] for _, cell in line]
            rmse = [cell["rmse_median"] for _, cell in line]
            axes[0].plot([x for x, _ in line], asr, "o-", label=dataset)
            axes[1].plot([x for x, _ in line], rmse, "o-", label=dataset)
    for dataset in SETS:
        line = _line(cells, f"pruning: {dataset} ", RATIOS, " %")
        asr = [cell["asr"]["value"] for _, cell in line]
        (drawn,) = axes[2].plot([x for x, _ in line], asr, "o-", label=dataset)
        published = PUBLISHED_PRUNING[dataset]
        axes[2].axvline(published, color=drawn.get_color(), ls=":", lw=1)
    titles = ("ASR after rounds of training", "median RMSE", "ASR, share pruned (%)")
    for axis, title in zip(axes, titles, strict=True):
        axis.set_title(title, fontsize=10)
        axis.legend(fontsize=8)
    axes[1].set_yscale("log")
    axes[0].set_ylim(-0.05, 1.05)
    axes[2].set_ylim(-0.05, 1.05)
    figure.savefig(RESULTS / "studies.png", dpi=120)


def _line(
    cells: Cells, prefix: str, values: tuple[int, ...], suffix: str
) -> list[tuple[int, Any]]:
    named = [(value, f"{prefix}{value}{suffix}") for value in values]
    return [(x, cells.values[name]) for x, name in named if name in cells.values]


if __name__ == "__main__":
    main()
