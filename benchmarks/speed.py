"""What the kernels cost: milliseconds per example, for each way to convolve.

    python benchmarks/speed.py [--examples 100] [--model cpl] [--dataset photos]

Three arrangements of the same work:
  at once   one call on all examples, one device with every core
  chunk     a lax.scan over chunks of the attack engine's size, one device
  engine    the same with one device per core, side by side: how the attacks run
The matching value-and-gradient is the objective of the attacks, per example.
"""

import argparse
import dataclasses
import json
import math
import os
import pathlib
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from rich.console import Console
from rich.table import Table

from gradaudit import machine
from gradaudit.attacks.distances import SquaredL2
from gradaudit.attacks.lanes import default_slots
from gradaudit.attacks.objective import Layout, objective
from gradaudit.data import Dataset, load_dataset
from gradaudit.models.convolution import Path
from gradaudit.models.gradients import batch_gradient, one_hot, per_example_gradients
from gradaudit.models.model import Model
from gradaudit.models.networks import build_model
from gradaudit.types import Observation, PyTree

RESULTS = pathlib.Path(__file__).parent / "results" / "speed.json"
PATHS = (Path.NATIVE, Path.PATCHES, Path.SHARED)
STEPS = 8  # of a scan: enough that entering and leaving it don't count
BATCH, EXAMPLE = "batch gradient", "per-example gradient"
MATCHING = "matching value and gradient"


@dataclasses.dataclass(frozen=True)
class Work:
    """What every measurement shares; `gradients` are the leaked ones, stacked."""

    params: PyTree
    inputs: jax.Array
    labels: jax.Array
    gradients: PyTree


# One kernel: (model, params, inputs, labels, gradients) -> arrays per example.
Kernel = Callable[[Model, PyTree, jax.Array, jax.Array, PyTree], Any]


def batch(model: Model, params: PyTree, inputs: Any, labels: Any, _: PyTree) -> Any:
    return batch_gradient(model, params, {}, inputs, one_hot(labels, model.classes))


def example(model: Model, params: PyTree, inputs: Any, labels: Any, _: PyTree) -> Any:
    return per_example_gradients(
        model, params, {}, inputs, one_hot(labels, model.classes)
    )


def matching(
    model: Model, params: PyTree, inputs: Any, labels: Any, gradients: PyTree
) -> Any:
    layout = Layout((1, *model.input_shape), model.classes, searches_labels=False)

    def one(image: jax.Array, label: jax.Array, leaked: PyTree) -> Any:
        observation = Observation(params, leaked)
        evaluate = objective(
            SquaredL2(), (), layout, model, observation, False, label[None]
        )
        value, slope = evaluate(image.reshape(-1))
        return value, slope.reshape(image.shape)

    return jax.vmap(one)(inputs, labels, gradients)


KERNELS: dict[str, Kernel] = {
    BATCH: batch,
    EXAMPLE: example,
    MATCHING: matching,
}


def at_once(kernel: Kernel, model: Model, work: Work) -> Callable[[], Any]:
    """Returns one call on all examples."""
    program = jax.jit(lambda *arguments: kernel(model, *arguments))
    arguments = (work.params, work.inputs, work.labels, work.gradients)
    return lambda: program(*arguments)


def in_scan(kernel: Kernel, model: Model) -> Callable[..., Any]:
    """Returns a scan of kernels, each on the inputs that the one before left."""

    def program(params: PyTree, inputs: Any, labels: Any, gradients: PyTree) -> Any:
        def step(carried: Any, _: None) -> Any:
            params, inputs = carried
            out = kernel(model, params, inputs, labels, gradients)
            # Kept whole: nothing may be summed before it is computed.
            out = jax.lax.optimization_barrier(out)
            return (_moved(params, out), _moved(inputs, out)), None

        return jax.lax.scan(step, (params, inputs), None, STEPS)[0][1]

    return program


def _moved(values: PyTree, out: PyTree) -> PyTree:
    """Makes the next step depend on this one's result, at next to no cost."""
    least = sum(jnp.sum(leaf.reshape(-1)[:1]) for leaf in jax.tree.leaves(out))
    return jax.tree.map(lambda leaf: leaf + 1e-20 * least, values)


def chunk(kernel: Kernel, model: Model, work: Work) -> Callable[[], Any]:
    """Returns the scan on one device."""
    program = jax.jit(in_scan(kernel, model))
    arguments = (work.params, work.inputs, work.labels, work.gradients)
    return lambda: program(*arguments)


def engine(kernel: Kernel, model: Model, work: Work) -> Callable[[], Any]:
    """Returns the scan on every device, each with examples of its own."""
    program = jax.jit(machine.over_units(in_scan(kernel, model), shared=1))
    arguments = (
        machine.place(work.params, shared=True),
        *machine.place((work.inputs, work.labels, work.gradients)),
    )
    return lambda: program(*arguments)


def make_work(model: Model, dataset: Dataset, count: int) -> Work:
    params = model.init(jax.random.key(0))
    wanted = jnp.arange(count) % len(dataset)
    inputs = jnp.asarray(dataset.inputs)[wanted]
    labels = jnp.asarray(dataset.labels)[wanted]
    gradients = per_example_gradients(
        model, params, {}, inputs, one_hot(labels, model.classes)
    )
    dummies = jax.random.uniform(jax.random.key(1), inputs.shape)
    return Work(params, dummies, labels, gradients)


def first(work: Work, count: int) -> Work:
    """Returns the work on the first examples only."""
    return Work(
        work.params,
        work.inputs[:count],
        work.labels[:count],
        jax.tree.map(lambda leaf: leaf[:count], work.gradients),
    )


def milliseconds(programs: dict[Any, Callable[[], Any]], rounds: int) -> dict[Any, Any]:
    """Returns the best time of each; in turns, so that all share the weather."""
    for program in programs.values():
        jax.block_until_ready(program())
    times: dict[Any, list[float]] = {name: [] for name in programs}
    for _ in range(rounds):
        for name, program in programs.items():
            start = time.perf_counter()
            jax.block_until_ready(program())
            times[name].append(1e3 * (time.perf_counter() - start))
    return {name: min(values) for name, values in times.items()}


def measure(
    model_name: str, dataset_name: str, examples: int, rounds: int
) -> dict[str, Any]:
    dataset = load_dataset(dataset_name)
    models = {
        path: build_model(model_name, dataset.shape, dataset.classes, path)
        for path in PATHS
    }
    model = models[Path.PATCHES]
    slots, devices = default_slots(math.prod(model.input_shape)), machine.device_count()
    work = make_work(model, dataset, max(examples, slots * devices))
    arrangements = {
        f"at once ({examples})": (at_once, examples, examples),
        f"chunk ({slots})": (chunk, slots, slots * STEPS),
        f"engine ({devices} x {slots})": (
            engine,
            slots * devices,
            slots * devices * STEPS,
        ),
    }
    report: dict[str, Any] = {}
    for title, (arrange, count, divisor) in arrangements.items():
        programs = {
            (kernel, path.value): arrange(function, models[path], first(work, count))
            for kernel, function in KERNELS.items()
            for path in PATHS
        }
        measured = milliseconds(programs, rounds)
        report[title] = {
            kernel: {
                path.value: round(measured[kernel, path.value] / divisor, 4)
                for path in PATHS
            }
            for kernel in KERNELS
        }
    return report


def ratios(table: dict[str, dict[str, float]]) -> dict[str, float]:
    """Returns what the choice of the convolution is judged by."""

    def fastest(kernel: str) -> float:
        return min(table[kernel].values())

    return {
        "matching: patches faster than native": (
            table[MATCHING]["native"] / table[MATCHING]["patches"]
        ),
        "matching: shared (the engine) faster than native": (
            table[MATCHING]["native"] / table[MATCHING]["shared"]
        ),
        "per-example over batch gradient, patches": (
            table[EXAMPLE]["patches"] / table[BATCH]["patches"]
        ),
        "per-example over batch gradient, each at its fastest": (
            fastest(EXAMPLE) / fastest(BATCH)
        ),
    }


def show(report: dict[str, Any]) -> None:
    console = Console(width=100)
    for title, table in report["milliseconds_per_example"].items():
        shown = Table(title=f"{title}: ms per example", title_justify="left")
        for column in ("kernel", *(path.value for path in PATHS)):
            shown.add_column(column, justify="left" if column == "kernel" else "right")
        for kernel, row in table.items():
            shown.add_row(kernel, *(f"{value:.3f}" for value in row.values()))
        console.print(shown)
    shown = Table(title="ratios", title_justify="left")
    shown.add_column("")
    for title in report["ratios"]:
        shown.add_column(title, justify="right")
    for name in next(iter(report["ratios"].values())):
        cells = (f"{table[name]:.2f}" for table in report["ratios"].values())
        shown.add_row(name, *cells)
    console.print(shown)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--examples", type=int, default=100)
    parser.add_argument("--model", default="cpl")
    parser.add_argument("--dataset", default="lfw-patches")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--out", type=pathlib.Path, default=RESULTS)
    arguments = parser.parse_args()
    machine.configure()
    tables = measure(
        arguments.model, arguments.dataset, arguments.examples, arguments.rounds
    )
    report = {
        "config": {
            "model": arguments.model,
            "dataset": arguments.dataset,
            "examples": arguments.examples,
            "rounds": arguments.rounds,
        },
        # A busy machine: read the ratios, not the milliseconds.
        "environment": machine.describe() | {"load_average": os.getloadavg()[0]},
        "milliseconds_per_example": tables,
        "ratios": {
            title: {name: round(value, 2) for name, value in ratios(table).items()}
            for title, table in tables.items()
        },
    }
    show(report)
    arguments.out.parent.mkdir(exist_ok=True)
    arguments.out.write_text(json.dumps(report, indent=1, allow_nan=False) + "\n")


if __name__ == "__main__":
    main()
