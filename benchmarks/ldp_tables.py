"""`ldp`: the epsilon that six adversaries reach against LDP-SGD.

Matsumoto et al. 2022: Figures 1b and 2 (adversaries), Figure 3 (norms), Table 3
(clients). The paper prints few numbers: of Figure 2 those of its text.
"""

import dataclasses

import jax

from gradaudit import machine
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
from gradaudit.data import load_dataset
from gradaudit.distinguish import ADVERSARIES, Box, LdpConfig, norm_sweep, play_cells
from gradaudit.models.networks import build_model

EPSILONS = (0.5, 1.0, 2.0, 4.0)
_CLIENTS = (1, 2, 4, 10)
_NORMS = (0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0)  # in units of the clip
_PARAMETERS = 13_722  # of the paper's network on MNIST
_BLACK = {Scale.SMOKE: 50, Scale.SMALL: 500, Scale.PAPER: 10_000}


def measure_game(
    context: Context,
    *,
    dataset: str,
    adversary: str,
    boxes: list[str],
    clients: int,
    trials: int,
    black_trials: int,
    measurements: int,
    seed: int,
    epsilons: list[float],
) -> Plain:
    """Plays one adversary's game at every epsilon; returns mean, spread and bounds."""
    machine.configure()
    data = load_dataset(dataset)
    model = build_model("ldp-cnn", data.shape, data.classes)
    config = LdpConfig(
        epsilons=tuple(epsilons),
        adversaries=(ADVERSARIES[adversary],),
        boxes=tuple(Box(box) for box in boxes),
        clients=clients,
        trials=trials,
        black_trials=black_trials,
        measurements=measurements,
        seed=seed,
    )
    kept = ("mean", "spread", "fp", "fn", "trials", "lower_bound", "ceiling", "exact")
    answers: dict[str, Plain] = {}
    for cell in play_cells(model, data, config):
        plain = cell.plain()
        own = answers.setdefault(cell.box.value, {})
        own[f"{cell.epsilon:g}"] = {name: plain[name] for name in kept}
    return answers


def measure_norms(
    context: Context,
    *,
    norms: list[float],
    epsilons: list[float],
    trials: int,
    measurements: int,
    seed: int,
) -> Plain:
    """Returns the white box's epsilon by the norm of a dummy gradient."""
    machine.configure()
    points = norm_sweep(
        jax.random.key(seed), _PARAMETERS, epsilons, norms, trials, measurements
    )
    return {"points": [dataclasses.asdict(point) for point in points]}


def _game(
    dataset: str, adversary: str, scale: Scale, seed: int, clients: int = 0
) -> Cell:
    smoke = scale is Scale.SMOKE
    arguments = {
        "dataset": dataset,
        "adversary": adversary,
        "boxes": ["black"] if clients else ["white"] if smoke else ["white", "black"],
        "clients": clients or 1,
        "trials": 200 if smoke else 10_000,
        "black_trials": _BLACK[scale],
        "measurements": 1 if smoke else 10,
        "seed": seed,
        "epsilons": [1.0] if smoke else list(EPSILONS),
    }
    name = f"{dataset}, {adversary}" + (f", {clients} clients" if clients else "")
    return Cell(name, measure_game, arguments, datasets=(dataset,))


def _sets(scale: Scale) -> tuple[str, ...]:
    if scale is Scale.PAPER:
        return ("mnist", "fashion-mnist", "cifar10")
    return ("digits",) if scale is Scale.SMOKE else ("mnist",)


def cells(scale: Scale, seed: int) -> list[Cell]:
    """Returns the norms, the adversaries' games, and those of several clients."""
    smoke = scale is Scale.SMOKE
    sweep = {
        "norms": [1.0] if smoke else list(_NORMS),
        "epsilons": [1.0] if smoke else list(EPSILONS),
        "trials": 200 if smoke else 10_000,
        "measurements": 1 if smoke else 10,
        "seed": seed,
    }
    norms = Cell("norms", measure_norms, sweep)
    names = ("gradient-flip",) if smoke else tuple(ADVERSARIES)
    games = [_game(d, name, scale, seed) for d in _sets(scale) for name in names]
    counts = () if smoke else _CLIENTS
    several = [_game("mnist", "benign", scale, seed, count) for count in counts]
    return [norms, *games, *several]


def tables(measured: Measured, scale: Scale) -> list[Table]:
    """Returns the three tables."""
    known = published("ldp", "Figure 2")["rows"]
    rows: list[Row] = []
    for dataset in _sets(scale):
        for adversary in ADVERSARIES:
            for box in ("white", "black"):
                name = f"{dataset}, {adversary}"
                printed = known.get(f"{adversary} {box}", {})
                printed = printed if dataset == "mnist" else {}
                entries = [
                    _reached(
                        found(measured, name, box, f"{epsilon:g}"), printed, epsilon
                    )
                    for epsilon in EPSILONS
                ]
                rows.append([dataset, adversary, box, *entries])
    heads = ["data", "adversary", "box", *(f"epsilon={e:g}" for e in EPSILONS)]
    made = [Table("Epsilon that is reached: measured (published)", heads, rows)]
    points = found(measured, "norms", "points") or []
    by_norm: list[Row] = [
        [
            f"{norm:g}",
            *(
                Entry(f"{number(p['mean'], 2)} (exact {number(p['exact'], 2)})")
                for p in points
                if p["norm"] == norm
            ),
        ]
        for norm in dict.fromkeys(point["norm"] for point in points)
    ]
    claimed = dict.fromkeys(point["epsilon"] for point in points)
    heads = ["norm / clip", *(f"epsilon={e:g}" for e in claimed)]
    made.append(Table("Dummy gradient, white box, by its norm", heads, by_norm))
    return [*made, _clients_table(measured)] if scale is not Scale.SMOKE else made


def _reached(cell: Plain | None, printed: dict[str, float], epsilon: float) -> Entry:
    value = printed.get(f"{epsilon:g}")
    text = "–"
    if cell is not None:  # without a single error, the estimate is infinite
        mean, spread = (number(cell[key], 2) for key in ("mean", "spread"))
        text = f"{mean} ± {spread}"
    return Entry(text, "" if value is None else number(value, 2))


def _clients_table(measured: Measured) -> Table:
    table = published("ldp", "Table 3")
    rows: list[Row] = []
    for count, printed in zip(
        table["columns"], table["rows"]["benign black"], strict=True
    ):
        name = f"mnist, benign, {count} clients"
        entries = [
            _reached(found(measured, name, "black", f"{e:g}"), {}, e) for e in EPSILONS
        ]
        rows.append([str(count), *entries, number(printed, 2)])
    heads = ["clients", *(f"epsilon={e:g}" for e in EPSILONS), "published"]
    return Table("Benign, black box, several clients", heads, rows)


def differences(scale: Scale) -> list[str]:
    """Returns what differs from the published setting."""
    trials = _BLACK[scale]
    few = [f"{trials:,} black-box trials in each measurement (10,000)"]
    return [
        *(few if scale is not Scale.PAPER else []),
        "the server's learning rate is not printed: 0.01",
        "Table 3 does not say its epsilon",
        "fresh Glorot parameters; each measurement has its own pair of inputs",
    ]


LDP = Benchmark(
    "ldp",
    "Epsilon reached against LDP-SGD",
    "Matsumoto et al. 2022, Figures 1b, 2 and 3, Table 3",
    cells,
    tables,
    differences,
)
