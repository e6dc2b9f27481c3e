"""Results of `gradaudit ldp` as tables for people."""

import math
from typing import TYPE_CHECKING

from rich.table import Table

if TYPE_CHECKING:
    from gradaudit.ldp import LdpReport, MechanismReport

_COLOURS = {"refuted": "red", "consistent": "green", "can't tell": "yellow"}


def cells_table(report: "LdpReport") -> Table:
    """Returns a row per adversary, box and epsilon."""
    settings = report.settings
    table = Table(
        title=(
            f"LDP-SGD on {settings['dataset']} · {settings['measurements']} x "
            f"{settings['trials']:,} trials · {settings['clients']} client(s)"
        ),
        caption=(
            "measured: equation 3, mean ± spread; proven: Clopper-Pearson lower bound "
            f"at {1 - settings['significance']:.0%}, at most the ceiling"
        ),
        title_justify="left",
        caption_justify="left",
    )
    for column in ("adversary", "box"):
        table.add_column(column)
    for column in ("ε", "measured", "exact", "proven", "ceiling", "jax-privacy"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("verdict")
    previous = None
    for cell in report.cells:
        if previous is not None and previous != cell.adversary:
            table.add_section()
        table.add_row(
            "" if previous == cell.adversary else cell.adversary,
            cell.box.value,
            f"{cell.epsilon:g}",
            f"{number(cell.mean)} ± {number(cell.spread)}",
            "–" if cell.exact is None else number(cell.exact),
            number(cell.lower_bound),
            number(cell.ceiling),
            number(cell.estimates["split"]),
            _verdict(cell.verdict.value, cell.trials_needed),
        )
        previous = cell.adversary
    return table


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
    reason = f"by {result.refuted_by}" if result.refuted_by else ""
    table.add_row(
        "verdict", _verdict(result.verdict.value, result.trials_needed), reason
    )
    for caveat in report.caveats:
        table.add_row("caveat", "", caveat)
    return table


def number(value: float) -> str:
    """Returns two decimals; `inf` where no error was seen, `–` where undefined."""
    if math.isnan(value):
        return "–"
    return "inf" if math.isinf(value) else f"{value:.2f}"


def _verdict(verdict: str, trials_needed: int) -> str:
    words = f"[{_COLOURS[verdict]}]{verdict}[/]"
    if verdict == "can't tell":
        return f"{words}: needs {trials_needed:,} trials"
    return words
