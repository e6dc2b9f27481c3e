"""`adversaries`: how strong the adversaries are, the strongest one beside CPL.

Nothing is published. Cases: what is attacked plainly, a trained model, clipped, pruned
and noisy gradients, several looks, batches, Inverting Gradients with a chosen weight,
pooling.
"""

from typing import Any

from gradaudit.benchmarks.attack_cells import VICTIMS, attacking, error, rate
from gradaudit.benchmarks.suite import (
    Benchmark,
    Cell,
    Entry,
    Measured,
    Row,
    Scale,
    Table,
    number,
)

_FACES, _MNIST = "lfw-patches", "mnist"
_NOISE = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
_PRUNED = (0.1, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9)
_BOTH = ("cpl", "strongest")
_LOOKS = (1, 4, 16)
Run = dict[str, Any]


def _threats(dataset: str, defense: str) -> list[Run]:
    curious = {"dataset": dataset, "defense": defense, "method": "cpl"}
    aware = curious | {"threat": "aware"}
    return [curious, aware, aware | {"method": "strongest"}]


def _cases(scale: Scale) -> dict[str, list[Run]]:
    """Returns the attacks of every case; fewer data sets at the small scale."""
    paper = scale is Scale.PAPER
    sets = (_FACES, _MNIST, "photos") if paper else (_FACES,)
    noise = _NOISE if paper else _NOISE[:5]
    pruned = _PRUNED if paper else (0.3, 0.6, 0.9)
    batches = (("cifar10", 2), (_MNIST, 8), (_FACES, 8)) if paper else ((_FACES, 4),)
    plain = (_FACES, _MNIST, "photos")
    return {
        "plain": [{"dataset": data, "method": m} for data in plain for m in _BOTH],
        # 30 rounds of everybody's training before the one that is read.
        "trained": [
            {
                "dataset": _MNIST, "model": "cnn", "round": 30, "batch_size": 1,
                "local_steps": 10, "draws": 1, "method": method,
            }
            for method in _BOTH
        ],
        "clip": _threats(_FACES, "fed-cdp:clip=0.5,sigma=0"),
        "prune": [
            run
            for data in sets
            for ratio in pruned
            for run in _threats(data, f"prune:ratio={ratio:g},at=per_example")
        ],
        "noise": [
            run
            for data in sets[:2]
            for sigma in noise
            for run in _threats(data, f"fed-cdp:clip=4,sigma={sigma:g}")
        ],
        "looks": [
            {
                "dataset": _FACES, "defense": "fed-cdp:clip=4,sigma=0.1",
                "threat": "aware", "method": "gauss-newton", "looks": looks,
            }
            for looks in _LOOKS
        ],
        "batches": [
            {"dataset": data, "type": 1, "batch_size": size, "method": method}
            for data, size in batches
            for method in ("cpl", "gauss-newton", "strongest")
        ],
        "gradinv": [{"dataset": data, "method": "gradinv-chosen"} for data in sets],
        "pooling": [
            {"dataset": _MNIST, "model": "ldp-cnn", "method": method}
            for method in _BOTH
        ],
    }  # fmt: skip


def _name(case: str, run: Run) -> str:
    words = [
        run["dataset"],
        run.get("defense", ""),
        run["method"],
        run.get("threat", ""),
    ]
    size = f"B={run['batch_size']}" if "type" in run else ""
    looks = f"{run['looks']} looks" if "looks" in run else ""
    return f"{case}: " + ", ".join(filter(None, [*words, size, looks]))


def cells(scale: Scale, seed: int) -> list[Cell]:
    """Returns the attacks of every case."""
    if scale is Scale.SMOKE:
        run = {"dataset": _FACES, "method": "cpl"}
        return [attacking(_name("plain", run), scale, seed, **run)]
    return [
        attacking(_name(case, run), scale, seed, **run)
        for case, runs in _cases(scale).items()
        for run in runs
    ]


def tables(measured: Measured, scale: Scale) -> list[Table]:
    """Returns a row for each attack."""
    rows: list[Row] = [
        [
            name,
            rate(cell),
            Entry(number(cell["examples_rebuilt"], 2)),
            error(cell),
            Entry(number(cell["timing"]["seconds_per_unit"], 2)),
        ]
        for name, cell in measured.items()
    ]
    heads = ["case", "ASR [95 %]", "examples rebuilt", "median RMSE", "s per victim"]
    return [Table("Measured", heads, rows)]


def differences(scale: Scale) -> list[str]:
    """Returns how to read the figures."""
    own = VICTIMS[scale]
    return [
        "nothing is published: these are ours",
        f"{own.examples} victims (type 2), {own.clients} clients (batches) on "
        f"{own.draws} draws of the network; a trained model is one draw",
    ]


ADVERSARIES = Benchmark(
    "adversaries",
    "The strongest adversary beside CPL",
    "nothing published",
    cells,
    tables,
    differences,
)
