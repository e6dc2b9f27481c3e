"""What a round costs: milliseconds per client and local iteration, and memory.

    python benchmarks/federation_speed.py            speed, then memory
    python benchmarks/federation_speed.py --no-memory

The papers' MNIST clients (model cnn, B = 5, 500 examples each), 100 clients a round.
  vectorised   chunks of clients under vmap, convolution as patches, one device per
               core (how `gradaudit train` runs)
  loop         a Python loop over one jitted client with the native convolution, on
               one device with every core: what one would write first
Every arrangement has a process of its own, because jax fixes its devices once; the
best of three rounds counts, the compiling one is left out. Memory is the peak of a
process that trains two rounds. Writes results/federation_speed.json.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import resource
import subprocess
import sys
import time

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

from gradaudit import defenses, machine
from gradaudit.data import Shards, load_dataset
from gradaudit.federation.client import train_client
from gradaudit.federation.population import Population
from gradaudit.federation.recipe import Recipe, client_key, initial_state
from gradaudit.federation.round import aggregate, run_round, weighted_sum
from gradaudit.federation.setting import Setting
from gradaudit.models.convolution import Path
from gradaudit.models.networks import build_model

RESULTS = pathlib.Path(__file__).parent / "results" / "federation_speed.json"
DEFENSES = {"none": defenses.none(), "fed-cdp": defenses.fed_cdp()}
CHUNKS = (2, 5, 10)
PARTICIPANTS, STEPS, REPEATS = 100, 20, 3


def setup(defense: str, path: Path, clients: int, steps: int):
    data = load_dataset("mnist", "train")
    model = build_model("cnn", data.shape, data.classes, path)
    setting = Setting(clients=clients, local_steps=steps)
    held = Shards().assign(0, data.labels, clients, setting.examples)
    recipe = Recipe.of(model, DEFENSES[defense], setting)
    state = initial_state(recipe, model.init(jax.random.key(0)))
    return recipe, Population.of(data, held), jax.random.key(1), state


def vectorised_round(recipe, population, key, state, chunk: int):
    return run_round(recipe, population, key, state, np.arange(PARTICIPANTS), chunk)[0]


_CLIENT = jax.jit(train_client, static_argnums=0)


def looped_round(recipe, population, key, state):
    total = None
    for client in range(PARTICIPANTS):
        own = client_key(key, state.round, client)
        update = _CLIENT(recipe, population, own, state, client).update
        alone = jax.tree.map(lambda leaf: leaf[None], update)
        added = weighted_sum(alone, jax.numpy.ones(1))
        total = added if total is None else jax.tree.map(jax.numpy.add, total, added)
    params = aggregate(state.params, total, jax.numpy.float32(PARTICIPANTS))
    return dataclasses.replace(state, params=params)


def milliseconds(function) -> float:
    jax.block_until_ready(function())
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        jax.block_until_ready(function())
        times.append(time.perf_counter() - began)
    return 1e3 * min(times) / (PARTICIPANTS * STEPS)


def measure(kind: str, defense: str, chunk: int) -> float:
    if kind == "loop":
        parts = setup(defense, Path.NATIVE, 200, STEPS)
        return milliseconds(lambda: looped_round(*parts))
    parts = setup(defense, Path.AUTO, 200, STEPS)
    return milliseconds(lambda: vectorised_round(*parts, chunk))


def peak_megabytes(clients: int) -> float:
    recipe, population, key, state = setup("none", Path.AUTO, clients, 5)
    for _ in range(2):
        state = vectorised_round(recipe, population, key, state, 10)
    jax.block_until_ready(state)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def in_process(*arguments: object, devices: int | None = None) -> float:
    """Runs one measurement of this file in a fresh process."""
    settings = {} if devices is None else {"JAX_NUM_CPU_DEVICES": str(devices)}
    command = [sys.executable, __file__, "--one", *map(str, arguments)]
    done = subprocess.run(
        command, env=os.environ | settings, capture_output=True, text=True, check=True
    )
    return float(done.stdout.split()[-1])


def speeds() -> dict[str, dict[str, float]]:
    found = {}
    for defense in DEFENSES:
        row = {"loop, one device": in_process("loop", defense, 0, devices=1)}
        for chunk in CHUNKS:
            row[f"chunk {chunk}"] = in_process("vectorised", defense, chunk)
        row["chunk 5, one device"] = in_process("vectorised", defense, 5, devices=1)
        best = min(row[f"chunk {chunk}"] for chunk in CHUNKS)
        row["speedup over the loop"] = row["loop, one device"] / best
        found[defense] = row
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    machine.configure()
    if asked.one is not None:
        kind, defense, number = asked.one
        value = (
            peak_megabytes(int(number))
            if kind == "memory"
            else measure(kind, defense, int(number))
        )
        print(value)
        return
    report = {
        "environment": machine.describe(),
        "load_average_before": os.getloadavg(),  # a busy machine disturbs the figures
        "milliseconds_per_client_and_iteration": speeds(),
    }
    if not asked.no_memory:
        report["peak_megabytes"] = {
            f"{count} clients": in_process("memory", "none", count)
            for count in (1000, 10000)
        }
    RESULTS.write_text(json.dumps(report, indent=2) + "\n")
    table = Table("arrangement", *DEFENSES)
    rows = report["milliseconds_per_client_and_iteration"]
    for name in rows["none"]:
        table.add_row(name, *(f"{rows[defense][name]:.3f}" for defense in DEFENSES))
    Console().print(table)
    print(report.get("peak_megabytes", ""))


if __name__ == "__main__":
    main()
