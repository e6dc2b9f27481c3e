"""Measured beside certified: tables and figures of line-ups and of calibration."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from gradaudit.audit.enough import EnoughResult
    from gradaudit.audit.informed import LineUpResult
    from gradaudit.audit.line_ups import Cell


def line_up_table(result: "LineUpResult") -> Group:
    """Returns a row for each cell: guessing, measured with its interval, certified."""
    about, cells = result.about, result.cells
    varied = cells[0].sigma is not None
    title = (
        f"line-up: type {about['type']} · {about['defense']} · {about['dataset']} · "
        f"candidates from {about['candidates_from']}"
    )
    table = Table(box=SIMPLE_HEAD)
    heads = ["σ"] if varied else []
    for head in (*heads, "one of", "looks", "guessing", "picked", "certified"):
        table.add_column(head, justify="right", no_wrap=True)
    broken = set(map(id, result.broken))
    for cell in cells:
        rate, bound = cell.measured, cell.certified.value
        picked = f"{rate.value:.3f} \\[{rate.low:.3f}, {rate.high:.3f}]"
        row = [f"{cell.candidates}", f"{cell.looks}", f"{cell.guessing:.3g}", picked]
        first = [f"{cell.sigma:g}"] if varied else []
        row.append("none" if bound is None else f"{bound:.3f}")
        style = "bold red" if id(cell) in broken else ""
        table.add_row(*first, *row, style=style)
    reasons = dict.fromkeys(c.certified.reason for c in cells if c.certified.reason)
    said = [f"no certificate: {escape(reason)}" for reason in reasons]
    # What is reached before reading differs by row, and has its own column.
    rests = [
        f"certified: {escape(line)}"
        for line in cells[0].certified.assumptions
        if not line.startswith("before reading")
    ]
    return Group(escape(title), table, *said, *rests)


def certificate_rows(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Returns the rows of an attack's table: what is picked, and what nobody passes."""
    line_up, rebuilt = found["line_up"], found["reconstruction"]
    picked, rate = "not played", line_up["measured"]
    if rate is not None:
        picked = f"{rate['value']:.3f}  \\[{rate['low']:.3f}, {rate['high']:.3f}]"
    one_of = f"line-up, one of {line_up['candidates']}"
    guessing = f"guessing: {line_up['guessing']:.3g}"
    bound = line_up["certified"]["value"]
    if bound is None:
        reason = escape(line_up["certified"]["reason"])
        return [(one_of, picked, guessing), ("certificate", "none", reason)]
    rows = [(one_of, picked, f"certified: at most {bound:.3f}; {guessing}")]
    if rebuilt["value"] is None:
        return [*rows, ("rebuilt by anybody", "no bound", escape(rebuilt["reason"]))]
    before = f"certified; without reading at most {rebuilt['kappa']:.3f}"
    return [*rows, ("rebuilt by anybody", f"at most {rebuilt['value']:.3f}", before)]


def _figure(columns: int) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1.2 + 2.9 * columns, 3.6), layout="constrained")
    return figure, figure.subplots(1, columns, sharey=True, squeeze=False)[0]


def line_up_figure(result: "LineUpResult") -> Any:
    """Draws measured, certified and guessing, a panel for each number of candidates.

    Over sigma where it was varied (a colour for each number of looks), else over
    looks.
    """
    cells = result.cells
    varied = cells[0].sigma is not None
    counts = list(dict.fromkeys(cell.candidates for cell in cells))
    figure, grid = _figure(len(counts))
    for axes, count in zip(grid, counts, strict=True):
        mine = [cell for cell in cells if cell.candidates == count]
        axes.axhline(1 / count, color="grey", ls=":", lw=1, label="guessing")
        lines = list(dict.fromkeys(cell.looks for cell in mine)) if varied else [None]
        for index, looks in enumerate(lines):
            chosen = [cell for cell in mine if looks in (None, cell.looks)]
            name = "" if looks is None else f", {looks} look{'s' * (looks > 1)}"
            _line_up_line(axes, chosen, varied, f"C{index}", name)
        axes.set(
            xscale="log",
            yscale="log",
            ylim=(0.4 / max(counts), 1.3),
            xlabel="noise multiplier σ" if varied else "looks",
            title=f"one of {count}",
        )
        places = sorted({cell.sigma or cell.looks for cell in mine})
        axes.set_xticks(places, [f"{place:g}" for place in places])
        axes.minorticks_off()
        axes.grid(alpha=0.2)
    grid[0].set_ylabel("victim picked")
    handles, labels = grid[0].get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        fontsize=8,
        loc="outside lower center",
        ncols=min(3, len(labels)),
    )
    about = result.about
    figure.suptitle(
        f"type {about['type']}, {about['defense']} on {about['dataset']}", fontsize=9
    )
    return figure


def _line_up_line(
    axes: Any, cells: "Sequence[Cell]", varied: bool, color: str, name: str
) -> None:
    places = [cell.sigma if varied else cell.looks for cell in cells]
    rates = [cell.measured for cell in cells]
    values = np.asarray([rate.value for rate in rates])
    ends = [values - [r.low for r in rates], [r.high for r in rates] - values]
    floor = 0.5 / max(cell.candidates for cell in cells)
    if not values.all():  # nothing picked: an arrow at the foot, also of a log scale
        none = [place for place, value in zip(places, values, strict=True) if not value]
        axes.plot(none, [floor] * len(none), "v", ms=5, color=color, mfc="none")
    axes.errorbar(
        places, values, np.abs(ends), fmt="o-", ms=4, lw=1.2, capsize=2, color=color,
        label=f"measured{name}",
    )  # fmt: skip
    bounds = [cell.certified.value for cell in cells]
    if all(value is not None for value in bounds):
        axes.plot(places, bounds, "--", color=color, lw=1.2, label=f"certified{name}")


def enough_table(result: "EnoughResult") -> Group:
    """Returns the least sigma that is enough, and a row for each that was tried."""
    about = result.about
    trained = result.chosen.accuracy is not None
    title = (
        f"σ = {result.sigma:.4g} is enough: type {about['type']}, {about['defense']}, "
        f"{about['dataset']}: nobody picks one of {about['candidates'][0]} more often "
        f"than {result.limit:g}"
    )
    table = Table(box=SIMPLE_HEAD)
    for head in ("σ", "certified", "picked", *(["accuracy"] if trained else [])):
        table.add_column(head, justify="right", no_wrap=True)
    for point in result.points:
        rate, bound = point.measured, point.certified.value
        row = [f"{point.sigma:.4g}", "none" if bound is None else f"{bound:.4f}"]
        row.append(f"{rate.value:.3f} \\[{rate.low:.3f}, {rate.high:.3f}]")
        if trained:
            row.append("–" if point.accuracy is None else f"{point.accuracy:.3f}")
        style = "bold" if point.sigma == result.sigma else ""
        table.add_row(*row, style=style)
    return Group(
        escape(title), table, f"guessing: {result.chosen.line_up.guessing:.3g}"
    )


def enough_figure(result: "EnoughResult") -> Any:
    """Draws sigma against measured, certified and, if there was training, accuracy."""
    figure, (axes,) = _figure(1)
    cells = [
        dataclasses.replace(p.line_up, certified=p.certified) for p in result.points
    ]
    _line_up_line(axes, cells, True, "C0", "")
    guessing = cells[0].guessing
    axes.axhline(guessing, color="grey", ls=":", lw=1, label="guessing")
    axes.axhline(result.limit, color="C3", ls="-.", lw=1, label="allowed")
    axes.axvline(result.sigma, color="C3", lw=0.8)
    if result.chosen.accuracy is not None:
        trained = [point for point in result.points if point.accuracy is not None]
        axes.plot(
            [point.sigma for point in trained],
            [point.accuracy for point in trained],
            "s-",
            color="C2",
            ms=4,
            label="accuracy",
        )
    axes.set(xscale="log", ylim=(-0.02, 1.02), xlabel="noise multiplier σ")
    sigmas = [point.sigma for point in result.points]
    axes.set_xticks(sigmas, [f"{sigma:.3g}" for sigma in sigmas])
    axes.minorticks_off()
    about = result.about
    axes.set_title(
        f"type {about['type']}, {about['defense']} on {about['dataset']}:\n"
        f"σ = {result.sigma:.4g} keeps everybody at {result.limit:g} of one of "
        f"{about['candidates'][0]}",
        fontsize=9,
    )
    axes.grid(alpha=0.2)
    figure.legend(fontsize=8, loc="outside lower center", ncols=2)
    return figure
