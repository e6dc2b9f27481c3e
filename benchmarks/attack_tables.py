"""`attacks` and `resilience`: which attack rebuilds what, and which defense stops it.

Wei et al. 2023, Tables 1 and 3; Wei et al. 2021, Table VII; Wei & Liu 2022, Table III.
"""

import functools

from gradaudit import defenses
from gradaudit.audit.threat import transforms_seen
from gradaudit.benchmarks.adversaries import TRAINING, measure_trained
from gradaudit.benchmarks.attack_cells import (
    BATCHES,
    STALL,
    VICTIMS,
    attacking,
    error,
    iterations,
    rate,
    resilient,
)
from gradaudit.benchmarks.papers import published
from gradaudit.benchmarks.suite import (
    Benchmark,
    Cell,
    Entry,
    Measured,
    Row,
    Scale,
    Table,
    number,
    of_scale,
)
from gradaudit.types import Leakage

# Our faces stand for LFW's, which is in no registry.
COLUMNS = {"mnist": "mnist", "cifar10": "cifar10", "lfw-patches": "lfw"}
_METHODS = {
    "cpl": {Scale.PAPER: "cpl:stop=paper"},
    "dlg": {Scale.PAPER: "dlg:stop=paper"},
    "idlg": {Scale.PAPER: "idlg:stop=paper"},
    "gradinv": {},
}
_ITERATIONS = {"lfw-patches": 2400, "mnist": 600, "cifar10": 600}


def _attack(method: str, dataset: str, scale: Scale, seed: int) -> Cell:
    text = _METHODS[method].get(scale, method)
    if text == "gradinv" and scale is Scale.SMALL:
        text += f":iterations={_ITERATIONS[dataset]}"
    return attacking(f"{dataset}, {method}", scale, seed, method=text, dataset=dataset)


def attack_cells(scale: Scale, seed: int) -> list[Cell]:
    """Returns every attack on every data set."""
    if scale is Scale.SMOKE:
        return [_attack("cpl", "digits", scale, seed)]
    return [
        _attack(method, dataset, scale, seed)
        for dataset in ("lfw-patches", "mnist", "cifar10")
        for method in _METHODS
    ]


def attack_tables(measured: Measured, scale: Scale) -> list[Table]:
    """Returns Table 1: success, error, iterations."""
    table = published("fed-alpha-cdp", "Table 1")
    rows: list[Row] = []
    for dataset in ("digits",) if scale is Scale.SMOKE else COLUMNS:
        column = COLUMNS.get(dataset)
        at = None if column is None else table["columns"].index(column)
        for method in _METHODS:
            cell = measured.get(f"{dataset}, {method}")
            printed = table["rows"].get(method)
            asr, rmse, steps = (
                (None if printed is None or at is None else printed[key][at])
                for key in ("asr", "rmse", "iterations")
            )
            rows.append(
                [
                    dataset,
                    method,
                    rate(cell, asr),
                    error(cell, rmse),
                    iterations(cell, steps),
                    Entry(number(None if cell is None else cell["labels"])),
                ]
            )
    heads = ["data", "attack", "ASR [95 %]", "median RMSE", "iterations", "labels"]
    return [Table("Type 2, no defense: measured (published)", heads, rows)]


def attack_differences(scale: Scale) -> list[str]:
    """Returns what differs from the published setting."""
    own = VICTIMS[scale]
    small = [
        "CPL, DLG and iDLG stop when their objective is 1e-7 of what leaked",
        "Inverting Gradients stops at 2,400 iterations on faces, at 600 elsewhere",
    ]
    return [
        f"{own.examples} victims on {own.draws} draws of the network (100 on one)",
        "success is RMSE at or below 0.1; the paper's threshold is not printed",
        "faces: 25x25 grey patches of LFW, two classes (32x32 colour, 62 people)",
        *(small if scale is Scale.SMALL else []),
        "distances in units of what leaked, labels from the gradient, the iterate "
        "chosen by the attacker's own objective",
    ]


# --- resilience

DEFENSES = (
    "none",
    "fed-sdp",
    "fed-sdp-client",
    "fed-cdp",
    "fed-cdp-decay",
    "fed-alpha-cdp-sigma",
    "quantile-clip",
    "adaclip",
    "dp-dyn",
)
CURIOUS, AWARE = "curious", "aware"
_METHOD_OF = {CURIOUS: f"cpl:{STALL}", AWARE: "strongest"}


def _sets(scale: Scale) -> tuple[str, ...]:
    if scale is Scale.SMOKE:
        return ("digits",)
    faces = ("lfw-patches", "mnist")
    return faces if scale is Scale.SMALL else (*faces, "fashion-mnist", "cifar10")


@functools.cache
def twin(kind: int, defense: str) -> tuple[int, str]:
    """Returns the type and defense under which the adversary reads the same bytes.

    Where nothing lies between the client and the server, types 0 and 1 see the same;
    where a defense acts after the adversary's tap, the victim is undefended.
    """
    guard = defenses.parse(defense)
    if kind == 0 and not guard.server:
        return twin(1, defense)
    if not transforms_seen(guard, Leakage(kind)):
        return (kind, "none") if defense == "none" or kind else twin(kind, "none")
    return kind, defense


def _victim(
    dataset: str, kind: int, defense: str, threat: str, scale: Scale, seed: int
) -> Cell:
    kind, defense = twin(kind, defense)
    return attacking(
        f"{dataset}, type {kind}, {defense}, {threat}",
        scale,
        seed,
        type=kind,
        method=_METHOD_OF[threat],
        defense=defense,
        dataset=dataset,
        threat=threat,
    )


def resilience_cells(scale: Scale, seed: int) -> list[Cell]:
    """Returns every defense against every adversary, those that differ."""
    if scale is Scale.SMOKE:
        few = (("none", CURIOUS), ("fed-cdp", CURIOUS))
        return [_victim("digits", 2, each, who, scale, seed) for each, who in few]
    every = [
        _victim(dataset, kind, defense, threat, scale, seed)
        for dataset in _sets(scale)
        for threat in (CURIOUS, AWARE)
        for kind in (2, 1, 0)
        for defense in DEFENSES
    ]
    every = list({cell.name: cell for cell in every}.values())
    return [*every, _trained(scale, seed)]


_TRAINED_NAME = "mnist, trained cnn"
_ON_TRAINED = ((2, "none"), (2, "fed-cdp"), (1, "fed-sdp-client"), (0, "fed-sdp"))


def _trained(scale: Scale, seed: int) -> Cell:
    """Returns the cell that trains once, and attacks what came of it."""
    victims = of_scale(scale, small=8, paper=40)
    attacks = {
        f"type {kind}, {defense}, {threat}": {
            "type": kind, "defense": defense, "threat": threat, "victims": victims,
            "method": _METHOD_OF[threat],
        }
        | ({} if kind == 2 else {"batch_size": 1})
        for kind, defense in _ON_TRAINED
        for threat in (CURIOUS, AWARE)
    }  # fmt: skip
    return Cell(
        _TRAINED_NAME,
        measure_trained,
        {
            "dataset": "mnist",
            "model": "cnn",
            "setting": TRAINING,
            "attacks": attacks,
            "seed": seed,
        },
        datasets=("mnist",),
    )


def _trained_table(measured: Measured) -> Table:
    """Returns success against a trained network: curious CPL, the strongest aware."""
    cell = measured.get(_TRAINED_NAME)
    attacks = {} if cell is None else cell["attacks"]
    rows: list[Row] = []
    for kind, defense in _ON_TRAINED:
        each = [
            attacks.get(f"type {kind}, {defense}, {who}") for who in (CURIOUS, AWARE)
        ]
        rates, errors = map(rate, each), map(error, each)
        both = zip(rates, errors, strict=True)
        rows.append([str(kind), defense, *(entry for pair in both for entry in pair)])
    accuracy = "" if cell is None else f", accuracy {cell['accuracy']:.3f}"
    heads = ["type", "defense", "ASR, curious", "RMSE", "ASR, aware", "RMSE, aware"]
    return Table(f"A trained CNN on MNIST{accuracy}", heads, rows)


def _printed(dataset: str, kind: int, defense: str) -> dict[str, float] | None:
    """Returns the printed error and iterations, of the paper that has them."""
    column = COLUMNS.get(dataset, dataset)
    alpha = published("fed-alpha-cdp", "Table 3")["rows"][f"type {kind}"]
    first = published("fed-cdp", "Table VII")["rows"]
    older = first["type 2" if kind == 2 else "type 0&1"]
    if defense in alpha and column in alpha[defense]:
        return dict(alpha[defense][column])
    if defense in older and column in older[defense]:
        rmse, steps = older[defense][column]
        return {"rmse": rmse, "iterations": steps, "resilient": steps == 300}
    return None


def _resilience_table(measured: Measured, dataset: str, scale: Scale) -> Table:
    rows: list[Row] = []
    for kind in (2, 1, 0):
        for defense in DEFENSES:
            curious, aware = (
                measured.get(_victim(dataset, kind, defense, who, scale, 0).name)
                for who in (CURIOUS, AWARE)
            )
            printed = _printed(dataset, kind, defense) or {}
            flag = printed.get("resilient")
            rows.append(
                [
                    str(kind),
                    defense,
                    resilient(curious, None if flag is None else bool(flag)),
                    rate(curious),
                    error(curious, printed.get("rmse")),
                    iterations(curious, printed.get("iterations")),
                    rate(aware),
                    error(aware),
                ]
            )
    heads = ["type", "defense", "resilient", "ASR, curious", "RMSE", "iterations"]
    heads += ["ASR, aware", "RMSE, aware"]
    return Table(f"{dataset}: measured (published)", heads, rows)


def _dynamic_table(measured: Measured, scale: Scale) -> Table:
    table = published("dynamic-dp", "Table III")
    rows: list[Row] = []
    for dataset in _sets(scale):
        at = table["columns"].index(COLUMNS.get(dataset, dataset))
        for defense, printed in table["rows"].items():
            ours = {"dp-baseline": "fed-cdp"}.get(defense, defense)
            cell = measured.get(_victim(dataset, 2, ours, CURIOUS, scale, 0).name)
            share = None if cell is None else cell["below_mse_0.70"]
            rows.append(
                [
                    dataset,
                    defense,
                    rate(cell),
                    Entry(number(share, 2), number(printed["asr"][at], 2)),
                    error(cell, printed["mse"][at] ** 0.5),
                ]
            )
    heads = ["data", "defense", "ASR, RMSE <= 0.1", "ASR, MSE < 0.70", "RMSE"]
    return Table("Type 2 as Wei & Liu 2022 count: measured (published)", heads, rows)


def resilience_tables(measured: Measured, scale: Scale) -> list[Table]:
    """Returns a table for each data set, and one with the generous threshold."""
    if scale is Scale.SMOKE:
        rows: list[Row] = [
            [name, rate(cell), error(cell)] for name, cell in measured.items()
        ]
        return [Table("Measured", ["attack", "ASR", "RMSE"], rows)]
    return [
        *(_resilience_table(measured, dataset, scale) for dataset in _sets(scale)),
        _dynamic_table(measured, scale),
        _trained_table(measured),
    ]


def resilience_differences(scale: Scale) -> list[str]:
    """Returns what differs from the published setting."""
    own = VICTIMS[scale]
    return [
        f"{own.examples} victims (type 2), {own.clients} clients (types 0 and 1), on "
        f"{own.draws} draws of the network (100 on one)",
        f"batches of {BATCHES['lfw-patches']} faces and {BATCHES['mnist']} digits",
        "resilient: the upper end of the ASR's interval is below one half",
        "an attack that stalls ends early, so iterations of failures are not compared",
        "the papers' adversary is curious; the aware one is ours",
        "trained: a CNN that a federation trained without a defense, attacked as if it "
        "went on under one; one step on one example (types 0 and 1)",
    ]


ATTACKS = Benchmark(
    "attacks",
    "Attacks on one gradient, side by side",
    "Wei et al. 2023, Table 1",
    attack_cells,
    attack_tables,
    attack_differences,
)
RESILIENCE = Benchmark(
    "resilience",
    "Which defense stops which adversary",
    "Wei et al. 2023, Table 3; Wei et al. 2021, Table VII; Wei & Liu 2022, Table III",
    resilience_cells,
    resilience_tables,
    resilience_differences,
)
