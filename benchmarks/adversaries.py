"""How strong the adversaries are: the strongest one, case by case, beside CPL.

Usage: python benchmarks/adversaries.py CASE [--victims 16] [--seeds 8,9]
Cases: faces mnist photos trained clip prune noise batches gradinv pooling

One JSON line per run: the rate, its interval, examples rebuilt, each member's own rate,
what its own objective says is not solved, the CPU seconds.
"""

import argparse
import json
import time
from typing import Any

import gradaudit as ga

FACES, MNIST = "lfw-patches", "mnist"
_NOISE = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
_PRUNED = (0.1, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9)


def _prune(ratio: float) -> str:
    return f"prune:ratio={ratio},at=per_example"


def _plain(dataset: str) -> list[dict[str, Any]]:
    methods = ("cpl", "strongest")
    return [{"dataset": dataset, "method": m, "draws": 1} for m in methods]


def _threats(dataset: str, defense: str) -> list[dict[str, Any]]:
    curious = {"dataset": dataset, "defense": defense, "method": "cpl"}
    aware = curious | {"threat": "aware"}
    return [curious, aware, aware | {"method": "strongest"}]


def _batches(dataset: str, size: int, method: str) -> dict[str, Any]:
    return {"dataset": dataset, "type": 1, "batch_size": size, "method": method}


CASES: dict[str, list[dict[str, Any]]] = {
    "faces": _plain(FACES),
    "mnist": _plain(MNIST),
    "photos": _plain("photos"),
    # 30 rounds of everybody's training before the one that is read.
    "trained": [
        {"dataset": MNIST, "model": "cnn", "round": 30, "batch_size": 1,
         "local_steps": 10, "method": method}
        for method in ("cpl", "strongest")
    ],
    "clip": _threats(FACES, "fed-cdp:clip=0.5,sigma=0"),
    "prune": [
        run
        for data in (FACES, MNIST, "photos")
        for ratio in _PRUNED
        for run in _threats(data, _prune(ratio))
    ],
    "noise": [
        run
        for data in (FACES, MNIST)
        for sigma in _NOISE
        for run in _threats(data, f"fed-cdp:clip=4,sigma={sigma}")
    ],
    "batches": [
        _batches(data, size, method)
        for data, size in (("cifar10", 2), (MNIST, 8), (FACES, 8))
        for method in ("cpl", "gauss-newton", "strongest")
    ],
    "gradinv": [
        {"dataset": data, "method": "gradinv-chosen"}
        for data in (MNIST, FACES, "photos")
    ],
    "pooling": [
        {"dataset": MNIST, "model": "ldp-cnn", "method": method}
        for method in ("cpl", "strongest")
    ],
}  # fmt: skip


def main() -> None:
    """Runs the cases that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", choices=sorted(CASES))
    parser.add_argument("--victims", type=int, default=16)
    parser.add_argument("--seeds", default="0")
    asked = parser.parse_args()
    for seed in map(int, asked.seeds.split(",")):
        for run in CASES[asked.case]:
            began = time.process_time()
            result = ga.attack(**run, victims=asked.victims, seed=seed)
            metrics = result.to_dict()["metrics"]
            kept = ("asr", "examples_rebuilt", "rmse", "members", "unsolved")
            line = run | {"seed": seed} | {name: metrics[name] for name in kept}
            line["cpu_s"] = round(time.process_time() - began, 1)
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
