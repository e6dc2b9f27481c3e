"""What the kernels cost: each way to convolve, arranged as the attacks run.

A scan of kernels on every device, each device with examples of its own, as in the
engine. The matching value and gradient is the objective of the attacks, per example.
"""

import math
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from gradaudit import machine
from gradaudit.attacks.distances import SquaredL2
from gradaudit.attacks.lanes import default_slots
from gradaudit.attacks.objective import objective
from gradaudit.attacks.starts import Layout
from gradaudit.benchmarks.suite import Context, Plain
from gradaudit.data import load_dataset
from gradaudit.models.convolution import Path
from gradaudit.models.gradients import batch_gradient, one_hot, per_example_gradients
from gradaudit.models.model import Model
from gradaudit.models.networks import build_model
from gradaudit.types import Observation, PyTree

_STEPS = 8  # of a scan: enough that entering and leaving it don't count

# One kernel: (model, params, inputs, labels, gradients) -> arrays per example.
Kernel = Callable[[Model, PyTree, jax.Array, jax.Array, PyTree], Any]


def _batch(model: Model, params: PyTree, inputs: Any, labels: Any, _: PyTree) -> Any:
    return batch_gradient(model, params, {}, inputs, one_hot(labels, model.classes))


def _example(model: Model, params: PyTree, inputs: Any, labels: Any, _: PyTree) -> Any:
    targets = one_hot(labels, model.classes)
    return per_example_gradients(model, params, {}, inputs, targets)


def _matching(
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


_KERNELS: dict[str, Kernel] = {
    "batch": _batch,
    "per-example": _example,
    "matching": _matching,
}


def _in_scan(kernel: Kernel, model: Model) -> Callable[..., Any]:
    """Returns a scan of kernels, each on the inputs that the one before left."""

    def program(params: PyTree, inputs: Any, labels: Any, gradients: PyTree) -> Any:
        def step(carried: Any, _: None) -> Any:
            params, inputs = carried
            out = kernel(model, params, inputs, labels, gradients)
            # Kept whole: nothing may be summed before it is computed.
            out = jax.lax.optimization_barrier(out)  # type: ignore[no-untyped-call]
            return (_moved(params, out), _moved(inputs, out)), None

        return jax.lax.scan(step, (params, inputs), None, _STEPS)[0][1]

    return program


def _moved(values: PyTree, out: PyTree) -> PyTree:
    """Makes the next step depend on this one's result, at next to no cost."""
    least = sum(jnp.sum(leaf.reshape(-1)[:1]) for leaf in jax.tree.leaves(out))
    return jax.tree.map(lambda leaf: leaf + 1e-20 * least, values)


def _in_turns(programs: dict[Any, Callable[[], Any]], rounds: int) -> dict[Any, float]:
    """Returns the best time of each in milliseconds; all share the weather."""
    for program in programs.values():
        jax.block_until_ready(program())  # type: ignore[no-untyped-call]
    best: dict[Any, float] = {}
    for _ in range(rounds):
        for name, program in programs.items():
            began = time.perf_counter()
            jax.block_until_ready(program())  # type: ignore[no-untyped-call]
            spent = 1e3 * (time.perf_counter() - began)
            best[name] = min(spent, best.get(name, spent))
    return best


def measure_kernels(
    context: Context,
    *,
    dataset: str,
    model: str,
    examples: int,
    rounds: int,
    paths: list[str],
) -> Plain:
    """Returns milliseconds per example of every kernel and convolution, and ratios."""
    machine.configure()
    data = load_dataset(dataset)
    ways = [Path(path) for path in paths]
    models = {path: build_model(model, data.shape, data.classes, path) for path in ways}
    first = models[ways[0]]
    devices = machine.device_count()
    count = min(examples, default_slots(math.prod(data.shape))) * devices
    params = first.init(jax.random.key(0))
    wanted = jnp.arange(count) % len(data)
    labels = jnp.asarray(data.labels)[wanted]
    targets = one_hot(labels, data.classes)
    inputs = jnp.asarray(data.inputs)[wanted]
    leaked = per_example_gradients(first, params, {}, inputs, targets)
    dummies = jax.random.uniform(jax.random.key(1), inputs.shape)
    arguments = (
        machine.place(params, shared=True),
        *machine.place((dummies, labels, leaked)),
    )

    def arranged(kernel: Kernel, net: Model) -> Callable[[], Any]:
        program = jax.jit(machine.over_units(_in_scan(kernel, net), shared=1))
        return lambda: program(*arguments)

    programs = {
        (name, path.value): arranged(kernel, models[path])
        for name, kernel in _KERNELS.items()
        for path in ways
    }
    spent = _in_turns(programs, rounds)
    table = {
        name: {path.value: spent[name, path.value] / (count * _STEPS) for path in ways}
        for name in _KERNELS
    }
    fastest = {name: min(row.values()) for name, row in table.items()}
    ratios = {
        "matching": table["matching"]["native"] / table["matching"]["auto"],
        "per-example": fastest["per-example"] / fastest["batch"],
    }
    return {"timing": {"milliseconds": table, "ratios": ratios}}
