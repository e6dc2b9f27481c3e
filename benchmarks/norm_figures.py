"""`norms`: how gradients, and the noise that follows them, shrink over a training.

Wei et al. 2021, Figure 3: the mean norm of the clients' gradients at a local iteration.
Wei & Liu 2022, Figure 4: the noise's standard deviation S sigma under three methods.
"""

import math

import jax
import jax.numpy as jnp

from gradaudit import defenses, tree
from gradaudit.audit.train import train
from gradaudit.benchmarks.clients_table import dataset
from gradaudit.benchmarks.clipping_tables import central
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
    central_steps,
    data_of,
    federated,
    setting_of,
    sizes,
)
from gradaudit.federation.client import example_gradients
from gradaudit.federation.training import Progress, Stopped
from gradaudit.models.gradients import one_hot
from gradaudit.models.networks import build_model

_PROBE = 100  # examples whose norms decide the sensitivity
_METHODS = ("dp-baseline", "dp-dyns", "dp-dyn")


def measure_deviation(
    context: Context,
    *,
    dataset: str,
    defense: str,
    setting: Plain,
    evaluate_every: int,
    seeds: list[int],
) -> Plain:
    """Trains at one place; returns the noise's deviation S sigma along the way.

    S is the largest norm of a tensor over the first 100 examples after clipping where
    it is l2-max, else the bound; of a fixed set, so that only the model changes.
    """
    chosen, (data, _) = setting_of(dataset, setting), data_of(dataset)
    guard = defenses.parse(defense)
    model = build_model(
        "cnn" if len(data.shape) == 3 else "mlp", data.shape, data.classes
    )
    inputs = jnp.asarray(data.inputs[:_PROBE])
    targets = one_hot(jnp.asarray(data.labels[:_PROBE]), data.classes)

    @jax.jit
    def norms(params):  # type: ignore[no-untyped-def]
        gradients = example_gradients(model, params, {}, inputs, targets)[1]
        each = jax.vmap(tree.tensor_norms)(gradients)
        return jnp.stack(jax.tree.leaves(each))  # (tensors, examples)

    (mechanism,) = guard.mechanisms
    every, points = max(1, chosen.rounds // 20), []

    def on_round(progress: Progress) -> None:
        step = int(progress.state.round)
        context.tell("training", step, chosen.rounds)
        if progress.began is None or (step - 1) % every:
            return
        found = norms(progress.began.params)
        bound = float(mechanism.clip(step - 1) or math.inf)
        largest = float(jnp.max(found))
        size = min(largest, bound) if mechanism.data_dependent else bound
        points.append(
            {
                "step": step - 1,
                "norm": float(jnp.mean(jnp.linalg.norm(found, axis=0))),
                "largest": largest,
                "deviation": size * float(mechanism.multiplier(step - 1)),
            }
        )

    result = train(
        data_of(dataset),
        defense=defense,
        setting=chosen,
        seed=seeds[0],
        evaluate_every=evaluate_every,
        on_round=on_round,
    )
    if result.stopped is Stopped.INTERRUPTED:
        raise KeyboardInterrupt
    return {"points": points, "accuracy": result.accuracy}


def _deviation(method: str, scale: Scale, seed: int) -> Cell:
    like = central(method, dataset(scale), scale, seed, policy="exponential")
    name = f"deviation, {method}"
    return Cell(name, measure_deviation, like.arguments, datasets=like.datasets)


def cells(scale: Scale, seed: int) -> list[Cell]:
    """Returns the federated training, and the three at one place."""
    methods = _METHODS[1:2] if scale is Scale.SMOKE else _METHODS
    plain = federated(dataset(scale), "none", scale, seed)
    return [plain, *(_deviation(method, scale, seed) for method in methods)]


def _thinned(values: list[Plain]) -> list[Plain]:
    return values[:: max(1, len(values) // 8)]


def tables(measured: Measured, scale: Scale) -> list[Table]:
    """Returns the norms over the rounds, and the deviations over the steps."""
    name = federated(dataset(scale), "none", scale, 0).name
    norms = found(measured, name, "norms") or []
    rounds = sizes(dataset(scale), scale).rounds
    every = max(1, rounds // 20)
    rows: list[Row] = [
        [str(1 + index * every), Entry(number(norm))]
        for index, norm in list(enumerate(norms))[:: max(1, len(norms) // 10)]
    ]
    title = "Mean norm of the clients' first batch gradient, no defense"
    first = Table(title, ["round", "norm"], rows)
    curves = {
        method: _thinned(found(measured, f"deviation, {method}", "points") or [])
        for method in _METHODS
    }
    steps = [point["step"] for point in curves["dp-dyns"]]
    later: list[Row] = [
        [
            f"{step:,}",
            *(Entry(number(_at(curves[method], step), 2)) for method in _METHODS),
            Entry(number(_at(curves["dp-dyns"], step, "norm"))),
        ]
        for step in steps
    ]
    heads = ["step", *_METHODS, "mean norm of an example's gradient (dp-dyns)"]
    title = "Deviation of the noise before it is divided by the batch"
    return [first, Table(title, heads, later)]


def _at(points: list[Plain], step: int, key: str = "deviation") -> float | None:
    return next((p[key] for p in points if p["step"] == step), None)


def differences(scale: Scale) -> list[str]:
    """Returns what differs from the published setting."""
    setting = sizes(dataset(scale), scale)
    return [
        "the papers print curves without numbers: compare the trend",
        f"{setting.clients_per_round} clients a round (100), {setting.rounds} rounds",
        f"at one place: {central_steps(scale)} steps (10,000), noise per batch, "
        "sigma from 15.757 (15), C from 4 to 2",
    ]


NORMS = Benchmark(
    "norms",
    "How gradients and their noise shrink",
    "Wei et al. 2021, Figure 3; Wei & Liu 2022, Figure 4",
    cells,
    tables,
    differences,
)
