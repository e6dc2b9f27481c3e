"""Figures: `ga.plot`'s of a result, and the curves of single runs.

Every function of `ga.plot` (`__all__`) takes a result, fresh or from `ga.load`, and
returns a figure whose title says what was found. Nothing is written;
`figure.savefig("mine.pdf")` does that.
"""

import math
import statistics
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gradaudit.errors import InputError
from gradaudit.report.drawing import (
    COLOURS,
    GREY,
    MARKERS,
    SMALL,
    WIDTH,
    Picture,
    legend,
    picture,
    plain,
    say,
    short,
    styles,
)
from gradaudit.report.figures_of_privacy import epsilon, line_up
from gradaudit.report.pictures import reconstructions
from gradaudit.report.result import AUDIT, RESULT, Result, Saved, kind_of, load
from gradaudit.report.verdict import successes

if TYPE_CHECKING:
    from gradaudit.audit.attack_result import AttackResult
    from gradaudit.federation.training import RoundRecord

__all__ = ["epsilon", "frontier", "line_up", "norms", "reconstructions", "resilience"]

Plain = dict[str, Any]
_SEARCHES = 200  # that are drawn; more are a blot
_PLACES = {2: "an example's gradient", 1: "an update at the client", 0: "at the server"}
_SIDES = ("before", "after")  # of the defense


def resilience(*results: Result, by: str = "defense") -> Picture:
    """Draws how many victims are rebuilt at every threshold on the RMSE.

    Of several attacks, or of all attacks of an audit: a panel for each place.

    Args:
      *results: attacks, or one audit.
      by: what tells the lines apart: a word of `result.about`, as defense or method.
    """
    attacks = [each for result in results for each in attacks_of(result)]
    if not attacks:
        raise InputError("there is no attack to draw")
    documents = [attack.to_dict() for attack in attacks]
    names = [str(document["about"].get(by, "")) for document in documents]
    threats = [document["threat"]["name"] for document in documents]
    # A colour for each name, and dashes for each threat if there are more.
    colours = dict(zip(dict.fromkeys(names), styles(), strict=False))
    dashes = dict(zip(dict.fromkeys(threats), styles(), strict=False))
    types = sorted({d["about"]["type"] for d in documents}, reverse=True)
    figure = picture(WIDTH, 0.9 + 2.1 * len(types) + 0.16 * len(attacks))
    grid = figure.subplots(len(types), 1, squeeze=False, sharex=True)[:, 0]
    panels = dict(zip(types, grid, strict=True))
    for attack, document, name, threat in zip(
        attacks, documents, names, threats, strict=True
    ):
        style, label = colours[name], short(name, 40)
        if len(dashes) > 1:
            style = style | {"linestyle": dashes[threat]["linestyle"]}
            label = f"{label}, {threat}"
        errors = [row["rmse"] for row in attack.rows()["trials.csv"]]
        asked = document["victims"]["asked"]
        _steps(panels[document["about"]["type"]], errors, asked, style, label)
    for kind, axes in panels.items():
        mine = [d for d in documents if d["about"]["type"] == kind]
        threshold = mine[-1]["metrics"]["asr"]["threshold"]
        axes.axvline(threshold, color=GREY, linewidth=0.8)
        plain(axes, xscale="log", xlim=(1e-4, 1.0), ylim=(-0.03, 1.05))
        axes.set_title(f"type {kind}: {_PLACES[kind]}", fontsize=SMALL, loc="left")
    grid[-1].set_xlabel("RMSE that counts as rebuilt", fontsize=SMALL)
    figure.supylabel("victims rebuilt", fontsize=SMALL)
    legend(figure, *grid, columns=1)
    found = _worst(list(map(short, names)), documents)
    say(figure, f"Rebuilt at RMSE <= {threshold:g}, at worst: {found}")
    return figure


def attacks_of(result: Result) -> list[Result]:
    """Returns the attack itself, or those of an audit that were done."""
    document = result.to_dict()
    if kind_of(document) == RESULT:
        return [result] if "asr" in document["metrics"] else []
    folder = getattr(result, "folder", None)
    if folder is None:
        raise InputError("the audit's folder is not known: use ga.load(folder)")
    found: list[Result] = []
    for cell in document["cells"]:
        if cell["kind"] != "attack" or not cell["metrics"]:
            continue
        try:
            saved = load(folder / cell["folder"])
        except InputError:
            continue  # its folder was taken away: the others are drawn
        # A cell that reads the same as another has its figures, under its own name.
        own = saved.to_dict()
        about = {"type": cell["type"], "defense": cell["defense"]["text"]}
        own = own | {"about": own["about"] | about, "threat": cell["threat"]}
        found.append(Saved(own, saved.folder))
    return found


def _steps(
    axes: Any, errors: Sequence[float | None], asked: int, style: Plain, name: str
) -> None:
    reached = sorted(e for e in errors if e is not None and math.isfinite(e))
    places = [1e-5, *reached, 10.0]
    shares = [0.0, *((i + 1) / asked for i in range(len(reached)))]
    shares.append(shares[-1])
    marked = {"linewidth": 1.4, "markersize": 3.5, "markevery": slice(1, -1)}
    axes.step(places, shares, where="post", label=name, **marked, **style)


def _worst(names: Sequence[str], documents: Sequence[Plain]) -> str:
    """Returns of each name how many victims were rebuilt, where it was most."""
    most: dict[str, tuple[float, str]] = {}
    for name, document in zip(names, documents, strict=True):
        won, asked = successes(document)
        entry = (won / max(asked, 1), f"{name} {won} of {asked}")
        most[name] = max(most.get(name, entry), entry)
    return "; ".join(words for _, words in most.values())


def frontier(result: Result) -> Picture:
    """Draws what each defense leaves of accuracy against what it leaves to attackers.

    Of an audit that trained: the success is that of the worst attack on each defense.
    """
    document = result.to_dict()
    if kind_of(document) != AUDIT:
        raise InputError("accuracy against leakage is drawn of an audit")
    points = list(_frontier(document))
    if not points:
        raise InputError("this audit did not train: ask for training rounds")
    figure = picture()
    axes = figure.subplots()
    for (name, accuracy, rate), style in zip(points, styles(), strict=False):
        ends = [[rate["value"] - rate["low"]], [rate["high"] - rate["value"]]]
        look = style | {"linestyle": "none", "markersize": 6, "capsize": 2}
        axes.errorbar(accuracy, rate["value"], np.abs(ends), label=name, **look)
    plain(
        axes, xlabel="accuracy after training", ylabel="victims rebuilt, worst attack"
    )
    axes.set(xlim=(0, 1.02), ylim=(-0.03, 1.05))
    legend(figure, axes)
    said = "; ".join(f"{n} {a:.2f} and {r['value']:.2f}" for n, a, r in points)
    say(figure, f"Accuracy and leakage: {said}")
    return figure


def _frontier(document: Plain) -> Iterator[tuple[str, float, Plain]]:
    for row in document["training"]:
        rates = [
            cell["verdict"]["rate"]
            for cell in document["cells"]
            if cell["defense"]["text"] == row["defense"]
            and cell["dataset"]["text"] == row["dataset"]
            and cell["kind"] == "attack"
            and cell["verdict"]["rate"]
        ]
        if row["accuracy"] is not None and rates:
            worst = max(rates, key=lambda rate: rate["value"] or 0.0)
            yield short(row["defense"]), row["accuracy"], worst


def norms(result: Result) -> Picture:
    """Draws the norms of gradients before a defense and after it.

    Of an audit: medians, for each place and defense; of a training: over its rounds.
    """
    document = result.to_dict()
    if kind_of(document) == RESULT:
        return _norms_of_training(document)
    rows = [
        (f"{short(each['defense'], 22)}, type {row['type']}", row)
        for each in document["norms"]
        for row in each["norms"]
    ]
    if not rows:
        raise InputError("this audit has no gradient norms: no defense does anything")
    figure = picture(WIDTH, 1.3 + 0.34 * len(rows))
    axes = figure.subplots()
    ratios = []
    for index, (name, row) in enumerate(rows):
        before, after = pair = [_median(row[side]) for side in _SIDES]
        if None not in pair:
            axes.plot(pair, [index] * 2, color=GREY, linewidth=1, zorder=1)
        if before and after:
            ratios.append((after / before, name))
        for value, side, color, marker in zip(
            pair, _SIDES, COLOURS, MARKERS, strict=False
        ):
            if value:
                label = f"{side} the defense" if index == 0 else None
                look = {"color": color, "marker": marker, "zorder": 2}
                axes.scatter(value, index, s=26, label=label, **look)
    feet = (len(rows) - 0.5, -0.5)
    plain(axes, xscale="log", xlabel="norm of what is sent, median", ylim=feet)
    axes.set_yticks(range(len(rows)), [name for name, _ in rows])
    legend(figure, axes)
    say(figure, _norms_found(ratios))
    return figure


def _median(values: Sequence[float | None]) -> float | None:
    finite = [value for value in values if value is not None]
    return statistics.median(finite) if finite else None


def _norms_found(ratios: Sequence[tuple[float, str]]) -> str:
    if not ratios:
        return "Gradient norms before and after the defense"
    (low, least), (high, most) = min(ratios), max(ratios)
    if high < 1.5:
        return f"What is sent is {low:.2g} ({least}) to {high:.2g} times the gradient"
    times = f"{high:,.0f}" if high >= 100 else f"{high:.3g}"
    return f"{most}: what is sent is {times} times as large as the gradient"


def _norms_of_training(document: Plain) -> Picture:
    history: Any = document.get("rounds")
    recorded = isinstance(history, list) and history and isinstance(history[0], dict)
    if not recorded or "norm_before" not in history[0]:
        raise InputError("this result has no gradient norms: train records them")
    figure = picture()
    axes = figure.subplots()
    rounds = [row["round"] for row in history]
    last = []
    for side, style in zip(_SIDES, styles(), strict=False):
        values = [_joint(row[f"norm_{side}"]) for row in history]
        last.append(values[-1])
        look = style | {"markersize": 3.5, "linewidth": 1.4}
        axes.plot(rounds, values, label=f"{side} the defense", **look)
    plain(axes, yscale="log", xlabel="round", ylabel="norm of the batch gradient")
    legend(figure, axes)
    defense, times = document["config"]["defense"], last[1] / last[0]
    say(figure, f"{defense}: in the end {times:.3g} times the gradient's norm is sent")
    return figure


def _joint(norms: Sequence[float | None]) -> float:
    return math.sqrt(sum((norm or 0.0) ** 2 for norm in norms))


def convergence(result: "AttackResult") -> Picture:
    """RMSE (for the evaluator only) and the attacker's objective over iterations."""
    figure = picture(7.0, 2.8)
    left, right = figure.subplots(1, 2)
    thin = {"alpha": 0.3, "linewidth": 0.8}
    for trace in result.traces[:_SEARCHES]:
        steps = np.arange(1, len(trace.rmse) + 1)
        left.plot(steps, trace.rmse, color="tab:blue", **thin)
        right.plot(steps, trace.objective, color="tab:red", **thin)
    left.axhline(result.about["success_rmse"], color="black", linestyle=":")
    left.set_title("RMSE of the selected iterate (evaluator)", fontsize=8)
    right.set_title("objective (all that the attacker sees)", fontsize=8)
    for axes in (left, right):
        axes.set_yscale("log")
        axes.set_xlabel("attack iteration", fontsize=8)
        axes.tick_params(labelsize=7)
        if max(len(trace.rmse) for trace in result.traces) > 60:
            axes.set_xscale("log")
    return figure


def training_curve(history: "Sequence[RoundRecord]", title: str) -> Picture:
    """Draws accuracy, and the gradient's norm before and after the defense."""
    from matplotlib.ticker import MaxNLocator

    figure = picture(9, 3.4)
    accuracy, norm = figure.subplots(1, 2)
    say(figure, title, points=8)
    measured = [r for r in history if r.accuracy is not None]
    accuracy.plot([r.round for r in measured], [r.accuracy for r in measured], ".-")
    accuracy.set(xlabel="round", ylabel="validation accuracy")
    rounds = [r.round for r in history]
    norm.plot(rounds, [_joint(r.norm_before) for r in history], ".-")
    norm.plot(rounds, [_joint(r.norm_after) for r in history], ".--")
    norm.set(xlabel="round", ylabel="norm of the batch gradient", yscale="log")
    norm.legend([f"{side} the defense" for side in _SIDES])
    for axes in (accuracy, norm):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        if len(rounds) == 1:
            axes.set_xlim(rounds[0] - 0.5, rounds[0] + 0.5)
    return figure
