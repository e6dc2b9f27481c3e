"""Results of `gradaudit ldp` as tables for people."""

import math
from typing import TYPE_CHECKING

from rich.table import Table

if TYPE_CHECKING:
    from gradaudit.ldp import LdpReport, MechanismReport
    from gradaudit.ldp.cells import Cell

_COLOURS = {"refuted": "red", "consistent": "green", "can't tell": "yellow"}


def cells_table(report: "LdpReport") -> Table:
    """Returns a row per adversary and box, a column per epsilon."""
    settings = report.settings
    table = Table(
        title=(
            f"LDP-SGD on {settings['dataset']} · {settings['measurements']} x "
            f"{settings['trials']:,} trials · {settings['clients']} client(s)"
        ),
        caption=(
            "measured ε (equation 3), mean ± spread; ≥ what is proven at "
            f"{1 - settings['significance']:.0%} confidence"
        ),
        title_justify="left",
        caption_justify="left",
        show_lines=True,
    )
    table.add_column("adversary", max_width=13)
    table.add_column("box")
    epsilons = list(dict.fromkeys(cell.epsilon for cell in report.cells))
    for epsilon in epsilons:
        table.add_column(f"ε = {epsilon:g}", justify="right", no_wrap=True)
    rows: dict[tuple[str, str], dict[float, str]] = {}
    for cell in report.cells:
        row = rows.setdefault((cell.adversary, cell.box.value), {})
        row[cell.epsilon] = _cell(cell)
    for (adversary, box), row in rows.items():
        words = [row.get(epsilon, "") for epsilon in epsilons]
        table.add_row(adversary.replace("-", " "), box, *words)
    return table


def verdict_lines(report: "LdpReport") -> list[str]:
    """Returns how many claims were judged how, and each one that did not pass."""
    verdicts = [cell.verdict.value for cell in report.cells]
    counts = [f"{verdicts.count(name)} {name}" for name in _COLOURS if name in verdicts]
    lines = ["verdicts: " + (", ".join(counts) or "none yet")]
    for cell in report.cells:
        if cell.verdict.value != "consistent":
            verdict = _verdict(cell.verdict.value, cell.trials_needed)
            where = f"{cell.adversary}, {cell.box.value} box"
            lines.append(f"ε = {cell.epsilon:g} against {where}: {verdict}")
    return lines


def sweep_table(report: "LdpReport") -> Table:
    """Returns the white-box epsilon of dummy gradients, a row per norm."""
    epsilons = list(dict.fromkeys(point.epsilon for point in report.sweep))
    table = Table(
        title="dummy gradient, white box: measured (exact)", title_justify="left"
    )
    table.add_column("norm / clip", justify="right")
    for epsilon in epsilons:
        table.add_column(f"ε = {epsilon:g}", justify="right")
    for norm in dict.fromkeys(point.norm for point in report.sweep):
        points = [point for point in report.sweep if point.norm == norm]
        words = [f"{number(point.mean)} ({number(point.exact)})" for point in points]
        table.add_row(f"{norm:g}", *words)
    return table


def mechanism_table(report: "MechanismReport") -> Table:
    """Returns what was claimed, what is exact, and what the trials prove."""
    result = report.result
    table = Table(title=report.name, title_justify="left", show_header=False)
    claim = result.claim
    table.add_row("claimed", f"ε = {number(claim.epsilon)}", f"δ = {claim.delta:g}")
    if result.closed_form is not None:
        table.add_row("closed form", f"ε = {number(result.closed_form)}", "exact")
    table.add_row(
        "proven by trials",
        f"ε ≥ {number(result.lower_bound)}",
        f"{result.trials:,} trials, ceiling {number(result.ceiling)}",
    )
    table.add_row(
        "strongest test", result.statistic, f"on the pair: {result.pair}, from a pilot"
    )
    table.add_row("errors", f"FP {result.fp:.4f}", f"FN {result.fn:.4f}")
    for name, value in result.estimates.items():
        table.add_row(f"jax-privacy {name}", number(value), "for comparison")
    verdict = result.verdict.value
    reason = f"by {result.refuted_by}" if result.refuted_by else ""
    if verdict == "can't tell":
        reason = f"needs {result.trials_needed:,} trials"
    table.add_row("verdict", f"[{_COLOURS[verdict]}]{verdict}[/]", reason)
    for caveat in report.caveats:
        table.add_row("caveat", "", caveat)
    return table


def number(value: float) -> str:
    """Returns two decimals; `inf` where no error was seen, `–` where undefined."""
    if math.isnan(value):
        return "–"
    return "inf" if math.isinf(value) else f"{value:.2f}"


def _cell(cell: "Cell") -> str:
    colour = _COLOURS[cell.verdict.value]
    measured = f"{number(cell.mean)} ± {number(cell.spread)}"
    return f"{measured}\n[{colour}]≥ {number(cell.lower_bound)}[/]"


def _verdict(verdict: str, trials_needed: int) -> str:
    words = f"[{_COLOURS[verdict]}]{verdict}[/]"
    if verdict == "can't tell":
        return f"{words}: needs {trials_needed:,} trials"
    return words
