"""The published attacks by name: each a value of parts, with its paper."""

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

from gradaudit.attacks.analytic import Analytic
from gradaudit.attacks.base import Attack, Member
from gradaudit.attacks.distances import (
    CONVOLUTIONS,
    DENSE,
    Cosine,
    RelativeL2,
    SquaredL2,
)
from gradaudit.attacks.ensembles import Consistency, MedianVote
from gradaudit.attacks.gauss_newton import GaussNewton
from gradaudit.attacks.imprint import imprint
from gradaudit.attacks.labels import (
    Counts,
    FromBias,
    Joint,
    Known,
    LastLayer,
)
from gradaudit.attacks.lbfgs import LBFGS
from gradaudit.attacks.matching import WHOLE_RUN, Matching, Stop
from gradaudit.attacks.optimizers import Adam
from gradaudit.attacks.peeling import peeling
from gradaudit.attacks.portfolio import (
    LeastProduct,
    Portfolio,
    rescues,
    with_other_labels,
)
from gradaudit.attacks.priors import (
    RunningStatistics,
    SmallPixels,
    Smooth,
    TotalVariation,
)
from gradaudit.attacks.spear import Spear
from gradaudit.attacks.starts import (
    Colour,
    Constant,
    Mixed,
    Normal,
    Patterned,
    Uniform,
)
from gradaudit.errors import InputError, unknown_name
from gradaudit.text import call_with_text

# L-BFGS reaches a squared residual of about 1e-10 of the signal in float32. One example
# is rebuilt long before: docs/scaling.md has what stopping at 1e-7 costs and saves.
_EXACT = Stop(iterations=300, objective=1e-10)
# What the words in an attack's parameters stand for.
_CHOICES: dict[str, dict[str, Any]] = {
    "layer": {"all": (), "conv": CONVOLUTIONS, "dense": DENSE},
    "labels": {
        "known": Known(),
        "last-layer": LastLayer(),
        "bias": FromBias(),
        "counts": Counts(),
        "joint": Joint(),
    },
    "init": {
        "patterned": Patterned(2),
        "patterned-quarter": Patterned(4),
        "patterned-eighth": Patterned(8),
        "uniform": Uniform(),
        "normal": Normal(),
        "grey": Constant(0.5),
        "black": Constant(0.0),
        "white": Constant(1.0),
        "colour": Colour(),
    },
    "stop": {"found": dataclasses.replace(_EXACT, found=1e-7), "paper": _EXACT},
    # L2 in units of what leaked, or as the papers have it. L-BFGS stops at absolute
    # tolerances, as torch's does: the papers' absolute distance gives up on small
    # gradients, those of a class that the network is sure of.
    "scale": {"relative": RelativeL2, "paper": SquaredL2},
}


def _choose(kind: str, name: str) -> Any:
    if name in _CHOICES[kind]:
        return _CHOICES[kind][name]
    if kind == "layer":  # the name of a tensor of the user's own model
        return (name,)
    raise unknown_name(kind, name, _CHOICES[kind])


def cpl(
    iterations: int = 300,
    restarts: int = 1,
    init: str = "patterned",
    labels: str = "last-layer",
    layers: str = "all",
    history: int = 100,
    cyclic: bool = False,
    unroll: bool = True,
    patience: int = _EXACT.patience,
    scale: str = "relative",
    stop: str = "found",
) -> Matching:
    """CPL: patterned start, label from the gradient, L2, L-BFGS."""
    return Matching(
        init=_choose("init", init),
        labels=_choose("labels", labels),
        distance=_choose("scale", scale)(_choose("layer", layers)),
        optimizer=LBFGS(history=history),
        stop=dataclasses.replace(
            _choose("stop", stop), iterations=iterations, patience=patience
        ),
        restarts=restarts,
        cyclic=cyclic,
        unroll=unroll,
    )


def dlg(
    iterations: int = 300,
    restarts: int = 1,
    scale: str = "relative",
    stop: str = "found",
) -> Matching:
    """DLG: N(0, 1) start, soft labels optimised jointly, L2, L-BFGS."""
    return Matching(
        init=Normal(),
        labels=Joint(),
        distance=_choose("scale", scale)(),
        stop=dataclasses.replace(_choose("stop", stop), iterations=iterations),
        restarts=restarts,
    )


def idlg(
    iterations: int = 300,
    restarts: int = 1,
    scale: str = "relative",
    stop: str = "found",
) -> Matching:
    """IDLG: label from the gradient first, then DLG."""
    return dataclasses.replace(
        dlg(iterations, restarts, scale, stop), labels=LastLayer()
    )


def gradinv(
    iterations: int = 4800,
    restarts: int = 1,
    variation: float = 1e-2,
    learning_rate: float = 0.1,
    labels: str = "last-layer",
    layers: str = "all",
    signed: bool = True,
) -> Matching:
    """Inverting Gradients: cosine, total variation, signed Adam in the pixel box."""
    return Matching(
        init=Normal(),
        labels=_choose("labels", labels),
        distance=Cosine(_choose("layer", layers)),
        priors=(TotalVariation(variation),),
        optimizer=Adam(learning_rate, signed=signed, decays=True),
        box=True,
        # The rate falls late in the run: it never counts as stalled before its end.
        stop=Stop(iterations=iterations, patience=WHOLE_RUN),
        restarts=restarts,
    )


def gradinv_chosen(iterations: int = 4800, labels: str = "last-layer") -> Portfolio:
    """Inverting Gradients, plain Adam, three TV weights: each victim's by the attacker.

    The lowest misfit alone would take the roughest too often. First the published
    weight and signs, whose own rate is listed beside the chosen.
    """
    members = [Member("TV 0.01", gradinv(iterations, labels=labels))]
    for weight in (1e-2, 3e-3, 1e-3):
        plain = gradinv(iterations, variation=weight, labels=labels, signed=False)
        members.append(Member(f"plain Adam, TV {weight:g}", plain))
    return Portfolio(tuple(members), LeastProduct(), solved=0.0)


def aware(
    iterations: int = 1000,
    restarts: int = 1,
    variation: float = 1e-2,
    learning_rate: float = 0.05,
    labels: str = "last-layer",
) -> Matching:
    """Aware: grey start, relative L2 of what the defense makes of a guess, TV, Adam."""
    return Matching(
        init=Constant(0.5),
        labels=_choose("labels", labels),
        distance=RelativeL2(weight=1.0),
        priors=(TotalVariation(variation),),
        optimizer=Adam(learning_rate),
        box=True,
        stop=Stop(iterations=iterations, patience=WHOLE_RUN),
        restarts=restarts,
    )


def strongest(iterations: int = 1500, labels: str = "last-layer") -> Portfolio:
    """The strongest: closed form, CPL, Gauss-Newton, cosines + TV, peeling, in turn.

    Under an aware threat all of them explain what leaked through the defense, and the
    prior of Gauss-Newton follows the noise.
    """
    named = _choose("labels", labels)
    members = (
        Member("closed form", Analytic(named)),
        Member("cpl", cpl(labels=labels)),
        Member("gauss-newton", gauss_newton(labels=labels)),
        *rescues(named),
        Member("gauss-newton at last", gauss_newton(labels=labels), continues=True),
    )
    return Portfolio(members).budgeted(iterations, None)


def gauss_newton(
    iterations: int = 40,
    restarts: int = 1,
    init: str = "patterned",
    labels: str = "last-layer",
    products: int = 60,
    variation: float = Smooth.weight,
    objective: float = 1e-11,
) -> Matching:
    """Gauss-Newton: relative L2, Levenberg-Marquardt, smoothness that follows noise."""
    return Matching(
        init=_choose("init", init),
        labels=_choose("labels", labels),
        distance=RelativeL2(weight=1.0),
        priors=(Smooth(variation),),
        optimizer=GaussNewton(products=products),
        box=True,
        stop=Stop(iterations=iterations, objective=objective, patience=8),
        restarts=restarts,
    )


def patient(
    iterations: int = 200, products: int = 200, labels: str = "last-layer"
) -> Portfolio:
    """Gauss-Newton to the end of float32; batches that stay open, with other labels."""
    # Examples whose gradient is small beside the others' are found at the very end.
    search = gauss_newton(iterations, labels=labels, products=products, objective=1e-13)
    return with_other_labels(search)


def tableak(
    iterations: int = 1500, restarts: int = 30, learning_rate: float = 0.06
) -> Matching:
    """TabLeak: softmax over categories, cosine, Adam, the median and vote of restarts.

    Numbers stay in their public ranges, as the columns say.
    """
    return Matching(
        init=Uniform(),
        distance=Cosine(),
        optimizer=Adam(learning_rate),
        relaxation=Mixed(),
        stop=Stop(iterations=iterations, patience=WHOLE_RUN),
        restarts=restarts,
        pooling=MedianVote(),
    )


def gradinversion(
    iterations: int = 2000,
    restarts: int = 4,
    statistics: float = RunningStatistics.weight,
    variation: float = 1e-3,
    consistency: float = Consistency.weight,
) -> Matching:
    """GradInversion: batch-norm statistics, TV, restarts drawn towards their mean.

    The distance is the cosine: the paper's L2 does not find what trained networks saw.
    """
    return Matching(
        init=Normal(),
        distance=Cosine(),
        priors=(
            TotalVariation(variation),
            SmallPixels(1e-6),
            RunningStatistics(statistics),
        ),
        optimizer=Adam(0.1, decays=True),
        box=True,
        stop=Stop(iterations=iterations, patience=WHOLE_RUN),
        restarts=restarts,
        coupling=Consistency(consistency),
    )


def analytic() -> Analytic:
    """Exact inversion of a dense first layer, or of a transformer's patches."""
    return Analytic()


@dataclasses.dataclass(frozen=True)
class Preset:
    """A named attack: one line of `gradaudit list`."""

    name: str
    make: Callable[..., Attack]
    paper: str

    @property
    def summary(self) -> str:
        """The first line of its docstring."""
        return (inspect.getdoc(self.make) or "").splitlines()[0]


_TABLE = (
    Preset("cpl", cpl, "Wei et al. 2020 (CPL)"),
    Preset("dlg", dlg, "Zhu et al. 2019 (DLG)"),
    Preset("idlg", idlg, "Zhao et al. 2020 (iDLG)"),
    Preset("gradinv", gradinv, "Geiping et al. 2020 (Inverting Gradients)"),
    Preset(
        "gradinv-chosen",
        gradinv_chosen,
        "Geiping et al. 2020, the weight chosen by the attacker",
    ),
    Preset("patient", patient, "this project; Levenberg 1944, Marquardt 1963"),
    Preset("aware", aware, "this project; likelihoods as in Balunovic et al. 2022"),
    Preset(
        "gauss-newton", gauss_newton, "this project; Levenberg 1944, Marquardt 1963"
    ),
    Preset(
        "strongest",
        strongest,
        "this project: a portfolio of the others, cheap ones first",
    ),
    Preset(
        "spear", Spear, "Dimitrov et al. 2024 (SPEAR); the search is this project's"
    ),
    Preset(
        "peeling",
        peeling,
        "this project; layers in turn as in Zhu and Blaschko 2021 (R-GAP)",
    ),
    Preset("tableak", tableak, "Vero et al. 2023 (TabLeak)"),
    Preset("gradinversion", gradinversion, "Yin et al. 2021 (GradInversion)"),
    Preset("imprint", imprint, "Fowl et al. 2022 (Robbing the Fed)"),
    Preset(
        "analytic",
        analytic,
        "Phong et al. 2017; Geiping et al. 2020, section 3; Lu et al. 2022 (APRIL)",
    ),
)


PRESETS: dict[str, Preset] = {preset.name: preset for preset in _TABLE}


def parse(
    text: str, iterations: int | None = None, restarts: int | None = None
) -> Attack:
    """Returns the attack that the text describes: `cpl` or `cpl:init=uniform`.

    `iterations` and `restarts` are the same parameters given apart: they build the
    same attack as in the text, and win over it.
    """
    name, _, parameters = text.partition(":")
    if name not in PRESETS:
        raise unknown_name("attack", name, PRESETS)
    make = PRESETS[name].make
    asked = {"iterations": iterations, "restarts": restarts}
    apart = {key: value for key, value in asked.items() if value is not None}
    for key in apart:
        if key not in inspect.signature(make).parameters:
            raise InputError(f"attack {name!r} has no {key}: leave the option out")
    others = [
        item
        for item in parameters.split(",")
        if item.partition("=")[0].strip() not in apart
    ]
    words = ",".join([*filter(None, others), *(f"{k}={v}" for k, v in apart.items())])
    attack: Attack = call_with_text(name, make, words)
    return attack
