"""Cells that train: the sizes of every scale, and what is measured of a training."""

import dataclasses
import enum
import functools
import math
import statistics
from typing import Any

from gradaudit.audit.train import TrainingResult, train
from gradaudit.audit.training_plan import centralized_setting, default_setting
from gradaudit.benchmarks.suite import Cell, Context, Plain, Scale
from gradaudit.data import CATALOGUE, Dataset, load_dataset, parse_partition
from gradaudit.federation.setting import Optimizer, Selection, Setting
from gradaudit.federation.training import Progress, Stopped

# Where the papers are silent: cancer and adult are standardized, as is usual.
_STANDARDIZED = ("adult", "cancer")
_LEARNING_RATE = {"cancer": 0.1}


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Of one data set at one scale: what differs from the published setting."""

    setting: Plain
    evaluate_every: int = 1
    seeds: int = 1


_SMOKE = Sizes({"clients": 4, "clients_per_round": 2, "local_steps": 2, "rounds": 2})
_SMALL_IMAGES = {"clients": 100, "clients_per_round": 10, "local_steps": 20}
_SIZES: dict[Scale, dict[str, Sizes]] = {
    Scale.SMOKE: {"cancer": _SMOKE, "digits": _SMOKE},
    Scale.SMALL: {
        "mnist": Sizes(_SMALL_IMAGES | {"rounds": 20}, evaluate_every=5),
        "fashion-mnist": Sizes(_SMALL_IMAGES | {"rounds": 20}, evaluate_every=5),
        "cifar10": Sizes(_SMALL_IMAGES | {"rounds": 20}, evaluate_every=5),
        "adult": Sizes({}),
        "cancer": Sizes({}, seeds=3),
    },
    Scale.PAPER: {
        "mnist": Sizes({}),
        "fashion-mnist": Sizes({}),
        "cifar10": Sizes({}),
        "adult": Sizes({}, seeds=3),
        "cancer": Sizes({}, seeds=3),
    },
}


def federated_sets(scale: Scale) -> tuple[str, ...]:
    """Returns the data sets that are trained on at a scale."""
    smoke = scale is Scale.SMOKE
    return ("cancer",) if smoke else ("mnist", "cifar10", "adult", "cancer")


def sizes(dataset: str, scale: Scale) -> Setting:
    """Returns the setting of a data set at a scale."""
    published = default_setting(dataset)
    rate = _LEARNING_RATE.get(dataset, published.learning_rate)
    changes = _SIZES[scale][dataset].setting
    return dataclasses.replace(published, learning_rate=rate, **changes)


def federated(
    dataset: str, defense: str, scale: Scale, seed: int, **changes: Any
) -> Cell:
    """Returns the cell that trains on a data set under a defense.

    `changes` are fields of the setting; the cell's name holds them.
    """
    own, base = _SIZES[scale][dataset], sizes(dataset, scale)
    changes = {k: v for k, v in changes.items() if getattr(base, k) != v}
    setting = own.setting | changes
    words = "".join(f", {name}={value}" for name, value in changes.items())
    arguments = {
        "dataset": dataset,
        "defense": defense,
        "setting": setting,
        "evaluate_every": own.evaluate_every,
        "seeds": [seed + extra for extra in range(own.seeds)],
    }
    work = dataclasses.replace(base, **changes)
    steps = work.clients_per_round * work.local_steps
    return Cell(
        f"{dataset}, {defense}{words}",
        measure_training,
        arguments,
        datasets=(dataset,),
        kind=f"training on {dataset}",
        units=steps * work.rounds * own.seeds,
        sample={"setting": setting | {"rounds": 3}, "seeds": [seed]},
    )


_BATCHES = {"mnist": 600, "fashion-mnist": 600, "cifar10": 500, "cancer": 20}


def centralized(dataset: str, defense: str, scale: Scale, seed: int) -> Cell:
    """Returns the cell that trains on all of the data at one place (Wei & Liu 2022)."""
    steps = central_steps(scale)
    setting = {
        "centralized": True,
        "rounds": steps,
        "batch_size": _BATCHES[dataset],
    }
    arguments = {
        "dataset": dataset,
        "defense": defense,
        "setting": setting,
        "evaluate_every": max(1, steps // (50 if scale is Scale.PAPER else 10)),
        "seeds": [seed],
    }
    return Cell(
        f"{dataset}, centralized, {defense}",
        measure_training,
        arguments,
        datasets=(dataset,),
        kind=f"training on {dataset} at one place",
        units=steps,
        sample={"setting": setting | {"rounds": 5}},
    )


def central_batch(dataset: str) -> int:
    """Returns the batch size of a training at one place."""
    return _BATCHES[dataset]


def central_steps(scale: Scale) -> int:
    """Returns how many steps a training at one place takes."""
    return {Scale.SMOKE: 2, Scale.SMALL: 100, Scale.PAPER: 10_000}[scale]


class Semantics(enum.Enum):
    """What `noise of scale sigma` means; the papers' text, formulas and code differ."""

    WRITTEN = "as written"  # one draw per example (Fed-SDP: per client), std sigma C
    BATCH = "per batch"  # one draw on a batch's sum, std sigma C: DP-SGD at a client
    LOT = "per lot"  # one draw on the sum over all clients of a round, std sigma C
    CODE = "as in the code"  # per batch with sigma = 0.5, the released scripts' value


CODE_SIGMA = 0.5


def noised(
    defense: str,
    setting: Setting,
    semantics: Semantics = Semantics.WRITTEN,
    sigma: float = 6.0,
    **parameters: Any,
) -> str:
    """Returns the text of a defense with its noise under one of the semantics.

    LOT: K clients that each add a draw of std sigma C / sqrt(K) to their batch's sum
    add one draw of std sigma C to the sum of all of them; q = B K / |D|, by which the
    papers account, is the rate of that lot.
    """
    scale = {Semantics.CODE: CODE_SIGMA}.get(semantics, sigma)
    if semantics is Semantics.LOT:
        scale = round(sigma / math.sqrt(setting.clients_per_round), 6)
    given = dict(parameters)
    if semantics is not Semantics.WRITTEN and not defense.startswith("fed-sdp"):
        given["noise_at"] = "batch"
    if semantics is not Semantics.WRITTEN or sigma != 6.0:
        given["sigma"] = scale
    text = ",".join(f"{name}={_plain(value)}" for name, value in given.items())
    return f"{defense}:{text}" if text else defense


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


ADAPTIVE = ("quantile-clip", "adaclip")


def under(
    method: str,
    setting: Setting,
    semantics: Semantics = Semantics.WRITTEN,
    policy: str = "exponential",
) -> str:
    """Returns the text of any method: its noise by the semantics, its decay by rounds.

    Adaptive clipping draws its noise per example: a lot's is that of B K draws.
    """
    lot = math.sqrt(setting.clients_per_round)
    if method == "none":
        return method
    if method in ADAPTIVE:
        own = f"sigma={6 / (math.sqrt(setting.batch_size) * lot):.6g}"
        return method if semantics is Semantics.WRITTEN else f"{method}:{own}"
    if method == "fed-alpha-cdp-sigma":
        text = f"{method}:rounds={setting.rounds}"
        text += "" if policy == "exponential" else f",policy={policy}"
        noise = f",start={15 / lot:.6g},end={4.85 / lot:.6g},noise_at=batch"
        return text if semantics is Semantics.WRITTEN else text + noise
    own_rounds = {"rounds": setting.rounds} if method == "fed-cdp-decay" else {}
    return noised(method, setting, semantics, **own_rounds)


@functools.lru_cache(maxsize=2)
def data_of(name: str) -> tuple[Dataset, Dataset]:
    """Returns a data set's training and test examples; the last ones are kept."""
    return load_dataset(name, "train"), load_dataset(name, "test")


def measure_training(
    context: Context,
    *,
    dataset: str,
    defense: str,
    setting: Plain,
    evaluate_every: int,
    seeds: list[int],
    model: str | None = None,
    public_examples: int = 0,
) -> Plain:
    """Trains once for each seed; returns accuracy, its curve, epsilon, norms, times.

    `setting` are the fields that differ from the published one of the data set.
    """
    chosen = setting_of(dataset, setting)
    runs = []
    for index, seed in enumerate(seeds):

        def on_round(progress: Progress, index: int = index) -> None:
            done = index * chosen.rounds + int(progress.state.round)
            context.tell("training", done, len(seeds) * chosen.rounds)

        result = train(
            data_of(dataset),
            defense=defense,
            model=model,
            standardize=dataset in _STANDARDIZED,
            setting=chosen,
            public_examples=public_examples,
            seed=seed,
            evaluate_every=evaluate_every,
            out=None if context.folder is None else context.folder / str(seed),
            on_round=on_round,
        )
        if result.stopped is Stopped.INTERRUPTED:
            raise KeyboardInterrupt
        runs.append(result)
    return _measured(runs, chosen)


def setting_of(dataset: str, changes: Plain) -> Setting:
    """Returns the published setting of a data set, or one place, with changes."""
    given = dict(changes)
    if given.pop("centralized", False):
        base = centralized_setting(CATALOGUE[dataset].size("train"))
    else:
        base = default_setting(dataset)
        rate = _LEARNING_RATE.get(dataset, base.learning_rate)
        base = dataclasses.replace(base, learning_rate=rate)
    kinds = {
        "optimizer": Optimizer,
        "selection": Selection,
        "partition": parse_partition,
    }
    for name, kind in kinds.items():
        if name in given:
            given[name] = kind(given[name])
    return dataclasses.replace(base, **given)


def _measured(runs: list[TrainingResult], setting: Setting) -> Plain:
    first, rounds = runs[0], len(runs[0].history)
    finals = [_accuracy(run) for run in runs]
    work = max(1, setting.clients_per_round * setting.local_steps)
    milliseconds = [run.milliseconds for run in runs if run.milliseconds is not None]
    per_unit = min(milliseconds, default=0.0) / 1e3
    if setting.clients == 1:
        per_unit *= work
    return {
        "accuracy": statistics.fmean(finals),
        "each": finals,
        "stopped": [run.stopped.name.lower() for run in runs],
        "curve": [
            [record.round, record.accuracy]
            for record in first.history
            if record.accuracy is not None
        ],
        "norms": [
            math.hypot(*record.norm_before)
            for record in first.history[:: max(1, rounds // 20)]
        ],
        "epsilon": first.accounting["epsilon"] if first.accounting else None,
        "timing": {
            "milliseconds_per_client_and_iteration": milliseconds,
            "seconds_per_unit": per_unit,
        },
    }


def _accuracy(run: TrainingResult) -> float:
    """Returns the last accuracy; a model that is not finite has none, so 0."""
    return 0.0 if run.stopped is Stopped.DIVERGED else float(run.accuracy or 0.0)
