"""Figures of privacy: picked against certified, epsilon, norms of gradients."""

import dataclasses
import math
import pathlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gradaudit.errors import InputError
from gradaudit.privacy.events import Events
from gradaudit.privacy.methods import METHODS, ask
from gradaudit.report.drawing import (
    COLOURS,
    GREY,
    SMALL,
    WIDTH,
    Picture,
    legend,
    picture,
    plain,
    plain_numbers,
    say,
    short,
    styles,
)
from gradaudit.report.result import AUDIT, RESULT, Result, kind_of, write_figure
from gradaudit.report.tables_of_privacy import WORDS

if TYPE_CHECKING:
    from gradaudit.audit.least_noise import EnoughResult
    from gradaudit.distinguish.whitebox import NormPoint

Plain = dict[str, Any]
_BARS = {"markersize": 4, "linewidth": 1.2, "capsize": 2}
_MOST_POINTS = 400  # of a curve over steps


def line_up(result: Result) -> Picture:
    """Draws measured, certified and guessing over looks, or over sigma.

    Of a line-up, or of an audit's line-ups: then the first place, a colour for each
    defense.
    """
    groups = list(_line_ups(result))
    if not groups:
        raise InputError("there is no line-up to draw")
    rows = [row for _, group in groups for row in group]
    counts = list(dict.fromkeys(row["candidates"] for row in rows))
    varied = rows[0].get("sigma") is not None
    figure = picture(max(WIDTH, 1.2 + 2.9 * len(counts)), 3.4 + 0.16 * len(groups))
    grid = figure.subplots(1, len(counts), sharey=True, squeeze=False)[0]
    for axes, count in zip(grid, counts, strict=True):
        axes.axhline(
            1 / count, color=GREY, linestyle=":", linewidth=1, label="guessing"
        )
        for (name, group), style in zip(groups, styles(), strict=False):
            mine = [row for row in group if row["candidates"] == count]
            looks = list(dict.fromkeys(row["looks"] for row in mine))
            for number in looks if varied else [None]:
                chosen = [r for r in mine if number in (None, r["looks"])]
                more = "" if number is None or len(looks) == 1 else f", {number} looks"
                _measured_line(axes, chosen, varied, style, f"{name}{more}")
        places = sorted({row["sigma"] if varied else row["looks"] for row in rows})
        plain(
            axes,
            xscale="log",
            yscale="log",
            ylim=(0.4 / max(counts), 1.3),
            xlabel="noise multiplier σ" if varied else "looks",
            title=f"one of {count}",
        )
        plain_numbers(axes.xaxis, places)
        plain_numbers(axes.yaxis, (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1))
    grid[0].set_ylabel("victim picked", fontsize=SMALL)
    legend(figure, grid[0])
    say(figure, _line_up_found(groups))
    return figure


def _line_ups(result: Result) -> Iterator[tuple[str, list[Plain]]]:
    """Yields what each line is called, and its rows."""
    document = result.to_dict()
    if kind_of(document) == RESULT:
        cells = document["metrics"].get("cells")
        if cells:
            yield short(str(document["about"]["defense"])), cells
        return
    cells = [c for c in document["cells"] if c["line_ups"]]
    for cell in cells:
        if cell["type"] == cells[0]["type"]:
            yield short(cell["defense"]["text"]), cell["line_ups"]


def _measured_line(
    axes: Any,
    rows: Sequence[Plain],
    varied: bool,
    style: Plain,
    name: str,
    bound: str = "",
) -> None:
    """Draws measured line-ups with their intervals, and dashed what is certified."""
    places = [row["sigma"] if varied else row["looks"] for row in rows]
    values = np.asarray([row["measured"]["value"] for row in rows])
    ends = [
        values - [row["measured"]["low"] for row in rows],
        [row["measured"]["high"] for row in rows] - values,
    ]
    if not values.all():  # nothing picked: an arrow at the foot, also of a log scale
        none = [place for place, value in zip(places, values, strict=True) if not value]
        floor = 0.5 / max(row["candidates"] for row in rows)
        axes.plot(none, [floor] * len(none), "v", color=style["color"], mfc="none")
    look = style | _BARS | {"linestyle": "-"}
    axes.errorbar(places, values, np.abs(ends), label=name, **look)
    bounds = [row["certified"]["value"] for row in rows]
    if all(value is not None for value in bounds):
        dashed = {"linestyle": "--", "color": style["color"], "linewidth": 1.2}
        axes.plot(places, bounds, label=bound or f"{name}: certified", **dashed)


def _line_up_found(groups: Sequence[tuple[str, Sequence[Plain]]]) -> str:
    said = []
    for name, rows in groups:
        row = rows[0]
        bound = row["certified"]["value"]
        most = "no bound" if bound is None else f"at most {bound:.2f}"
        said.append(f"{name} {row['measured']['value']:.2f} ({most})")
    first = groups[0][1][0]
    noise = "" if first.get("sigma") is None else f" at σ = {first['sigma']:g}"
    return (
        f"Picked out of {first['candidates']} with {first['looks']} "
        f"look{'s' * (first['looks'] != 1)}{noise}: {'; '.join(said)}"
    )


def epsilon(result: Result) -> Picture:
    """Draws epsilon as claimed, as accounted for, and as it effectively holds.

    Of a local mechanism under adversaries: what they measured and proved of it.
    """
    document = result.to_dict()
    if document.get("family"):
        return _epsilon_reached(document["cells"])
    rows = list(_accounted(document))
    if not rows:
        raise InputError(
            "this result accounts for no epsilon: the defense has no noise"
        )
    kinds = ("claimed", "accounted", "effective")
    figure = picture(WIDTH, 1.3 + 0.75 * len(rows))
    axes = figure.subplots()
    finite = [v for _, found in rows for k in kinds if (v := _finite(found[k]))]
    low, top = min(finite, default=0.1) / 4, max(finite, default=1.0) * 2
    for index, (_, found) in enumerate(rows):
        for offset, kind in enumerate(kinds):
            value, place = _finite(found[kind]), index + 0.26 * (offset - 1)
            look = {"color": COLOURS[offset], "alpha": 1.0 if value else 0.35}
            label = kind if index == 0 else None
            axes.barh(place, value or top, 0.24, label=label, **look)
            text = f"{value:.3g}" if value else "no finite ε"
            small = {"va": "center", "fontsize": SMALL - 1}
            beside = {"xytext": (3, 0), "textcoords": "offset points"}
            axes.annotate(text, (value or top, place), **beside, **small)
    plain(axes, xscale="log", xlabel="ε", ylim=(len(rows) - 0.5, -0.5))
    axes.set_xlim(low, top * (top / low) ** 0.3)  # room for the last number
    axes.set_yticks(range(len(rows)), [name for name, _ in rows])
    axes.grid(axis="y", visible=False)
    legend(figure, axes, columns=3)
    say(figure, "; ".join(_epsilon_found(name, found) for name, found in rows))
    return figure


def _accounted(document: Plain) -> Iterator[tuple[str, Plain]]:
    if kind_of(document) == AUDIT:
        for row in document["accounting"]:
            if row["accounting"] is not None:
                yield short(row["defense"]), row["accounting"]["epsilon"]
    elif document.get("accounting"):
        found = document["accounting"]
        yield short(str(found["defense"])), found["epsilon"]


def _finite(value: float | str | None) -> float | None:
    return float(value) if isinstance(value, int | float) and value > 0 else None


def _epsilon_found(name: str, found: Plain) -> str:
    claimed, held = _finite(found["claimed"]), _finite(found["effective"])
    if claimed is None:
        return f"{name} has no finite ε"
    holds = "no finite one holds" if held is None else f"{held:.3g} holds"
    return f"{name} claims ε = {claimed:.3g}, {holds}"


def _epsilon_reached(cells: Sequence[Plain]) -> Picture:
    """Draws a panel for each adversary: both boxes, measured and proven, and y = x."""
    names = list(dict.fromkeys(cell["adversary"] for cell in cells))
    columns = min(3, len(names))
    rows = -(-len(names) // columns)
    figure = picture(max(WIDTH, 1.0 + 2.4 * columns), 1.5 + 2.0 * rows)
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    top = 1.15 * max(cell["epsilon"] for cell in cells)
    for axes, name in zip(grid.flat, names, strict=False):
        axes.plot([0, top], [0, top], "--", color=GREY, linewidth=1, label="theory")
        for box, style in zip(("white", "black"), styles(), strict=False):
            mine = [c for c in cells if (c["adversary"], c["box"]) == (name, box)]
            if mine:
                _reached(axes, mine, style, f"{box} box")
        plain(axes, title=name.replace("-", " "))
    for axes in grid.flat[len(names) :]:
        axes.set_visible(False)
    for axes in grid[-1, :]:
        axes.set_xlabel("theoretical ε", fontsize=SMALL)
    for axes in grid[:, 0]:
        axes.set_ylabel("ε reached", fontsize=SMALL)
    legend(figure, grid[0, 0], columns=3)
    best = max(cells, key=lambda c: (c["lower_bound"] / c["epsilon"], c["epsilon"]))
    say(
        figure,
        f"The strongest proof: {best['adversary']}, {best['box']} box, shows ε ≥ "
        f"{best['lower_bound']:.2f} where {best['epsilon']:g} is the theory",
    )
    return figure


def _reached(axes: Any, cells: Sequence[Plain], style: Plain, name: str) -> None:
    """Draws what was measured in one box, with its spread, and what that proves."""
    places = [cell["epsilon"] for cell in cells]
    # An infinite estimate (no error seen) is drawn at what its trials could prove.
    means = [_known(c["mean"], c["ceiling"]) for c in cells]
    spreads = [_known(c["spread"], 0.0) for c in cells]
    axes.errorbar(places, means, spreads, label=f"{name}, measured", **(style | _BARS))
    proven, color = [cell["lower_bound"] for cell in cells], style["color"]
    axes.fill_between(places, 0, proven, color=color, alpha=0.12, linewidth=0)
    axes.plot(places, proven, ":", color=color, linewidth=1, label=f"{name}, proven")


def _known(value: float | str | None, otherwise: float) -> float:
    if isinstance(value, int | float) and math.isfinite(value):
        return float(value)
    return otherwise


def enough_figure(result: "EnoughResult") -> Any:
    """Draws sigma against measured, certified and, if there was training, accuracy."""
    figure = picture(height=3.8)
    axes = figure.subplots()
    cells = [
        dataclasses.replace(p.line_up, certified=p.certified) for p in result.points
    ]
    style = {"color": COLOURS[0], "marker": "o"}
    rows = [cell.to_dict() for cell in cells]
    _measured_line(axes, rows, True, style, "measured", "certified")
    guessing = cells[0].guessing
    axes.axhline(guessing, color=GREY, ls=":", lw=1, label="guessing")
    axes.axhline(result.limit, color=COLOURS[1], ls="-.", lw=1, label="allowed")
    axes.axvline(result.sigma, color=COLOURS[1], lw=0.8)
    if result.chosen.accuracy is not None:
        trained = [point for point in result.points if point.accuracy is not None]
        places = [point.sigma for point in trained]
        reached = [point.accuracy for point in trained]
        axes.plot(places, reached, "s-", color=COLOURS[2], ms=4, label="accuracy")
    plain(axes, xscale="log", ylim=(-0.02, 1.02), xlabel="noise multiplier σ")
    sigmas = [point.sigma for point in result.points]
    axes.set_xlim(0.9 * min(sigmas), 1.1 * max(sigmas))  # one point has no width
    axes.set_xticks(sigmas, [f"{sigma:.3g}" for sigma in sigmas])
    axes.minorticks_off()
    legend(figure, axes)
    about = result.about
    say(
        figure,
        f"σ = {result.sigma:.4g} keeps everybody at {result.limit:g} of one of "
        f"{about['candidates'][0]}: type {about['type']}, {about['defense']} on "
        f"{about['dataset']}",
    )
    return figure


def norm_figure(points: "Sequence[NormPoint]") -> Picture:
    """Draws epsilon against the norm of a dummy gradient, measured and exact."""
    figure = picture(4.1, 3.3)
    axes = figure.subplots()
    for index, level in enumerate(dict.fromkeys(point.epsilon for point in points)):
        chosen = [point for point in points if point.epsilon == level]
        norms, color = [point.norm for point in chosen], f"C{index}"
        axes.plot(norms, [point.exact for point in chosen], "-", color=color, lw=1)
        means = [point.mean for point in chosen]
        spreads = np.nan_to_num([point.spread for point in chosen])
        look = {"fmt": "o", "ms": 4, "color": color, "label": f"ε = {level:g}"}
        axes.errorbar(norms, means, spreads, **look)
    axes.axvline(1.0, color="grey", ls=":", lw=1)
    axes.set_xlabel("norm of the gradient / clip (line: exact law)")
    axes.set_ylabel("measured ε, white box")
    axes.legend(fontsize=8)
    return figure


def plot_over_steps(
    path: str | pathlib.Path,
    events: Events,
    delta: float,
    convention: str = "clean",
    target: float | None = None,
) -> None:
    """Writes the picture; the format follows from the file's name."""
    figure = picture(8, 4.2)
    axes = figure.subplots()
    shown = np.unique(np.linspace(1, events.steps, _MOST_POINTS).astype(int))
    for index, name in enumerate(METHODS):
        method, asked = ask(name, events, delta, convention)
        curve = method.curve(asked, delta)[asked.steps - events.steps :][shown - 1]
        look = {"color": f"C{index}", "linewidth": 2.6 if name == "pld" else 1.4}
        axes.plot(shown, curve, **look, label=f"{WORDS[name]}: {curve[-1]:.4g}")
    if target is not None:
        label = f"target: {target:g}"
        axes.axhline(target, color="black", linestyle=":", linewidth=1, label=label)
    axes.set(
        xlabel="step",
        ylabel=rf"$\varepsilon$ at $\delta$ = {delta:g}",
        yscale="log",
        xlim=(1, max(2, events.steps)),
        title="Privacy spent, by accounting method",
    )
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right center", frameon=False, fontsize=8)
    try:
        write_figure(pathlib.Path(path), figure)
    except (OSError, ValueError) as error:
        raise InputError(f"can't write the plot {path}: {error}") from None
