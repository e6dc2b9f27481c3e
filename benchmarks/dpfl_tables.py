"""`dpfl-allocation`, `dpfl-federated`, `dpfl-layers`: noise by layers.

Zhu et al. 2021 (DPFL): Tables II and III, Figures 1 and 10.
"""

import dataclasses
import statistics
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradaudit import defenses
from gradaudit.audit.train import TrainingResult, train
from gradaudit.benchmarks.attack_cells import STALL, VICTIMS, attacking, error, rate
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
from gradaudit.benchmarks.training_cells import data_of
from gradaudit.data import Iid, Shards
from gradaudit.defenses.layers import Importance
from gradaudit.defenses.transforms import init_states, run
from gradaudit.federation.setting import Optimizer, Selection, Setting
from gradaudit.federation.training import Stopped, evaluate
from gradaudit.models.networks import build_model
from gradaudit.types import PyTree

EPSILONS = (0.5, 1.0, 5.0, 10.0)
_MODELS = {"mnist": "dpfl-2conv", "fashion-mnist": "dpfl-2conv", "digits": "dpfl-2conv"}
_MODELS |= {"cifar10": "dpfl-3conv"}
_RATE, _BATCH = 0.01, 128


def _one_place(examples: int, epochs: int) -> Setting:
    """Returns whole epochs of Adam as rounds of one client."""
    return Setting(
        clients=1,
        clients_per_round=1,
        local_steps=max(1, examples // _BATCH),
        batch_size=min(_BATCH, examples),
        rounds=epochs,
        examples=examples,
        learning_rate=_RATE,
        optimizer=Optimizer.ADAM,
    )


def measure_allocation(
    context: Context, *, dataset: str, epochs: int, draws: int, seed: int
) -> Plain:
    """Returns the accuracy after one more epoch whose update gets noise.

    The budget is split over the layers by their importance, or evenly; the accuracy is
    the mean over draws of the noise.
    """
    data, test = data_of(dataset)
    model = build_model(_MODELS[dataset], data.shape, data.classes)
    before, after = _two_models(context, dataset, epochs, seed)
    update = jax.tree.map(lambda new, old: new - old, after, before)
    inputs, labels = jnp.asarray(test.inputs), jnp.asarray(test.labels)

    def accuracy(params: Any) -> float:
        return float(evaluate(model, params, {}, inputs, labels)[0])

    importance = defenses.pogz(model, before, jnp.asarray(data.inputs[:1000]))
    answers: Plain = {"baseline": accuracy(before), "importance": dict(importance)}
    for name, split in (("dpfl", importance), ("dpfl-even", ())):
        answers[name] = {
            f"{epsilon:g}": statistics.fmean(
                accuracy(_noisy(before, update, epsilon, split, seed + draw))
                for draw in range(draws)
            )
            for epsilon in EPSILONS
        }
    return answers


def _two_models(
    context: Context, dataset: str, epochs: int, seed: int
) -> tuple[PyTree, PyTree]:
    """Returns a model after some epochs, and after one more; goes on where it ended."""

    def until(rounds: int, overwrite: bool = False) -> TrainingResult:
        result = train(
            data_of(dataset),
            model=_MODELS[dataset],
            setting=_one_place(len(data_of(dataset)[0]), rounds),
            seed=seed,
            out=context.folder,
            overwrite=overwrite,
            on_round=lambda p: context.tell("training", int(p.state.round), epochs + 1),
        )
        if result.stopped is Stopped.INTERRUPTED:
            raise KeyboardInterrupt
        return result

    first = until(epochs)
    if len(first.history) > epochs:  # an earlier run has gone further already
        first = until(epochs, overwrite=True)
    return first.params, until(epochs + 1).params


def _noisy(
    before: Any, update: Any, epsilon: float, importance: Importance, seed: int
) -> Any:
    guard = defenses.dpfl(epsilon, learning_rate=_RATE, importance=importance)
    alone = jax.tree.map(lambda leaf: leaf[None], update)
    states = init_states(guard.update, before)
    sent, _ = run(guard.update, jax.random.key(seed), alone, states, 0)
    return jax.tree.map(lambda old, change: old + change[0], before, sent)


def allocation_cells(scale: Scale, seed: int) -> list[Cell]:
    """Returns one training, and its noises."""
    smoke = scale is Scale.SMOKE
    name = "digits" if smoke else "mnist"
    epochs = {Scale.SMOKE: 1, Scale.SMALL: 3, Scale.PAPER: 10}[scale]
    given = {"dataset": name, "epochs": epochs, "draws": 1 if smoke else 10}
    cell = Cell("allocation", measure_allocation, given | {"seed": seed})
    return [dataclasses.replace(cell, datasets=(name,))]


def allocation_tables(measured: Measured, scale: Scale) -> list[Table]:
    """Returns Table II."""
    table = published("dpfl", "Table II")
    rows: list[Row] = []
    for method, printed in table["rows"].items():
        entries = [
            Entry(
                number(found(measured, "allocation", method, f"{epsilon:g}")),
                number(value),
            )
            for epsilon, value in zip(table["columns"], printed, strict=True)
        ]
        baseline = number(found(measured, "allocation", "baseline"))
        rows.append([method, Entry(baseline, number(table["baseline"])), *entries])
    heads = ["budget", "baseline", *(f"epsilon={e:g}" for e in table["columns"])]
    return [Table("Accuracy, MNIST: measured (published)", heads, rows)]


def allocation_differences(scale: Scale) -> list[str]:
    """Returns what differs from the published setting."""
    return [
        "the clip's alpha is not printed: 1, so the noise's scale is 0.02 / epsilon_i",
        "the mean over ten draws of the noise (one number is printed)",
        "importance measured on 1,000 training images (a validation set)",
    ]


# --- federated


def measure_federated(
    context: Context,
    *,
    dataset: str,
    epsilon: float | None,
    clients: int,
    per_round: int,
    rounds: int,
    public: int,
    iid: bool,
    batch: int,
    evaluate_every: int,
    seed: int,
) -> Plain:
    """Trains with active selection and public fine-tuning, with noise or without."""
    data, test = data_of(dataset)
    held = min(500, len(data) // clients // 2 * 2)
    setting = Setting(
        clients=clients,
        clients_per_round=per_round,
        local_steps=max(1, held // batch),
        batch_size=min(batch, held),
        rounds=rounds,
        examples=held,
        learning_rate=_RATE,
        optimizer=Optimizer.ADAM,
        selection=Selection.ACTIVE,
        partition=Iid() if iid else Shards(2),
    )
    guard = defenses.none()
    if epsilon is not None:
        split = _importance(dataset, public, seed)
        guard = defenses.dpfl(epsilon, learning_rate=_RATE, importance=split)
    result = train(
        (data, test),
        model=_MODELS[dataset],
        defense=guard,
        setting=setting,
        public_examples=public,
        seed=seed,
        evaluate_every=evaluate_every,
        out=context.folder,
        on_round=lambda p: context.tell("training", int(p.state.round), rounds),
    )
    if result.stopped is Stopped.INTERRUPTED:
        raise KeyboardInterrupt
    curve = [[r.round, r.accuracy] for r in result.history if r.accuracy is not None]
    return {"accuracy": result.accuracy, "curve": curve}


def _importance(dataset: str, public: int, seed: int) -> Importance:
    """Returns the layers' importance in a model that learned from public data."""
    data = data_of(dataset)[0]
    # The same examples that the server holds out for fine-tuning: see `hold_out`.
    order = np.random.default_rng(seed).permutation(len(data))
    taken = data.take(order[:public])
    result = train(
        (taken, taken),
        model=_MODELS[dataset],
        setting=_one_place(public, 10),
        seed=seed,
        evaluate_every=10,
    )
    model = build_model(_MODELS[dataset], data.shape, data.classes)
    return defenses.pogz(model, result.params, jnp.asarray(taken.inputs))


def _federated(dataset: str, epsilon: float | None, scale: Scale, seed: int) -> Cell:
    smoke, colour = scale is Scale.SMOKE, dataset == "cifar10"
    rounds = {Scale.SMOKE: 1, Scale.SMALL: 20, Scale.PAPER: 200}[scale]
    arguments = {
        "dataset": dataset,
        "epsilon": epsilon,
        "clients": 12 if smoke else 100,
        "per_round": 2 if smoke else 10,
        "rounds": rounds,
        "public": 60 if smoke else (3000 if colour else 1000),
        "iid": colour,
        "batch": 50 if colour else _BATCH,
        "evaluate_every": max(1, rounds // 10),
        "seed": seed,
    }
    name = f"{dataset}, " + ("none" if epsilon is None else f"epsilon={epsilon:g}")
    return Cell(name, measure_federated, arguments, datasets=(dataset,))


def _federated_sets(scale: Scale) -> tuple[str, ...]:
    smoke = scale is Scale.SMOKE
    return ("digits",) if smoke else ("mnist", "fashion-mnist", "cifar10")


def federated_cells(scale: Scale, seed: int) -> list[Cell]:
    """Returns the trainings with every budget, and without noise."""
    return [
        _federated(name, epsilon, scale, seed)
        for name in _federated_sets(scale)
        for epsilon in _budgets(name, scale)
    ]


def _budgets(name: str, scale: Scale) -> tuple[float | None, ...]:
    """Returns the budgets that are tried; all of them on one set at the small scale."""
    if scale is Scale.SMOKE:
        return (1.0,)
    few = scale is Scale.SMALL and name != "mnist"
    return (None, 1.0) if few else (None, *EPSILONS)


def federated_tables(measured: Measured, scale: Scale) -> list[Table]:
    """Returns Table III."""
    table = published("dpfl", "Table III")
    rows: list[Row] = []
    for name in _federated_sets(scale):
        printed = table["rows"].get(name, [None] * len(table["columns"]))
        row: Row = [name]
        for column, value in zip(table["columns"], printed, strict=True):
            epsilon = None if column == "none" else float(column)
            cell = _federated(name, epsilon, scale, 0).name
            text = "" if value is None else number(value)
            row.append(Entry(number(found(measured, cell, "accuracy")), text))
        rows.append(row)
    heads = ["data", "no noise", *(f"epsilon={e:g}" for e in EPSILONS)]
    return [Table("Accuracy: measured (published)", heads, rows)]


def federated_differences(scale: Scale) -> list[str]:
    """Returns what differs from the published setting."""
    rounds = _federated("mnist", None, scale, 0).arguments["rounds"]
    return [
        f"{rounds} rounds (not printed; the figures show hundreds)",
        "one local epoch, alpha = 1 and alpha_1, alpha_2, alpha_3 of the library's "
        "sampler: none of them is printed",
        "public examples are held out of the training images (of the test images)",
        "importance from a model trained on the public examples (by each client)",
        "500 examples a client (600 or 500), one seed",
        *(
            ["other sets than MNIST with one budget only"]
            if scale is Scale.SMALL
            else []
        ),
    ]


# --- layers

_NOISY = {
    "fc": ("output", ("all", "conv")),
    "conv1 + fc": ("conv1/output", ("all", "conv2")),
    "conv2 + fc": ("conv2/output", ("all", "conv1")),
    "all layers": ("conv1/conv2/output", ("all", "conv")),
}


def layer_cells(scale: Scale, seed: int) -> list[Cell]:
    """Returns attacks from some of the layers, and on noise on some of them."""
    smoke = scale is Scale.SMOKE
    every = [
        attacking(
            f"from {part}", scale, seed, method=f"cpl:layers={part},{STALL}",
            dataset="mnist",
        )
        for part in (("conv",) if smoke else ("all", "conv", "dense"))
    ]  # fmt: skip
    steps = {Scale.SMALL: 1200}.get(scale, 4800)
    for name, (noisy, matched) in () if smoke else _NOISY.items():
        every += [
            attacking(
                f"noise on {name}, matching {part}", scale, seed, type=1,
                method=f"gradinv:labels=known,layers={part},iterations={steps}",
                threat="curious+labels", defense=f"lip:layers={noisy}",
                dataset="mnist", model="dpfl-2conv", batch_size=1,
            )
            for part in matched
        ]  # fmt: skip
    return every


def layer_tables(measured: Measured, scale: Scale) -> list[Table]:
    """Returns what was rebuilt from which layers."""
    rows: list[Row] = [
        [name, rate(cell), error(cell)] for name, cell in measured.items()
    ]
    return [Table("MNIST: measured", ["what is read", "ASR", "median RMSE"], rows)]


def layer_differences(scale: Scale) -> list[str]:
    """Returns what differs from the published setting."""
    own = VICTIMS[scale]
    small = ["Inverting Gradients stops at 1,200 iterations"]
    return [
        "the paper shows pictures without numbers",
        f"{own.examples} victims (type 2) or {own.clients} clients with one example "
        f"each, on {own.draws} draws of the network",
        "CPL on its own net (all, conv, dense); Inverting Gradients with known labels "
        "on DPFL's where there is noise",
        *(small if scale is Scale.SMALL else []),
    ]


DPFL_ALLOCATION = Benchmark(
    "dpfl-allocation",
    "A budget split by the layers' importance",
    "Zhu et al. 2021, Table II",
    allocation_cells,
    allocation_tables,
    allocation_differences,
)
DPFL_FEDERATED = Benchmark(
    "dpfl-federated",
    "Accuracy of DPFL",
    "Zhu et al. 2021, Table III",
    federated_cells,
    federated_tables,
    federated_differences,
)
DPFL_LAYERS = Benchmark(
    "dpfl-layers",
    "What leaks when only some layers carry noise",
    "Zhu et al. 2021, Figures 1 and 10",
    layer_cells,
    layer_tables,
    layer_differences,
)
