"""Measured beside certified: tables and figures of line-ups and of calibration."""

import dataclasses
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.markup import escape
from rich.table import Table

from gradaudit.report.drawing import COLOURS, GREY, legend, picture, plain, say
from gradaudit.report.figures_of_privacy import measured_line

if TYPE_CHECKING:
    from gradaudit.audit.informed import LineUpResult
    from gradaudit.audit.least_noise import EnoughResult


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
    figure = picture(height=3.8)
    axes = figure.subplots()
    cells = [
        dataclasses.replace(p.line_up, certified=p.certified) for p in result.points
    ]
    style = {"color": COLOURS[0], "marker": "o"}
    rows = [cell.to_dict() for cell in cells]
    measured_line(axes, rows, True, style, "measured", "certified")
    guessing = cells[0].guessing
    axes.axhline(guessing, color=GREY, ls=":", lw=1, label="guessing")
    axes.axhline(result.limit, color=COLOURS[1], ls="-.", lw=1, label="allowed")
    axes.axvline(result.sigma, color=COLOURS[1], lw=0.8)
    if result.chosen.accuracy is not None:
        trained = [point for point in result.points if point.accuracy is not None]
        axes.plot(
            [point.sigma for point in trained],
            [point.accuracy for point in trained],
            "s-",
            color=COLOURS[2],
            ms=4,
            label="accuracy",
        )
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
