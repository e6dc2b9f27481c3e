"""`adversaries`: how strong the adversaries are, the strongest one beside CPL.

Nothing is published. Cases: what is attacked plainly, a trained model, clipped, pruned
and noisy gradients, several looks, batches, Inverting Gradients with a chosen weight,
pooling.
"""

import dataclasses
import pathlib
import tempfile
from typing import Any

from gradaudit.audit.attack import attack
from gradaudit.audit.train import train
from gradaudit.audit.training_plan import default_setting
from gradaudit.benchmarks.attack_cells import attacking, error, rate, summary
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
    number,
)
from gradaudit.data import parse_partition
from gradaudit.report.result import PARAMETERS

_FACES, _MNIST, _PHOTOS = "lfw-patches", "mnist", "photos"
_SETS = (_FACES, _MNIST, _PHOTOS)
_NOISE = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
_PRUNED = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
# Adam with these weights of total variation, beside Gauss-Newton.
_ADAM = {0.001: 0.01, 0.003: 0.01, 0.01: 0.1, 0.03: 0.1}
_ASKED = 0.6  # of a face's gradient pruned: everybody of the portfolio is asked
_LOOKS = (1, 4, 16)
# What a saturated example of a batch takes: set on seeds that no cell uses.
_PATIENT = "patient"
_BATCHES = (("cifar10", 2), (_MNIST, 8), (_FACES, 8))
# Everybody takes part, so that few local steps are enough for a good network.
TRAINING = {
    "clients": 100, "clients_per_round": 100, "examples": 600, "batch_size": 5,
    "local_steps": 20, "learning_rate": 0.3, "rounds": 30,
}  # fmt: skip
Run = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class _Sizes:
    """How many victims each case has, on how many draws of the network."""

    plain: dict[str, tuple[int, ...]]  # seeds of a data set: 16 victims, 4 draws each
    noise: dict[str, tuple[float, ...]]
    pruned: dict[str, tuple[float, ...]]
    swept: int  # of one clipped, pruned or noisy cell
    batches: int
    slow: int  # of Inverting Gradients and of pooling
    trained: int
    draws: int


_SEEDS = {
    _FACES: tuple(range(8, 20)), _MNIST: tuple(range(5)), _PHOTOS: tuple(range(5)),
}  # fmt: skip
_FEW = (0.3, 0.6, 0.9)
_SIZES = {
    Scale.SMALL: _Sizes(
        _SEEDS,
        {_FACES: _NOISE, _MNIST: (0.001, 0.01, 0.03, 0.1, 1.0)},
        {_FACES: (0.1, 0.3, 0.6, 0.8, 0.9), _MNIST: _FEW, _PHOTOS: _FEW},
        swept=12, batches=8, slow=12, trained=12, draws=4,
    ),
    Scale.PAPER: _Sizes(
        _SEEDS,
        dict.fromkeys((_FACES, _MNIST), _NOISE),
        dict.fromkeys(_SETS, _PRUNED),
        swept=40, batches=20, slow=100, trained=40, draws=10,
    ),
}  # fmt: skip


def _threats(dataset: str, defense: str, everybody: bool) -> list[Run]:
    """Returns a curious attack and what the aware do, all of them if `everybody`."""
    curious = {"dataset": dataset, "defense": defense, "method": "cpl"}
    aware = curious | {"threat": "aware", "method": "gauss-newton"}
    asked = [curious, aware]
    return [*asked, aware | {"method": "strongest"}] if everybody else asked


def _noisy(dataset: str, sigma: float) -> list[Run]:
    """Returns who faces noise of this scale: on faces also Adam, where it has a say."""
    asked = _threats(dataset, f"fed-cdp:clip=4,sigma={sigma:g}", False)
    if dataset == _FACES and sigma in _ADAM:
        asked.append(asked[-1] | {"method": f"aware:variation={_ADAM[sigma]:g}"})
    return asked


def _cases(own: _Sizes, seed: int) -> dict[str, list[Run]]:
    """Returns the attacks of every case."""
    swept, slow = {"victims": own.swept}, {"victims": own.slow}
    return {
        "plain": [
            {
                "dataset": data, "method": "strongest", "seed": seed + start,
                "victims": 16, "draws": 4,
            }
            for data, seeds in own.plain.items()
            for start in seeds
        ],
        "clip": [
            swept | run for run in _threats(_FACES, "fed-cdp:clip=0.5,sigma=0", True)
        ],
        "prune": [
            swept | run
            for data, ratios in own.pruned.items()
            for ratio in ratios
            for run in _threats(
                data,
                f"prune:ratio={ratio:g},at=per_example",
                data == _FACES and ratio == _ASKED,
            )
        ],
        "noise": [
            swept | run
            for data, sigmas in own.noise.items()
            for sigma in sigmas
            for run in _noisy(data, sigma)
        ],
        "looks": [
            swept
            | {
                "dataset": _FACES, "defense": "fed-cdp:clip=4,sigma=0.1",
                "threat": "aware", "method": "gauss-newton", "looks": looks,
            }
            for looks in _LOOKS
        ],
        "batches": [
            {
                "dataset": data, "type": 1, "batch_size": size, "method": method,
                "victims": own.batches,
            }
            for data, size in _BATCHES
            for method in ("cpl", _PATIENT if size > 2 else "gauss-newton")
        ],
        "gradinv": [slow | {"dataset": d, "method": "gradinv-chosen"} for d in _SETS],
        "pooling": [
            slow | {"dataset": _MNIST, "model": "ldp-cnn", "method": "strongest"}
        ],
    }  # fmt: skip


def _name(case: str, run: Run) -> str:
    words = [
        run["dataset"],
        run.get("defense", ""),
        run["method"],
        run.get("threat", ""),
        f"B={run['batch_size']}" if "batch_size" in run else "",
        f"{run['looks']} looks" if "looks" in run else "",
        f"seed {run['seed']}" if "seed" in run else "",
    ]
    return f"{case}: " + ", ".join(filter(None, words))


def _trained(own: _Sizes, seed: int) -> Cell:
    """Returns the cell that trains once and attacks what it learned."""
    victims: Plain = {"victims": own.trained}
    attacks: dict[str, Plain] = {
        "type 2, cpl": victims | {"type": 2, "method": "cpl"},
        "type 2, strongest": victims | {"type": 2, "method": "strongest"},
        "type 1, B=1, strongest": {"type": 1, "batch_size": 1, "victims": 4},
        "type 0, B=1, strongest": {"type": 0, "batch_size": 1, "victims": 4},
    }
    return Cell(
        "trained: mnist, cnn",
        measure_trained,
        {
            "dataset": _MNIST,
            "model": "cnn",
            "setting": TRAINING,
            "attacks": {n: {"method": "strongest"} | a for n, a in attacks.items()},
            "seed": seed,
        },
        datasets=(_MNIST,),
    )


def measure_trained(
    context: Context,
    *,
    dataset: str,
    model: str,
    setting: Plain,
    attacks: Plain,
    seed: int,
) -> Plain:
    """Trains without a defense; attacks what the network is at the last round.

    Type 2 reads clients of that round as they took part. A client's whole round has too
    many examples for any attack, so that the other types read an update of one step; so
    does whoever faces a `defense`: what was trained is attacked as if it went on under
    that.
    Returns the validation accuracy, and by name what each attack measured.
    """
    last = setting["rounds"]
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(context.folder or scratch) / "training"
        base = dataclasses.replace(
            default_setting(dataset), partition=parse_partition("iid"), **setting
        )
        trained = train(
            dataset, model=model, setting=base, seed=seed, out=folder,
            evaluate_every=last, record=[last],
        )  # fmt: skip
        found: Plain = {}
        for name, given in attacks.items():
            context.tell(f"attacking, {name}", len(found), len(attacks))
            took_part = given["type"] == 2 and "defense" not in given
            read = {"run": folder, "round": last} if took_part else {}
            end = folder / PARAMETERS
            other = {"params": end, "dataset": dataset, "model": model}
            result = attack(**given, **(read or other), seed=seed)
            if result.interrupted:
                raise KeyboardInterrupt
            found[name] = summary(result)
    return {"accuracy": trained.accuracy, "attacks": found}


def cells(scale: Scale, seed: int) -> list[Cell]:
    """Returns the attacks of every case."""
    if scale is Scale.SMOKE:
        run = {"dataset": _FACES, "method": "cpl"}
        return [attacking(_name("plain", run), scale, seed, **run)]
    own = _SIZES[scale]
    made = [
        attacking(_name(case, run), scale, **({"seed": seed, "draws": own.draws} | run))
        for case, runs in _cases(own, seed).items()
        for run in runs
    ]
    return [*made, _trained(own, seed)]


def tables(measured: Measured, scale: Scale) -> list[Table]:
    """Returns a table for each case: a row for each attack."""
    each: dict[str, list[Row]] = {}
    for name, cell in measured.items():
        case, _, rest = name.partition(": ")
        if case == "trained":
            title = f"trained, accuracy {cell['accuracy']:.3f}"
            rows = [_row(f"{rest}, {n}", c) for n, c in cell["attacks"].items()]
        else:
            title, rows = case, [_row(rest, cell)]
        each.setdefault(title, []).extend(rows)
    return [Table(title, _HEADS, rows) for title, rows in each.items()]


_HEADS = (
    "attack", "ASR [95 %]", "of each draw", "examples rebuilt",
    "published member alone",
    "median RMSE", "not solved", "evaluations", "s per victim",
)  # fmt: skip


def _row(name: str, cell: Plain) -> Row:
    """Returns what an attack measured, and what the published member does alone."""
    members = {each["name"]: each for each in cell["members"] or []}
    alone = next(
        (members[name] for name in ("cpl", "TV 0.01") if name in members), None
    )
    unsolved = cell["unsolved"]
    return [
        name,
        rate(cell),
        Entry(" ".join(f"{draw:.2f}" for draw in cell["draws"])),
        Entry(number(cell["examples_rebuilt"], 2)),
        Entry("–" if alone is None else f"{alone['rebuilt']}/{alone['asked']}"),
        error(cell),
        Entry("–" if unsolved is None else str(unsolved["victims"])),
        Entry(f"{cell['evaluations']:,.0f}"),
        Entry(number(cell["timing"]["seconds_per_unit"], 2)),
    ]


def differences(scale: Scale) -> list[str]:
    """Returns how to read the figures."""
    if scale is Scale.SMOKE:
        return []
    own = _SIZES[scale]
    return [
        "nothing is published: these are ours",
        f"victims are dealt over {own.draws} draws of the network (plain: 4); a "
        "trained model is one draw",
        "published member alone: CPL's successes in the portfolio, over whom it was "
        "asked about; of Inverting Gradients the published weight's",
    ]


ADVERSARIES = Benchmark(
    "adversaries",
    "The strongest adversary beside CPL",
    "nothing published",
    cells,
    tables,
    differences,
)
