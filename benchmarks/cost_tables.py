"""`cost` and `dpfl-cost`: what a defense costs, in one run.

Wei et al. 2023, Table 9; Wei et al. 2021, Table III; Wei & Liu 2022, Table X; Zhu et
al. 2021, Table IV. Rounds of the defenses are interleaved, so that a busy moment meets
all of them. Milliseconds are the fastest round's; a ratio is the median over turns of
the round to that without a defense of the same turn: a processor that is now faster,
now slower, meets both.
"""

import dataclasses
import time

import jax
import jax.numpy as jnp
import numpy as np

from gradaudit import defenses, machine
from gradaudit.audit.training_plan import centralized_setting, default_setting
from gradaudit.benchmarks.papers import published
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
from gradaudit.benchmarks.training_cells import central_batch, data_of
from gradaudit.data import FullCopy
from gradaudit.defenses.transforms import run
from gradaudit.federation.recipe import Population, Recipe, initial_state
from gradaudit.federation.round import default_chunk, run_round
from gradaudit.federation.setting import Setting
from gradaudit.models.networks import build_model

_FEDERATED = (
    "none",
    "fed-sdp",
    "fed-cdp",
    "fed-cdp-decay",
    "fed-alpha-cdp",
    "fed-alpha-cdp-sigma",
    "quantile-clip",
    "adaclip",
)
_CENTRAL = (
    "none",
    "dp-baseline",
    "dp-dyns-cdecay",
    "dp-dyns-l2max",
    "dp-dyns",
    "dp-dyn",
)

_DECAYING = ("fed-cdp-decay", "fed-alpha-cdp-sigma", "dp-dyns-cdecay", "dp-dyns")


def measure_cost(
    context: Context,
    *,
    dataset: str,
    names: list[str],
    clients: int,
    local_steps: int,
    repeats: int,
    central: bool,
) -> Plain:
    """Returns each defense's milliseconds per client and local iteration."""
    machine.configure()
    data = data_of(dataset)[0]
    image = len(data.shape) == 3
    model = build_model("cnn" if image else "mlp", data.shape, data.classes)
    setting = _setting(dataset, clients, local_steps, central)
    partition = setting.partition or FullCopy()
    held = partition.assign(0, data.labels, setting.clients, setting.examples)
    population = machine.place(Population.of(data, held), shared=True)
    params = model.init(jax.random.key(0))
    chunk = min(default_chunk(params), -(-clients // machine.device_count()))
    spent: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(repeats + 1):  # the first one compiles
        for index, name in enumerate(names):
            context.tell(
                "timing", turn * len(names) + index, (repeats + 1) * len(names)
            )
            recipe = Recipe.of(model, defenses.parse(name), setting)
            state = machine.place(initial_state(recipe, params), shared=True)
            began = time.perf_counter()
            jax.block_until_ready(  # type: ignore[no-untyped-call]
                run_round(
                    recipe,
                    population,
                    jax.random.key(1),
                    state,
                    np.arange(clients),
                    chunk,
                )
            )
            if turn:
                took = time.perf_counter() - began
                spent[name].append(1e3 * took / (clients * local_steps))
    fastest = {name: min(times) for name, times in spent.items()}
    return {"timing": {"milliseconds": fastest, "ratio": _ratios(spent)}}


def _setting(dataset: str, clients: int, local_steps: int, central: bool) -> Setting:
    if central:
        whole = centralized_setting(len(data_of(dataset)[0]))
        return dataclasses.replace(whole, batch_size=central_batch(dataset))
    return dataclasses.replace(
        default_setting(dataset),
        clients=max(clients, 20),
        clients_per_round=clients,
        local_steps=local_steps,
    )


def _ratios(spent: dict[str, list[float]]) -> dict[str, float]:
    plain = np.asarray(spent["none"])
    return {name: float(np.median(times / plain)) for name, times in spent.items()}


def _timed(dataset: str, scale: Scale, central: bool) -> Cell:
    smoke = scale is Scale.SMOKE
    clients = 1 if central else {Scale.SMOKE: 2, Scale.SMALL: 20}.get(scale, 100)
    names: tuple[str, ...] = _CENTRAL if central else _FEDERATED
    if scale is Scale.SMALL:  # the decays cost what their constant forms do
        names = tuple(n for n in names if n not in _DECAYING)
    arguments = {
        "dataset": dataset,
        "names": list(names[:3:2] if smoke else names),
        "clients": clients,
        "local_steps": 1 if central else (2 if smoke else 20),
        "repeats": 1 if smoke else 25,
        "central": central,
    }
    place = "at one place" if central else "federated"
    return Cell(f"{dataset}, {place}", measure_cost, arguments, datasets=(dataset,))


def _federated(scale: Scale) -> tuple[str, ...]:
    few = {Scale.SMOKE: ("cancer",), Scale.SMALL: ("mnist", "adult")}
    return few.get(scale, ("mnist", "cifar10", "adult", "cancer"))


def _centralized(scale: Scale) -> tuple[str, ...]:
    few = {Scale.SMOKE: (), Scale.SMALL: ("mnist",)}
    return few.get(scale, ("mnist", "fashion-mnist", "cifar10"))


def cost_cells(scale: Scale, seed: int) -> list[Cell]:
    """Returns a cell for each data set; all of its defenses are timed in one run."""
    return [
        *(_timed(name, scale, False) for name in reversed(_federated(scale))),
        *(_timed(name, scale, True) for name in _centralized(scale)),
    ]


def _printed_ratio(defense: str, dataset: str, central: bool) -> float | None:
    """Returns the printed cost over that of no defense."""
    if central:
        table = published("dynamic-dp", "Table X")
    elif defense == "fed-cdp-decay":
        table = published("fed-cdp", "Table III")
    else:
        table = published("fed-alpha-cdp", "Table 9")
    rows, at = dict(table["rows"]), table["columns"].index(dataset)
    if not central:
        tenth = published("fed-alpha-cdp", "Table 10")["rows"]
        rows |= {d: tenth[d]["seconds"] for d in ("quantile-clip", "adaclip")}
    value: float = rows[defense][at] / rows["none"][at]
    return value


def _cost_table(measured: Measured, scale: Scale, central: bool) -> Table:
    sets = _centralized(scale) if central else _federated(scale)
    rows: list[Row] = []
    for defense in _CENTRAL if central else _FEDERATED:
        row: Row = [defense]
        for dataset in sets:
            name = _timed(dataset, scale, central).name
            spent = found(measured, name, "timing", "milliseconds", defense)
            ratio = found(measured, name, "timing", "ratio", defense)
            printed = _printed_ratio(defense, dataset, central)
            row.append(Entry(number(spent)))
            row.append(Entry(number(ratio, 2), number(printed, 2)))
        rows.append(row)
    heads = ["defense"]
    for dataset in sets:
        heads += [f"{dataset}: ms", f"{dataset}: x none"]
    what = "step" if central else "local iteration and client"
    return Table(f"Milliseconds per {what}; ratio measured (published)", heads, rows)


def cost_tables(measured: Measured, scale: Scale) -> list[Table]:
    """Returns the federated costs, and those at one place."""
    made = [_cost_table(measured, scale, False)]
    return [*made, _cost_table(measured, scale, True)] if _centralized(scale) else made


def cost_differences(scale: Scale) -> list[str]:
    """Returns what differs from the published setting."""
    clients = _timed("mnist", scale, False).arguments["clients"]
    few = "two data sets; decaying bounds and noises cost what constant ones do"
    return [
        *([few] if scale is Scale.SMALL else []),
        f"CPU, {clients} clients vectorised (a client at a time on a GPU): compare the "
        "ratios only",
        "times depend on the machine and on what else it does; ratios of one run less",
    ]


# --- DPFL

_MODELS = {"mnist": ("dpfl-2conv", (28, 28, 1)), "cifar10": ("dpfl-3conv", (32, 32, 3))}


def measure_noise(
    context: Context, *, model: str, shape: list[int], draws: int
) -> Plain:
    """Returns the milliseconds in which one update gets DPFL's, or LIP's, noise."""
    machine.configure()
    network = build_model(model, tuple(shape), 10)
    update = jax.tree.map(jnp.asarray, network.init(jax.random.key(0)))
    update = jax.tree.map(lambda leaf: leaf[None], update)
    spent = {}
    for name in ("dpfl", "lip"):
        guard = defenses.parse(name)

        @jax.jit
        def apply(key, update, guard=guard):  # type: ignore[no-untyped-def]
            return run(guard.update, key, update, ((),) * len(guard.update), 0)[0]

        jax.block_until_ready(apply(jax.random.key(0), update))  # type: ignore[no-untyped-call]
        began = time.perf_counter()
        for index in range(draws):
            jax.block_until_ready(apply(jax.random.key(index), update))  # type: ignore[no-untyped-call]
        spent[name] = 1e3 * (time.perf_counter() - began) / draws
    return {"timing": {"milliseconds": spent}}


def dpfl_cells(scale: Scale, seed: int) -> list[Cell]:
    """Returns the noise of both models."""
    draws = 3 if scale is Scale.SMOKE else 200
    return [
        Cell(
            f"noise, {name}",
            measure_noise,
            {"model": model, "shape": list(shape), "draws": draws},
        )
        for name, (model, shape) in _MODELS.items()
    ]


def dpfl_tables(measured: Measured, scale: Scale) -> list[Table]:
    """Returns Table IV."""
    table = published("dpfl", "Table IV")
    rows: list[Row] = [
        [
            method,
            *(
                Entry(
                    number(
                        found(
                            measured, f"noise, {name}", "timing", "milliseconds", method
                        )
                    ),
                    number(printed, 2),
                )
                for name, printed in zip(table["columns"], values, strict=True)
            ),
        ]
        for method, values in table["rows"].items()
    ]
    title = "Milliseconds for the noise of one update: measured (published)"
    return [Table(title, ["method", *table["columns"]], rows)]


def dpfl_differences(scale: Scale) -> list[str]:
    """Returns what differs from the published setting."""
    return [
        "CPU (a GPU)",
        "our `lip` is noise on the dense layers only, without the propagation of "
        "relevance that LIP's time goes into: its figure can't be compared",
    ]


COST = Benchmark(
    "cost",
    "What a defense costs",
    "Wei et al. 2023, Table 9; Wei et al. 2021, Table III; Wei & Liu 2022, Table X",
    cost_cells,
    cost_tables,
    cost_differences,
)
DPFL_COST = Benchmark(
    "dpfl-cost",
    "What DPFL's noise costs",
    "Zhu et al. 2021, Table IV",
    dpfl_cells,
    dpfl_tables,
    dpfl_differences,
)
