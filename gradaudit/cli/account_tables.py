"""The tables of `gradaudit account`; they fit into 80 columns."""

import math
from typing import TYPE_CHECKING

from rich.table import Table

from gradaudit.cli.console import out

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gradaudit.accounting import Account, Privacy, Stop

WORDS = {
    "base": "base composition",
    "advanced": "advanced composition",
    "optimal": "optimal composition",
    "zcdp": "zCDP",
    "moments": "moments accountant",
    "rdp": "Renyi, improved conversion",
    "pld": "loss distribution (tight)",
}
_READS = {
    0: "a client's updates, at the server",
    1: "a client's updates, at the client",
    2: "single examples, at the client",
}


def print_methods(
    answers: "Account", stops: "Mapping[str, Stop]", target: float | None
) -> None:
    """Prints a line per method: epsilon, the delta it spends, where it stops."""
    table = Table(
        title=f"privacy of {answers.steps:,} steps at delta = {answers.delta:g}",
        caption=f"unit: {answers.unit.value}; neighbours: {answers.unit.relation}; "
        f"convention: {answers.convention}",
        title_justify="left",
        caption_justify="left",
    )
    table.add_column("method", no_wrap=True)
    table.add_column("epsilon", justify="right", no_wrap=True)
    table.add_column("delta spent", justify="right", no_wrap=True)
    if stops:
        table.add_column(f"{target:g} exhausted at step", justify="right")
    for name, spent in answers.methods.items():
        style = "bold" if name == "pld" else ""
        row = [WORDS[name], show(spent.epsilon), f"{spent.delta:.3g}"]
        if stops:
            step = stops[name].step
            row.append("never" if step is None else f"{step:,}")
        table.add_row(*row, style=style)
    out.print(table)
    for reason in dict.fromkeys(s.reason for s in answers.methods.values() if s.reason):
        out.print(f"inf: {reason}")
    for note in answers.notes:
        out.print(f"note: {note}")


def print_privacy(privacy: "Privacy") -> None:
    """Prints claimed, accounted and effective epsilon, the views and the verdict."""
    verdict = privacy.guarantee
    table = Table(title=f"{privacy.defense}: what is claimed, what holds")
    table.title_justify = "left"
    table.add_column("", no_wrap=True)
    table.add_column("epsilon", justify="right", no_wrap=True)
    table.add_column("how")
    claimed, held = verdict.claimed_multiplier, verdict.effective_multiplier
    counted = f"q = {privacy.q:g}, {privacy.steps:,} steps"
    if privacy.claimed is not None:
        table.add_row(
            "claimed",
            show(privacy.claimed_epsilon),
            f"moments accountant, noise multiplier {claimed:.4g}, {counted}",
        )
        table.add_row(
            "accounted",
            show(privacy.accounted_epsilon),
            "the same claim, tight (loss distribution)",
        )
    released = f"what is really released, noise multiplier {held:.4g}"
    if privacy.effective is None:
        released = "no finite epsilon holds for what is released"
    effective = show(privacy.effective_epsilon)
    table.add_row("effective", effective, released, style="bold")
    for view in privacy.views:
        plural = "" if view.releases == 1 else "s"
        seen = f"{view.releases:,} release{plural}, q = {view.q:g}"
        how = view.reason or f"{_READS[view.leakage]}: {seen}"
        table.add_row(f"to type {view.leakage}", show(view.epsilon), how)
    out.print(table)
    colour = "green" if verdict.valid else "red"
    out.print(f"guarantee: [bold {colour}]{verdict.verdict}[/]")
    sentences = Table.grid(padding=(0, 1))
    for reason in verdict.reasons:
        sentences.add_row("  because", reason)
    for note in verdict.notes:
        sentences.add_row("  [dim]note[/]", f"[dim]{note}[/]")
    out.print(sentences)


def print_sigmas(
    found: "Mapping[str, float | str]",
    target: float,
    q: float,
    steps: int,
    delta: float,
) -> None:
    """Prints the noise multiplier that each method asks for."""
    table = Table(
        title=f"sigma for epsilon = {target:g} (q = {q:g}, {steps:,} steps, "
        f"delta = {delta:g})",
        title_justify="left",
    )
    table.add_column("method", no_wrap=True)
    table.add_column("sigma", justify="right")
    for name, value in found.items():
        shown = f"{value:.5g}" if isinstance(value, float) else "out of reach"
        table.add_row(WORDS[name], shown, style="bold" if name == "pld" else "")
    out.print(table)
    for reason in (value for value in found.values() if isinstance(value, str)):
        out.print(f"out of reach: {reason}")


def show(epsilon: float) -> str:
    """Returns epsilon with as many digits as the papers print, or the word inf."""
    if math.isinf(epsilon):
        return "inf"
    return f"{epsilon:.3f}" if 0.1 <= epsilon < 1e6 else f"{epsilon:.4g}"
