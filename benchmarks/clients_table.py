"""`clients`: accuracy by defense, number of clients and share per round.

Wei et al. 2023, Table 4; Wei et al. 2021, Table II. A second table holds what the
noise may mean: text, formulas and released code differ. A third one has every method on
every data set.
"""

import dataclasses

from gradaudit.benchmarks.papers import published
from gradaudit.benchmarks.suite import (
    Benchmark,
    Cell,
    Entry,
    Measured,
    Row,
    Scale,
    Table,
    found,
    number,
)
from gradaudit.benchmarks.training_cells import (
    ADAPTIVE,
    Semantics,
    federated,
    noised,
    sizes,
    under,
)

METHODS = ("none", "fed-sdp", "fed-cdp", "fed-cdp-decay", "fed-alpha-cdp")
_SHARES = (0.05, 0.1, 0.2, 0.5)
# Default column first, the dear ones last: an interrupted run has what matters.
_COLUMNS = {
    Scale.SMOKE: ((4, 0.5),),
    Scale.SMALL: ((100, 0.1), (100, 0.2)),
    Scale.PAPER: (
        (1000, 0.1),
        *((100, share) for share in _SHARES),
        *((1000, share) for share in (0.05, 0.2, 0.5)),
        *((10_000, share) for share in _SHARES),
    ),
}
_MEANINGS = {
    "fed-sdp": (Semantics.WRITTEN, Semantics.LOT),
    "fed-cdp": tuple(Semantics),
    "fed-alpha-cdp": tuple(Semantics),
}
SETS = ("mnist", "fashion-mnist", "cifar10", "adult", "cancer")
EVERY = (*METHODS, "fed-alpha-cdp-sigma", *ADAPTIVE)


def dataset(scale: Scale) -> str:
    """Returns the data set of the table."""
    return "cancer" if scale is Scale.SMOKE else "mnist"


def _at(defense: str, scale: Scale, seed: int, clients: int, share: float) -> Cell:
    """Returns the training at one column; the cell's name begins with it."""
    taking = {"clients": clients, "clients_per_round": round(clients * share)}
    cell = federated(dataset(scale), defense, scale, seed, **taking)
    return dataclasses.replace(cell, name=f"N={clients}, {share:.0%}: {defense}")


def _cell(method: str, scale: Scale, seed: int, clients: int, share: float) -> Cell:
    defense = under(method, sizes(dataset(scale), scale))
    return _at(defense, scale, seed, clients, share)


def _meaning(method: str, semantics: Semantics, scale: Scale, seed: int) -> Cell:
    text = noised(method, sizes(dataset(scale), scale), semantics)
    return _at(text, scale, seed, *_COLUMNS[scale][0])


def _on(name: str, method: str, scale: Scale, seed: int) -> Cell:
    """Returns a method's training on one of the sets, its noise per lot."""
    text = under(method, sizes(name, scale), Semantics.LOT)
    if name == dataset(scale):
        return _at(text, scale, seed, *_COLUMNS[scale][0])
    return federated(name, text, scale, seed)


def cells(scale: Scale, seed: int) -> list[Cell]:
    """Returns the default column, what noise may mean, every set, other columns."""
    first, *others = _COLUMNS[scale]
    methods = ("none", "fed-cdp") if scale is Scale.SMOKE else METHODS
    every = [_cell(method, scale, seed, *first) for method in methods]
    meanings = [] if scale is Scale.SMOKE else list(_MEANINGS.items())
    every += [_meaning(m, each, scale, seed) for m, all_ in meanings for each in all_]
    sets = () if scale is Scale.SMOKE else SETS
    every += [_on(name, m, scale, seed) for name in reversed(sets) for m in EVERY]
    few = ("none", "fed-cdp") if scale is Scale.SMALL else methods
    every += [_cell(m, scale, seed, *column) for column in others for m in few]
    return list({cell.name: cell for cell in every}.values())


def _printed(method: str, clients: int, share: float) -> float | None:
    alpha = published("fed-alpha-cdp", "Table 4")
    table = alpha if method in alpha["rows"] else published("fed-cdp", "Table II")
    if [clients, share] not in table["columns"]:
        return None
    column = table["columns"].index([clients, share])
    value: float = table["rows"][method][column]
    return value


def accuracy(measured: Measured, name: str, printed: float | None = None) -> Entry:
    """Returns the accuracy of a training beside the printed one."""
    value = found(measured, name, "accuracy")
    text = number(value)
    if "diverged" in (found(measured, name, "stopped") or ()):
        text = "diverged"
    return Entry(text, "" if printed is None else number(printed))


def tables(measured: Measured, scale: Scale) -> list[Table]:
    """Returns the published table, and what noise may mean in its default column."""
    columns = sorted(_COLUMNS[scale])
    rows: list[Row] = [
        [
            method,
            *(
                accuracy(
                    measured, _cell(method, scale, 0, *at).name, _printed(method, *at)
                )
                for at in columns
            ),
        ]
        for method in METHODS
    ]
    heads = ["defense", *(f"N={n:,}, {share:.0%}" for n, share in columns)]
    first = _COLUMNS[scale][0]
    meanings: list[Row] = [
        [
            method,
            *(
                accuracy(measured, _meaning(method, each, scale, 0).name)
                if each in _MEANINGS[method]
                else "–"
                for each in Semantics
            ),
            number(_printed(method, *first)),
        ]
        for method in _MEANINGS
    ]
    words = ["defense", *(each.value for each in Semantics), "published"]
    title = f"What the noise may mean: N={first[0]:,}, {first[1]:.0%}"
    made = [
        Table("Accuracy: measured (published)", heads, rows),
        Table(title, words, meanings),
    ]
    return made if scale is Scale.SMOKE else [*made, _sets_table(measured, scale)]


def _sets_table(measured: Measured, scale: Scale) -> Table:
    rows: list[Row] = [
        [method, *(accuracy(measured, _on(n, method, scale, 0).name) for n in SETS)]
        for method in EVERY
    ]
    title = "Accuracy on every set, noise per lot: measured"
    return Table(title, ["defense", *SETS], rows)


def differences(scale: Scale) -> list[str]:
    """Returns what differs from the published setting."""
    setting = sizes(dataset(scale), scale)
    said = [
        f"L = {setting.local_steps} local iterations (100), T = {setting.rounds} "
        "rounds (100) on images; adult and cancer at the published sizes",
        "of the other columns only one, of no defense and Fed-CDP",
    ]
    said = said if scale is not Scale.PAPER else []
    return [
        *said,
        "fashion-mnist has MNIST's setting; features of adult and cancer standardized, "
        "cancer's learning rate 0.1",
        "accuracy on the official test images; the papers hold out a sixth of the "
        "training images",
        "one seed (cancer: three)",
    ]


CLIENTS = Benchmark(
    "clients",
    "Accuracy by defense, clients and share per round",
    "Wei et al. 2023, Table 4; Wei et al. 2021, Table II",
    cells,
    tables,
    differences,
)
