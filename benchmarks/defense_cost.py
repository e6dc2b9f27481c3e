"""What a defense costs: milliseconds per client and local iteration, in one run.

    python benchmarks/defense_cost.py [--defenses none,fed-cdp] [--chunks 5,10,50]

The papers' MNIST clients (model cnn, B = 5, 500 examples each), 100 vectorised clients.
Rounds of the defenses are interleaved, so that a busy moment meets all of them; the
ratio of the fastest rounds counts. `noise` is the time of DPFL's noise alone, for one
client's update of its MNIST model. Writes results/defense_cost.json.
"""

import argparse
import json
import time

import jax
import numpy as np
from cells import RESULTS
from rich.console import Console
from rich.table import Table

from gradaudit import defenses, machine
from gradaudit.data import Shards, load_dataset
from gradaudit.defenses.base import run
from gradaudit.federation.population import Population
from gradaudit.federation.recipe import Recipe, initial_state
from gradaudit.federation.round import run_round
from gradaudit.federation.setting import Setting
from gradaudit.models.networks import build_model

CLIENTS, STEPS, REPEATS = 100, 20, 6
# ms per local iteration of a client: Wei et al. 2023, section 7 (MNIST, GPU)
PUBLISHED = {"fed-cdp": 3.3, "quantile-clip": 8.0, "adaclip": 5.0}
DPFL_MS = {"dpfl": 4.08, "lip": 1508.98}  # 003, Table IV, MNIST


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--defenses", default="none,fed-cdp,quantile-clip,adaclip")
    parser.add_argument("--chunks", default="5,10")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    options = parser.parse_args()
    machine.configure()
    names = options.defenses.split(",")
    chunks = [int(chunk) for chunk in options.chunks.split(",")]
    costs = rounds(names, chunks, options.repeats)
    table = Table("defense", "chunk", "ms", "x none", "published")
    report = {"environment": machine.describe(), "cells": []}
    for (name, chunk), cost in costs.items():
        ratio = cost / costs["none", chunk]
        report["cells"].append(
            {"defense": name, "chunk": chunk, "ms": cost, "ratio": ratio}
        )
        published = PUBLISHED.get(name)
        table.add_row(
            name, str(chunk), f"{cost:.3f}", f"{ratio:.2f}", f"{published or '–'}"
        )
    Console().print(table)
    report["noise_ms"] = {name: noise(name) for name in DPFL_MS}
    for name, cost in report["noise_ms"].items():
        print(f"{name}: noise {cost:.3f} ms a client (published {DPFL_MS[name]} ms)")
    target = RESULTS / "defense_cost.json"
    target.write_text(json.dumps(report, indent=1) + "\n")


def rounds(names: list[str], chunks: list[int], repeats: int) -> dict:
    """Returns the fastest round of each, in ms per client and local iteration."""
    data = load_dataset("mnist", "train")
    model = build_model("cnn", data.shape, data.classes)
    setting = Setting(clients=200, local_steps=STEPS)
    held = Shards().assign(0, data.labels, setting.clients, setting.examples)
    population, key = Population.of(data, held), jax.random.key(1)
    everybody, best = np.arange(CLIENTS), {}
    for turn in range(repeats + 1):  # the first one compiles
        for chunk in chunks:
            for name in names:
                recipe = Recipe.of(model, defenses.parse(name), setting)
                state = initial_state(recipe, model.init(jax.random.key(0)))
                began = time.perf_counter()
                jax.block_until_ready(
                    run_round(recipe, population, key, state, everybody, chunk)
                )
                spent = 1e3 * (time.perf_counter() - began) / (CLIENTS * STEPS)
                if turn:
                    best[name, chunk] = min(spent, best.get((name, chunk), spent))
    return {(name, chunk): best[name, chunk] for chunk in chunks for name in names}


def noise(name: str) -> float:
    """Returns the ms in which one client's update gets its clip and noise."""
    model = build_model("dpfl-2conv", (28, 28, 1), 10)
    update = jax.tree.map(lambda leaf: leaf[None], model.init(jax.random.key(0)))
    defense = defenses.parse(name)
    states = tuple(part.init(update) for part in defense.update)

    @jax.jit
    def apply(key, update):
        return run(defense.update, key, update, states, 0)[0]

    jax.block_until_ready(apply(jax.random.key(0), update))
    began = time.perf_counter()
    for index in range(100):
        jax.block_until_ready(apply(jax.random.key(index), update))
    return 10 * (time.perf_counter() - began)


if __name__ == "__main__":
    main()
