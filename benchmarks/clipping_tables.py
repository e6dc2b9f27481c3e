"""`clipping`, `noise-scale`, `adaptive-clipping`: accuracy by bound and noise.

Wei et al. 2023, Tables 5 and 10; Wei et al. 2021, Tables IV and V; Wei & Liu 2022,
Tables IV and XI. The federated tables stand twice: with the noise as written, which is
more than training survives on most sets, and with one draw per lot, the reading that
the papers' accounting has.
"""

import math

from gradaudit.benchmarks.clients_table import accuracy
from gradaudit.benchmarks.papers import published
from gradaudit.benchmarks.suite import (
    Benchmark,
    Cell,
    Entry,
    Measured,
    Row,
    Scale,
    Table,
)
from gradaudit.benchmarks.training_cells import (
    ADAPTIVE,
    Semantics,
    central_batch,
    central_steps,
    centralized,
    federated,
    federated_sets,
    noised,
    sizes,
    under,
)

FEDERATED = ("fed-sdp", "fed-cdp", "fed-alpha-cdp")
DYNAMIC = ("dp-baseline", "dp-dyns-cdecay", "dp-dyns-l2max", "dp-dyns")
READINGS = (Semantics.WRITTEN, Semantics.LOT)
_CLIPS = (0.1, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
_SMALL_CLIPS = {
    ("mnist", Semantics.WRITTEN): (4.0,),
    ("mnist", Semantics.LOT): (1.0, 4.0),
    ("cifar10", Semantics.WRITTEN): (),
    ("cifar10", Semantics.LOT): (4.0,),
    ("adult", Semantics.WRITTEN): (4.0,),
    ("adult", Semantics.LOT): (1.0, 4.0),
    ("cancer", Semantics.WRITTEN): (4.0,),
    ("cancer", Semantics.LOT): (1.0, 4.0),
}
_BLANK = Entry()
_SIGMAS = (0.5, 1.0, 2.0, 4.0, 6.0, 8.0)
_SMALL_SIGMAS = (0.5, 6.0)


def central_sets(scale: Scale) -> tuple[str, ...]:
    """Returns the data sets that are trained on at one place."""
    few = {Scale.SMOKE: ("cancer",), Scale.SMALL: ("mnist", "fashion-mnist")}
    return few.get(scale, ("mnist", "fashion-mnist", "cifar10"))


def clips(name: str, reading: Semantics, scale: Scale) -> tuple[float, ...]:
    """Returns the bounds that are tried on a data set."""
    if scale is Scale.SMOKE:
        return (4.0,)
    return _SMALL_CLIPS[name, reading] if scale is Scale.SMALL else _CLIPS


def readings(name: str, scale: Scale) -> tuple[Semantics, ...]:
    """Returns what the noise is taken to mean on a data set.

    As written it leaves nothing of a training on images: one set shows it.
    """
    if scale is Scale.SMOKE:
        return (Semantics.WRITTEN,)
    one = scale is Scale.SMALL and name == "cifar10"
    return (Semantics.LOT,) if one else READINGS


def central_clips(scale: Scale) -> tuple[float, ...]:
    """Returns the bounds that are tried at one place."""
    return _CLIPS[2:] if scale is Scale.PAPER else (4.0,)


def bounded(
    method: str, clip: float, reading: Semantics, name: str, scale: Scale, seed: int
) -> Cell:
    """Returns the training with one bound; 4 is the default of every method."""
    setting = sizes(name, scale)
    own = {} if clip == 4.0 else {"clip": clip}
    return federated(name, noised(method, setting, reading, **own), scale, seed)


def central(
    method: str,
    name: str,
    scale: Scale,
    seed: int,
    clip: float = 4.0,
    policy: str = "linear",
) -> Cell:
    """Returns a training at one place, with noise on the batch's sum (DP-SGD)."""
    steps = central_steps(scale)
    decay = f"start={clip:g},end={clip / 2:g},rounds={steps},noise_at=batch"
    sigma = f"rounds={steps},policy={policy},noise_at=batch"
    adaptive = f"clip={clip:g},sigma={6 / math.sqrt(central_batch(name)):.6g}"
    text = {
        "none": "none",
        "dp-baseline": f"dp-baseline:clip={clip:g},noise_at=batch",
        "dp-dyns-cdecay": f"dp-dyns-cdecay:{decay}",
        "dp-dyns-l2max": f"dp-dyns-l2max:clip={clip:g},noise_at=batch",
        "dp-dyns": f"dp-dyns:{decay}",
        "dp-dynsigma": f"dp-dynsigma:clip={clip:g},{sigma}",
        "dp-dyn": f"dp-dyn:start={clip:g},end={clip / 2:g},{sigma}",
        "quantile-clip": f"quantile-clip:{adaptive}",
        "adaclip": f"adaclip:{adaptive}",
        "as written": "dp-baseline",
    }[method]
    return centralized(name, text, scale, seed)


def unique(cells: list[Cell]) -> list[Cell]:
    """Returns the cells without those that are there before."""
    return list({cell.name: cell for cell in cells}.values())


def _central_methods(name: str, scale: Scale) -> tuple[str, ...]:
    if scale is Scale.SMOKE:
        return ("dp-baseline",)
    few = scale is Scale.SMALL
    return ("none", "dp-baseline", "dp-dyns") if few else ("none", *DYNAMIC)


def clipping_cells(scale: Scale, seed: int) -> list[Cell]:
    """Returns the trainings of both tables."""
    smoke = scale is Scale.SMOKE
    every = [federated(name, "none", scale, seed) for name in federated_sets(scale)]
    every += [
        bounded(method, clip, reading, name, scale, seed)
        for name in reversed(federated_sets(scale))  # the cheap ones first
        for reading in readings(name, scale)
        for clip in clips(name, reading, scale)
        for method in (FEDERATED[1:2] if smoke else FEDERATED)
    ]
    every += [
        central(method, name, scale, seed, clip)
        for name in central_sets(scale)
        for clip in central_clips(scale)
        for method in _central_methods(name, scale)
    ]
    if scale is Scale.PAPER:
        every.append(central("as written", "mnist", scale, seed))
    return unique(every)


def _federated_rows(measured: Measured, scale: Scale, reading: Semantics) -> list[Row]:
    table = published("fed-alpha-cdp", "Table 5")
    rows: list[Row] = []
    for name in federated_sets(scale):
        plain = accuracy(
            measured,
            federated(name, "none", scale, 0).name,
            table["rows"][name]["none"],
        )
        rows.append([name, "none", plain, *[_BLANK] * len(_CLIPS)])
        for method in FEDERATED:
            printed = table["rows"][name][method]
            entries = [
                accuracy(
                    measured,
                    bounded(method, clip, reading, name, scale, 0).name,
                    printed[table["columns"].index(clip)],
                )
                for clip in _CLIPS
            ]
            rows.append([name, method, _BLANK, *entries])
    return rows


def _central_rows(measured: Measured, scale: Scale) -> list[Row]:
    table = published("dynamic-dp", "Table IV")
    rows: list[Row] = []
    for name in central_sets(scale):
        known = table["rows"].get(name, {})
        plain = accuracy(
            measured, central("none", name, scale, 0).name, known.get("none")
        )
        rows.append([name, "none", plain, *[_BLANK] * len(table["columns"])])
        for method in DYNAMIC:
            printed = known.get(method, [None] * len(table["columns"]))
            entries = [
                accuracy(
                    measured, central(method, name, scale, 0, float(clip)).name, value
                )
                for clip, value in zip(table["columns"], printed, strict=True)
            ]
            rows.append([name, method, _BLANK, *entries])
    written = accuracy(measured, central("as written", "mnist", scale, 0).name)
    at_four = [written if clip == 4 else _BLANK for clip in table["columns"]]
    rows.append(["mnist", "dp-baseline, noise as written", _BLANK, *at_four])
    return rows


def clipping_tables(measured: Measured, scale: Scale) -> list[Table]:
    """Returns the published tables, the federated one for each reading."""
    heads = ["data", "defense", "no bound", *(f"C={clip:g}" for clip in _CLIPS)]
    central_heads = [*heads[:3], *(f"C={clip:g}" for clip in _CLIPS[2:])]
    return [
        *(
            Table(
                f"Federated, noise {reading.value}: accuracy, measured (published)",
                heads,
                _federated_rows(measured, scale, reading),
            )
            for reading in READINGS
        ),
        Table(
            "At one place, noise per batch: accuracy, measured (published)",
            central_heads,
            _central_rows(measured, scale),
        ),
    ]


def _sigmas(name: str, scale: Scale) -> tuple[float, ...]:
    if scale is Scale.SMOKE:
        return (6.0,)
    few = (6.0,) if name == "cifar10" else _SMALL_SIGMAS
    return few if scale is Scale.SMALL else _SIGMAS


def _scaled(
    name: str, sigma: float, reading: Semantics, scale: Scale, seed: int
) -> Cell:
    text = noised("fed-cdp", sizes(name, scale), reading, sigma)
    return federated(name, text, scale, seed)


def noise_cells(scale: Scale, seed: int) -> list[Cell]:
    """Returns the trainings of Fed-CDP by noise scale."""
    return unique(
        [
            _scaled(name, sigma, reading, scale, seed)
            for name in reversed(federated_sets(scale))
            for reading in readings(name, scale)
            for sigma in _sigmas(name, scale)
        ]
    )


def noise_tables(measured: Measured, scale: Scale) -> list[Table]:
    """Returns Table V for each reading."""
    table = published("fed-cdp", "Table V")
    made = []
    for reading in READINGS:
        rows: list[Row] = []
        for name in federated_sets(scale):
            entries = [
                accuracy(
                    measured, _scaled(name, float(sigma), reading, scale, 0).name, value
                )
                for sigma, value in zip(
                    table["columns"], table["rows"][name], strict=True
                )
            ]
            rows.append([name, *entries])
        heads = ["data", *(f"sigma={sigma:g}" for sigma in table["columns"])]
        title = f"Fed-CDP, C=4, noise {reading.value}: accuracy, measured (published)"
        made.append(Table(title, heads, rows))
    return made


def _adaptive(
    method: str, name: str, reading: Semantics, scale: Scale, seed: int
) -> Cell:
    return federated(name, under(method, sizes(name, scale), reading), scale, seed)


def adaptive_cells(scale: Scale, seed: int) -> list[Cell]:
    """Returns the trainings under adaptive clipping, federated and at one place."""
    smoke = scale is Scale.SMOKE
    methods = ADAPTIVE[:1] if smoke else (*ADAPTIVE, "fed-alpha-cdp-sigma")
    every = [
        _adaptive(method, name, reading, scale, seed)
        for name in reversed(federated_sets(scale))
        for reading in readings(name, scale)
        for method in methods
        if (name, reading, scale) != ("mnist", Semantics.WRITTEN, Scale.SMALL)
    ]
    every += [federated(name, "none", scale, seed) for name in federated_sets(scale)]
    sets = central_sets(scale)[: {Scale.SMOKE: 0, Scale.SMALL: 1}.get(scale, 3)]
    every += [
        central(method, name, scale, seed, policy="exponential")
        for name in sets
        for method in ("dp-baseline", *ADAPTIVE, "dp-dyn")
    ]
    return unique(every)


def adaptive_tables(measured: Measured, scale: Scale) -> list[Table]:
    """Returns Table 10's accuracies for each reading, and Table XI's."""
    table, made = published("fed-alpha-cdp", "Table 10"), []
    for reading in READINGS:
        rows: list[Row] = []
        for method in table["rows"]:
            entries = []
            for name in federated_sets(scale):
                at = table["columns"].index(name)
                cell = (
                    federated(name, "none", scale, 0)
                    if method == "none"
                    else _adaptive(method, name, reading, scale, 0)
                )
                printed = table["rows"][method]["accuracy"][at]
                entries.append(accuracy(measured, cell.name, printed))
            rows.append([method, *entries])
        heads = ["defense", *federated_sets(scale)]
        title = f"Federated, noise {reading.value}: accuracy, measured (published)"
        made.append(Table(title, heads, rows))
    central_table = published("dynamic-dp", "Table XI")
    sets = [name for name in central_sets(scale) if name in central_table["columns"]]
    rows = [
        [
            method,
            *(
                accuracy(
                    measured,
                    central(method, name, scale, 0, policy="exponential").name,
                    printed["accuracy"][central_table["columns"].index(name)],
                )
                for name in sets
            ),
        ]
        for method, printed in central_table["rows"].items()
    ]
    title = "At one place, noise per batch: accuracy, measured (published)"
    return [*made, Table(title, ["defense", *sets], rows)]


def differences(scale: Scale) -> list[str]:
    """Returns what differs from the published setting."""
    if scale is Scale.PAPER:
        return ["LFW with identities and Purchase are in no registry: left out"]
    said = []
    for name in federated_sets(scale):
        own = sizes(name, scale)
        said.append(
            f"{name}: N = {own.clients:,} (1,000), K = {own.clients_per_round} (100), "
            f"L = {own.local_steps} (100), T = {own.rounds}"
        )
    return [
        *said,
        f"at one place: {central_steps(scale)} steps (10,000), batches as published, "
        "noise on the batch's sum unless the row says otherwise",
        "a dash: the small scale leaves it out (few bounds, scales and policies; noise "
        "as written on MNIST, adult and cancer only)",
        "LFW with identities and Purchase are in no registry: left out",
        "one seed (cancer: three); learning rate 0.05 (cancer 0.1), features of adult "
        "and cancer standardized",
    ]


CLIPPING = Benchmark(
    "clipping",
    "Accuracy by clipping bound",
    "Wei et al. 2023, Table 5; Wei et al. 2021, Table IV; Wei & Liu 2022, Table IV",
    clipping_cells,
    clipping_tables,
    differences,
)
NOISE_SCALE = Benchmark(
    "noise-scale",
    "Accuracy of Fed-CDP by noise scale",
    "Wei et al. 2021, Table V",
    noise_cells,
    noise_tables,
    differences,
)
ADAPTIVE_CLIPPING = Benchmark(
    "adaptive-clipping",
    "Accuracy under quantile clipping and AdaClip",
    "Wei et al. 2023, Table 10; Wei & Liu 2022, Table XI",
    adaptive_cells,
    adaptive_tables,
    differences,
)
