"""`speed`: ratios of one run on one machine.

Ours beside what one would write first, or beside the papers' torch code: the same work
on both sides, in turns or one after the other, the fastest turn of each.
"""

import dataclasses
import pathlib
import resource
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from gradaudit import defenses, machine
from gradaudit.benchmarks.apart import in_process
from gradaudit.benchmarks.attack_race import measure_attack_race
from gradaudit.benchmarks.kernels import measure_kernels
from gradaudit.benchmarks.suite import (
    Benchmark,
    Cell,
    Context,
    Entry,
    Measured,
    Plain,
    Row,
    Scale,
    Table,
    found,
    number,
)
from gradaudit.data import Shards, load_dataset
from gradaudit.federation.client import train_client
from gradaudit.federation.recipe import (
    Population,
    Recipe,
    ServerState,
    client_key,
    initial_state,
)
from gradaudit.federation.round import aggregate, run_round, weighted_sum
from gradaudit.federation.setting import Setting
from gradaudit.models.convolution import Path
from gradaudit.models.networks import build_model
from gradaudit.types import Key

_Parts = tuple[Recipe, Population, Key, ServerState]


def _federation(
    dataset: str, defense: str, path: str, clients: int, steps: int
) -> _Parts:
    data = load_dataset(dataset, "train")
    model = build_model("cnn", data.shape, data.classes, Path(path))
    held = min(500, len(data) // clients // 2 * 2)
    setting = Setting(
        clients=clients, clients_per_round=clients, local_steps=steps, examples=held
    )
    assigned = Shards().assign(0, data.labels, clients, setting.examples)
    recipe = Recipe.of(model, defenses.parse(defense), setting)
    state = initial_state(recipe, model.init(jax.random.key(0)))
    return recipe, Population.of(data, assigned), jax.random.key(1), state


def _fastest(function: Callable[[], object], repeats: int) -> float:
    jax.block_until_ready(function())  # type: ignore[no-untyped-call]
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        jax.block_until_ready(function())  # type: ignore[no-untyped-call]
        times.append(time.perf_counter() - began)
    return min(times)


def vectorised(
    dataset: str, defense: str, clients: int, steps: int, repeats: int
) -> Plain:
    """Times a round as `gradaudit train` runs it."""
    machine.configure()
    recipe, population, key, state = _federation(
        dataset, defense, "auto", clients, steps
    )
    everybody = np.arange(clients)
    seconds = _fastest(
        lambda: run_round(recipe, population, key, state, everybody)[0], repeats
    )
    return {"milliseconds": 1e3 * seconds / (clients * steps)}


_CLIENT = jax.jit(train_client, static_argnums=0)


def looped(dataset: str, defense: str, clients: int, steps: int, repeats: int) -> Plain:
    """Times a loop over one jitted client with the native convolution."""
    machine.configure()
    recipe, population, key, state = _federation(
        dataset, defense, "native", clients, steps
    )

    def once() -> ServerState:
        total = None
        for client in range(clients):
            own = client_key(key, state.round, client)
            update = _CLIENT(recipe, population, own, state, client).update
            alone = jax.tree.map(lambda leaf: leaf[None], update)
            added = weighted_sum(alone, jnp.ones(1))
            total = added if total is None else jax.tree.map(jnp.add, total, added)
        params = aggregate(state.params, total, jnp.float32(clients))
        return dataclasses.replace(state, params=params)

    return {"milliseconds": 1e3 * _fastest(once, repeats) / (clients * steps)}


def measure_clients(
    context: Context,
    *,
    dataset: str,
    defense: str,
    clients: int,
    steps: int,
    repeats: int,
) -> Plain:
    """Compares vectorised clients with a loop, each in a process of its own.

    The loop has one device with every core, which suits it best.
    """
    work: Plain = {
        "dataset": dataset,
        "defense": defense,
        "clients": clients,
        "steps": steps,
        "repeats": repeats,
    }
    ours = in_process(vectorised, **work)["milliseconds"]
    loop = in_process(looped, devices=1, **work)["milliseconds"]
    ratio = loop / ours
    return {"timing": {"vectorised_ms": ours, "loop_ms": loop, "ratio": ratio}}


def peak(victims: int, iterations: int, dataset: str, slots: int) -> Plain:
    """Attacks; returns the largest resident set in megabytes."""
    import gradaudit

    result = gradaudit.attack(
        dataset=dataset,
        method=f"cpl:iterations={iterations}",
        victims=victims,
        draws=1,
        slots=slots,
    )
    return {"megabytes": _largest_resident(), "victims": len(result.scores)}


def _largest_resident() -> float:
    """Returns this process's own, in megabytes.

    Linux hands `ru_maxrss` on to a child: it would be the parent's, if that was larger.
    """
    status = pathlib.Path("/proc/self/status")
    if status.exists():
        lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
        return int(lines["VmHWM"].split()[0]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure_memory(
    context: Context, *, dataset: str, victims: list[int], iterations: int
) -> Plain:
    """Compares the peak memory of attacks on few and on many victims."""
    work: Plain = {"iterations": iterations, "dataset": dataset, "slots": 16}
    # Compiling has a peak of its own: the cache is filled before anything counts.
    in_process(peak, victims=64, **work)
    peaks = [in_process(peak, victims=count, **work)["megabytes"] for count in victims]
    growth = peaks[-1] / peaks[0] - 1
    return {"timing": {"victims": victims, "megabytes": peaks, "growth": growth}}


def account_once(sigma: str) -> Plain:
    """Times one whole call, imports included."""
    began = time.perf_counter()
    from gradaudit.privacy import account, gaussian

    schedule = 15.757 * np.exp(-1.662e-4 * np.arange(10_000))
    noise = schedule if sigma == "schedule" else 6.0
    account(gaussian(noise, 0.01, None if sigma == "schedule" else 10_000), 1e-5)
    return {"seconds": time.perf_counter() - began}


def measure_accounting(context: Context) -> Plain:
    """Times all methods on 10,000 steps, of one sigma and of 10,000 different ones."""
    spent = {name: in_process(account_once, sigma=name) for name in ("6", "schedule")}
    return {"timing": {name: value["seconds"] for name, value in spent.items()}}


def cells(scale: Scale, seed: int) -> list[Cell]:
    """Returns the races."""
    if scale is Scale.SMOKE:
        kernels = {"dataset": "digits", "model": "dpfl-2conv", "examples": 2}
        kernels |= {"rounds": 1, "paths": ["native", "auto"]}
        return [Cell("kernels", measure_kernels, kernels)]
    paper = scale is Scale.PAPER
    kernels = {"dataset": "lfw-patches", "model": "cpl", "examples": 100, "rounds": 20}
    kernels |= {"paths": ["native", "patches", "auto"]}
    clients = {"dataset": "mnist", "clients": 100 if paper else 20, "steps": 20}
    victims = [1000, 10_000] if paper else [200, 1000]
    memory = {"victims": victims, "iterations": 300 if paper else 1}
    race = {"victims": 100, "reference": 10 if paper else 4, "iterations": 15}
    return [
        Cell("accounting", measure_accounting, {}),
        Cell("kernels", measure_kernels, kernels),
        *(
            Cell(
                f"clients, {defense}",
                measure_clients,
                clients | {"defense": defense, "repeats": 3},
                datasets=("mnist",),
            )
            for defense in ("none", "fed-cdp")
        ),
        Cell("attack", measure_attack_race, race, datasets=("mnist",)),
        Cell(
            "memory", measure_memory, memory | {"dataset": "mnist"}, datasets=("mnist",)
        ),
    ]


def tables(measured: Measured, scale: Scale) -> list[Table]:
    """Returns the ratios, and what they are made of."""

    def timing(name: str, *path: str) -> float | None:
        value: float | None = found(measured, name, "timing", *path)
        return value

    def row(what: str, value: float | None, words: str) -> Row:
        return [what, Entry("–" if value is None else f"{value:.2f}"), words]

    race = found(measured, "attack", "timing") or {}
    rows = [
        row("victims per second, ours over torch's best single process",
            race.get("ratio_single_process"), "same weights, starts and budget"),
        row("victims per second, ours over torch's best setting",
            race.get("ratio_best_setting"), "one torch process per core"),
        row("processor seconds per victim, torch's thriftiest setting over ours",
            race.get("ratio_processor_time"), "hardly depends on other load"),
        *(
            row(f"a client's local iteration, loop over vectorised, {defense}",
                timing(f"clients, {defense}", "ratio"),
                f"{number(timing(f'clients, {defense}', 'vectorised_ms'))} ms against "
                f"{number(timing(f'clients, {defense}', 'loop_ms'))} ms")
            for defense in ("none", "fed-cdp")
        ),
        row("matching objective, native convolution over ours",
            timing("kernels", "ratios", "matching"), "value and gradient"),
        row("per-example over batch gradient, each at its fastest",
            timing("kernels", "ratios", "per-example"), ""),
        row("memory of many victims over few, minus 1",
            timing("memory", "growth"),
            f"{timing('memory', 'victims')} victims"),
        row("accounting, all methods, 10,000 steps: seconds",
            timing("accounting", "6"), "one sigma, imports included"),
        row("accounting, 10,000 different sigmas: seconds",
            timing("accounting", "schedule"), "imports included"),
    ]  # fmt: skip
    return [Table("Ratios in one run", ["what", "value", "of"], rows)]


def differences(scale: Scale) -> list[str]:
    """Returns how to read the figures."""
    return [
        "nothing is published: these are ours",
        "milliseconds depend on what else the machine does; ratios less",
    ]


SPEED = Benchmark(
    "speed",
    "Ratios in one run",
    "nothing published",
    cells,
    tables,
    differences,
)
