"""`decay` and `target-accuracy`: what a privacy budget buys.

Wei et al. 2023, Tables 7, 8 and 11; Wei & Liu 2022, Tables VI, VIII and IX.
"""

import math

import numpy as np
from numpy.typing import NDArray

from gradaudit.benchmarks.clients_table import accuracy
from gradaudit.benchmarks.clipping_tables import (
    DYNAMIC,
    READINGS,
    bounded,
    central,
    central_sets,
    differences,
    readings,
    unique,
)
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
from gradaudit.benchmarks.training_cells import (
    Semantics,
    central_steps,
    federated,
    federated_sets,
    sizes,
    under,
)
from gradaudit.privacy import gaussian, spend
from gradaudit.privacy.calibrate import exhausted_at, first_reaching

POLICIES = ("linear", "staircase", "exponential", "cyclic")
_RATE, _DELTA = 0.01, 1e-5


def measure_stop(context: Context, *, policy: str, method: str) -> Plain:
    """Returns the step at which sigma = 6's budget of 10,000 steps is spent.

    The schedules are those behind Table VIII: both start at the same epsilon of the
    Gaussian mechanism, and "linear" is linear in that epsilon.
    """
    scale, steps = math.sqrt(2 * math.log(1.25 / _DELTA)), np.arange(10_000.0)
    sigmas: NDArray[np.float64] = (
        scale / (0.307468 + 1e-4 * steps)
        if policy == "linear"
        else scale / 0.307468 * np.exp(-1.662e-4 * steps)
    )
    budget = spend(method, gaussian(6.0, _RATE, 10_000), _DELTA, "paper").epsilon
    stop = exhausted_at(budget, gaussian(sigmas, _RATE), _DELTA, method, "paper")
    return {"step": stop.step, "budget": budget, "final": stop.final}


def measure_stated(context: Context, *, policy: str, method: str) -> Plain:
    """Returns whether 15 -> 4.85 over 100 rounds of 100 steps spends the budget."""
    from gradaudit.defenses.schedules import decay

    schedule = decay(policy, 15.0, 4.85, 100)
    sigmas = np.asarray([schedule(t) for t in range(100)])
    budget = spend(method, gaussian(6.0, _RATE, 10_000), _DELTA).epsilon
    events = gaussian(sigmas, _RATE).repeated(100)
    stop = exhausted_at(budget, events, _DELTA, method)
    rounds = None if stop.step is None else -(-stop.step // 100)
    return {"round": rounds, "budget": budget, "final": stop.final}


def _stop(policy: str, method: str) -> Cell:
    given = {"policy": policy, "method": method}
    return Cell(f"stop, {policy}, {method}", measure_stop, given)


def _stated(policy: str, method: str) -> Cell:
    given = {"policy": policy, "method": method}
    return Cell(f"stated, {policy}, {method}", measure_stated, given)


def _policy(
    name: str, policy: str, reading: Semantics, scale: Scale, seed: int
) -> Cell:
    text = under("fed-alpha-cdp-sigma", sizes(name, scale), reading, policy)
    return federated(name, text, scale, seed)


def _policies_of(name: str, reading: Semantics, scale: Scale) -> tuple[str, ...]:
    """Returns the decays that are trained with; few at the small scale."""
    if scale is Scale.PAPER:
        return POLICIES
    images = name in ("mnist", "cifar10")
    if reading is Semantics.WRITTEN:
        return () if images else ("exponential",)
    return ("exponential",) if name == "cifar10" else ("linear", "exponential")


def central_policies(scale: Scale) -> tuple[str, ...]:
    """Returns the decays that are trained with at one place."""
    paper = scale is Scale.PAPER
    return ("linear", "exponential", "cyclic") if paper else ("exponential",)


def central_methods(scale: Scale) -> tuple[str, ...]:
    """Returns the methods without decaying noise at one place."""
    return DYNAMIC if scale is Scale.PAPER else ("dp-baseline", "dp-dyns")


def decay_cells(scale: Scale, seed: int) -> list[Cell]:
    """Returns the budgets' ends, and the trainings under every policy."""
    smoke = scale is Scale.SMOKE
    methods = published("dynamic-dp", "Table VIII")["columns"]
    every = [_stop(p, m) for p in ("linear", "exponential") for m in methods]
    stated = published("fed-alpha-cdp", "Table 11")["columns"]
    every += [_stated(policy, method) for policy in POLICIES for method in stated]
    if smoke:
        return [*every, bounded("fed-cdp", 4.0, READINGS[0], "cancer", scale, seed)]
    for name in reversed(federated_sets(scale)):
        for reading in readings(name, scale):
            for method in ("fed-cdp", "fed-alpha-cdp"):
                every.append(bounded(method, 4.0, reading, name, scale, seed))
            policies = _policies_of(name, reading, scale)
            every += [_policy(name, p, reading, scale, seed) for p in policies]
    every += [central(m, "mnist", scale, seed) for m in central_methods(scale)]
    both = ("dp-dynsigma", "dp-dyn") if scale is Scale.PAPER else ("dp-dyn",)
    every += [
        central(method, "mnist", scale, seed, policy=policy)
        for policy in central_policies(scale)
        for method in both
    ]
    return unique(every)


def decay_tables(measured: Measured, scale: Scale) -> list[Table]:
    """Returns Tables 8, 11 and VIII."""
    made = [_policies(measured, scale, reading) for reading in READINGS]
    return [*made, _stated_table(measured), _central_table(measured, scale)]


def _policies(measured: Measured, scale: Scale, reading: Semantics) -> Table:
    table = published("fed-alpha-cdp", "Table 8")
    rows: list[Row] = []
    for method, printed in table["rows"].items():
        row: Row = [method]
        for name in federated_sets(scale):
            if method == "none":
                cell = federated(name, "none", scale, 0)
            elif method in POLICIES:
                cell = _policy(name, method, reading, scale, 0)
            else:
                cell = bounded(method, 4.0, reading, name, scale, 0)
            value = printed["accuracy"][table["columns"].index(name)]
            row.append(accuracy(measured, cell.name, value))
        rows.append(row)
    title = f"Federated, noise {reading.value}: accuracy, measured (published)"
    return Table(title, ["defense or policy", *federated_sets(scale)], rows)


def _stated_table(measured: Measured) -> Table:
    table = published("fed-alpha-cdp", "Table 11")
    rows: list[Row] = []
    for policy in POLICIES:
        entries = []
        for index, method in enumerate(table["columns"]):
            end = found(measured, _stated(policy, method).name)
            text = "–"
            if end is not None:
                final = f"never: {number(end['final'])} of {number(end['budget'])}"
                text = final if end["round"] is None else str(end["round"])
            printed = table["rows"][policy]["rounds"][index]
            entries.append(Entry(text, str(printed)))
        rows.append([policy, *entries])
    title = "Round at which the stated 15 to 4.85 spends the budget (published)"
    return Table(title, ["policy", *table["columns"]], rows)


def _central_table(measured: Measured, scale: Scale) -> Table:
    table = published("dynamic-dp", "Table VIII")
    moments = table["columns"].index("moments")
    rows: list[Row] = [
        [
            "fixed",
            method,
            accuracy(measured, central(method, "mnist", scale, 0).name, v),
        ]
        for method, v in table["fixed"].items()
    ]
    for policy, printed in table["rows"].items():
        for method in ("dp-dynsigma", "dp-dyn"):
            cell = central(method, "mnist", scale, 0, policy=policy)
            rows.append(
                [
                    policy,
                    method,
                    accuracy(measured, cell.name, printed[method][moments]),
                ]
            )
        for index, name in enumerate(table["columns"]):
            step = found(measured, _stop(policy, name).name, "step")
            entry = Entry(number(step), number(printed["steps"][index]))
            rows.append([policy, f"step at which the budget ends, {name}", entry])
    title = "At one place, MNIST, noise per batch: measured (published)"
    return Table(title, ["policy", "what", "accuracy or step"], rows)


def target_cells(scale: Scale, seed: int) -> list[Cell]:
    """Returns the trainings whose curves are asked when they reach a target."""
    if scale is Scale.SMOKE:
        return [central("dp-baseline", "cancer", scale, seed)]
    every = [
        bounded(method, 4.0, reading, name, scale, seed)
        for name in reversed(federated_sets(scale))
        for reading in readings(name, scale)
        for method in ("fed-sdp", "fed-alpha-cdp")
    ]
    for name in central_sets(scale):
        methods = central_methods(scale)
        every += [central(method, name, scale, seed) for method in methods]
    every += [
        central("dp-dyn", "mnist", scale, seed, policy=policy)
        for policy in central_policies(scale)
    ]
    return unique(every)


def reached(measured: Measured, name: str, target: float | None) -> int | None:
    """Returns the first round of a training's curve at a target, None if never."""
    curve = found(measured, name, "curve")
    if not curve or target is None or max(value for _, value in curve) < target:
        return None
    return first_reaching([(step, value) for step, value in curve], target)


def target_tables(measured: Measured, scale: Scale) -> list[Table]:
    """Returns Tables 7 and VI (with the first half of IX)."""
    made = [_federated_targets(measured, scale, reading) for reading in READINGS]
    return [*made, _central_targets(measured, scale)]


def _federated_targets(measured: Measured, scale: Scale, reading: Semantics) -> Table:
    table = published("fed-alpha-cdp", "Table 7")
    rows: list[Row] = []
    for name in federated_sets(scale):
        at, setting = table["columns"].index(name), sizes(name, scale)
        baseline, adaptive = (
            bounded(method, 4.0, reading, name, scale, 0).name
            for method in ("fed-sdp", "fed-alpha-cdp")
        )
        # A training that diverged has no accuracy that others could reach.
        lost = "diverged" in (found(measured, baseline, "stopped") or ())
        target = None if lost else found(measured, baseline, "accuracy")
        stop = reached(measured, adaptive, target)
        spent = None
        if stop is not None:
            steps = stop * setting.local_steps
            spent = spend("moments", gaussian(6.0, _RATE, steps), _DELTA).epsilon
        printed = {
            key: value[at] for key, value in table["rows"]["fed-alpha-cdp"].items()
        }
        rows.append(
            [
                name,
                accuracy(measured, baseline, table["target"][at]),
                Entry(
                    "never" if target and stop is None else number(stop),
                    number(printed["rounds"]),
                ),
                Entry(number(spent), number(printed["epsilon"])),
            ]
        )
    heads = ["data", "Fed-SDP's accuracy", "Fed-alphaCDP's round", "epsilon (moments)"]
    title = f"Federated, noise {reading.value}: measured (published)"
    return Table(title, heads, rows)


def _central_targets(measured: Measured, scale: Scale) -> Table:
    table, ninth = (
        published("dynamic-dp", "Table VI"),
        published("dynamic-dp", "Table IX"),
    )
    rows: list[Row] = []
    for name in central_sets(scale):
        target = found(
            measured, central("dp-baseline", name, scale, 0).name, "accuracy"
        )
        known = table["rows"].get(name, {})
        asked = [(m, central(m, name, scale, 0), known.get(m)) for m in DYNAMIC]
        if name == "mnist":
            asked += [
                (
                    f"dp-dyn {policy}",
                    central("dp-dyn", name, scale, 0, policy=policy),
                    ninth["rows"][f"dp-dyn {policy}"],
                )
                for policy in ("linear", "exponential", "cyclic")
            ]
        for method, cell, printed in asked:
            if cell.name not in measured:
                continue
            stop = reached(measured, cell.name, target)
            share = None if stop is None else stop / central_steps(scale)
            before = printed["steps"] / 10_000 if printed else None
            rows.append(
                [
                    name,
                    Entry(number(target), number(table["target"].get(name))),
                    method,
                    Entry("never" if share is None else f"{share:.0%}",
                          "" if before is None else f"{before:.0%}"),
                ]
            )  # fmt: skip
    heads = ["data", "DP-baseline's accuracy", "method", "share of the steps"]
    return Table("At one place, noise per batch: measured (published)", heads, rows)


DECAY = Benchmark(
    "decay",
    "Accuracy and the end of the budget under decaying noise",
    "Wei et al. 2023, Tables 8 and 11; Wei & Liu 2022, Table VIII",
    decay_cells,
    decay_tables,
    differences,
)
TARGET_ACCURACY = Benchmark(
    "target-accuracy",
    "Rounds and epsilon until a target accuracy",
    "Wei et al. 2023, Table 7; Wei & Liu 2022, Tables VI and IX",
    target_cells,
    target_tables,
    differences,
)
