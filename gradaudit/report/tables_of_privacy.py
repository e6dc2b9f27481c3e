"""Results as tables for people: accounting, and measured epsilons."""

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from gradaudit.federation.setting import setting_in_words
from gradaudit.report.tables import Row, facts_table

if TYPE_CHECKING:
    from gradaudit.distinguish import LdpReport, MechanismReport
    from gradaudit.distinguish.bounds import Cell
    from gradaudit.privacy import Account, Privacy, Stop, View

_COLOURS = {"refuted": "red", "consistent": "green", "can't tell": "yellow"}


def cells_table(report: "LdpReport", width: int = 80) -> RenderableType:
    """Returns a row per adversary and box, a column per epsilon.

    No name and no number is cut: epsilons that don't fit beside each other into the
    width are put below each other.
    """
    config = report.config
    rows: dict[tuple[str, str], dict[float, str]] = {}
    for cell in report.cells:
        names = cell.adversary.replace("-", "\n"), cell.box.value
        rows.setdefault(names, {})[cell.epsilon] = _cell(cell)
    played = " and ".join(
        f"{config.measurements} x {config.trials_of(box):,} ({box.value} box)"
        for box in config.boxes
    )
    dataset = escape(str(report.spec.arguments["dataset"]))
    return Group(
        f"LDP-SGD on {dataset}: {played} trials, {config.clients} client(s)",
        *_blocks(("adversary", "box"), rows, width),
        f"measured ε (equation 3), mean ± spread; ≥ is proven for all "
        f"{config.family.cells} cells together at "
        f"{1 - config.significance:.0%} confidence",
    )


def _blocks(
    heads: tuple[str, ...], rows: Mapping[Any, Mapping[float, str]], width: int
) -> list[Table]:
    """Returns one table, or several with some of the epsilons each."""
    epsilons = list(dict.fromkeys(epsilon for row in rows.values() for epsilon in row))
    # Beside its text, a column takes two blanks.
    first = sum(
        2 + max(_width(text) for text in (head, *(names[index] for names in rows)))
        for index, head in enumerate(heads)
    )
    groups: list[list[float]] = []
    room = 0
    for epsilon in epsilons:
        texts = [row.get(epsilon, "") for row in rows.values()]
        needed = 2 + max(_width(text) for text in (_head(epsilon), *texts))
        room -= needed
        if room < 0:
            groups.append([])
            room = width - first - needed
        groups[-1].append(epsilon)
    return [_block(heads, rows, group) for group in groups]


def _block(
    heads: tuple[str, ...],
    rows: Mapping[Any, Mapping[float, str]],
    epsilons: list[float],
) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for head in heads:
        table.add_column(head, overflow="fold")
    for epsilon in epsilons:
        table.add_column(_head(epsilon), justify="right", overflow="fold")
    for names, row in rows.items():
        table.add_row(*names, *(row.get(epsilon, "") for epsilon in epsilons))
    return table


def _head(epsilon: float) -> str:
    return f"ε = {epsilon:g}"


def _width(text: str) -> int:
    return max(Text.from_markup(line).cell_len for line in text.split("\n"))


def verdict_lines(report: "LdpReport") -> list[str]:
    """Returns how many claims were judged how, and each one that did not pass."""
    verdicts = [cell.verdict.value for cell in report.cells]
    counts = [f"{verdicts.count(name)} {name}" for name in _COLOURS if name in verdicts]
    lines = ["verdicts: " + (", ".join(counts) or "none yet")]
    for cell in report.cells:
        verdict = cell.verdict.value
        if verdict == "consistent":
            continue
        where = f"{cell.adversary}, {cell.box.value} box"
        line = (
            f"ε = {cell.epsilon:g} against {where}: [{_COLOURS[verdict]}]{verdict}[/]"
        )
        more = f": needs {cell.trials_needed:,} trials" * (verdict == "can't tell")
        lines.append(line + more)
    return lines


def sweep_table(report: "LdpReport", width: int = 80) -> RenderableType:
    """Returns the white-box epsilon of dummy gradients, a row per norm."""
    rows: dict[tuple[str], dict[float, str]] = {}
    for point in report.sweep:
        words = f"{_short(point.mean)} ({_short(point.exact)})"
        rows.setdefault((f"{point.norm:g}",), {})[point.epsilon] = words
    title = "dummy gradient, white box: measured (exact)"
    return Group(title, *_blocks(("norm / clip",), rows, width))


def mechanism_table(report: "MechanismReport") -> Table:
    """Returns what was claimed, what is exact, and what the trials prove."""
    return facts_table(report.name, _mechanism_rows(report))


def _mechanism_rows(report: "MechanismReport") -> Iterator[Row]:
    result = report.result
    claim, verdict = result.claim, result.verdict.value
    epsilon, delta = f"ε = {_short(claim.epsilon)}", f"δ = {claim.delta:g}"
    yield "claimed", epsilon, delta
    if result.closed_form is not None:
        yield "closed form", f"ε = {_short(result.closed_form)}", "exact"
    trials = f"{result.trials:,} trials, ceiling {_short(result.ceiling)}"
    yield "proven by trials", f"ε ≥ {_short(result.lower_bound)}", trials
    pair = f"on the pair: {result.pair}, from a pilot"
    yield "strongest test", result.statistic, pair
    yield "errors", f"FP {result.fp:.4f}", f"FN {result.fn:.4f}"
    for name, value in result.estimates.items():
        yield f"jax-privacy {name}", _short(value), "for comparison"
    reason = f"by {result.refuted_by}" if result.refuted_by else ""
    if verdict == "can't tell":
        reason = f"needs {result.trials_needed:,} trials"
    yield "verdict", f"[{_COLOURS[verdict]}]{verdict}[/]", reason
    for caveat in report.caveats:
        yield "caveat", "", escape(caveat)


def _short(value: float) -> str:
    """Returns two decimals; `inf` where no error was seen, `–` where undefined."""
    if math.isnan(value):
        return "–"
    return "inf" if math.isinf(value) else f"{value:.2f}"


def _cell(cell: "Cell") -> str:
    colour = _COLOURS[cell.verdict.value]
    measured = f"{_short(cell.mean)} ± {_short(cell.spread)}"
    return f"{measured}\n[{colour}]≥ {_short(cell.lower_bound)}[/]"


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


def methods_table(
    answers: "Account", stops: Mapping[str, "Stop"], target: float | None
) -> Group:
    """Returns a line per method: epsilon, the delta it spends, where it stops."""
    table = Table(
        title=f"privacy of {answers.steps:,} steps at delta = {answers.delta:g}",
        caption=f"unit: {answers.unit.value}; neighbours: {answers.relation}; "
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
    reasons = dict.fromkeys(s.reason for s in answers.methods.values() if s.reason)
    said = [f"inf: {reason}" for reason in reasons]
    return Group(table, *said, *(f"note: {note}" for note in answers.notes))


def privacy_table(privacy: "Privacy") -> Group:
    """Returns the way from the claim to what holds, the views and the verdict."""
    verdict, plan = privacy.guarantee, privacy.plan
    table = Table(title=f"{privacy.defense}: what is claimed, what holds")
    table.title_justify = "left"
    table.add_column("", no_wrap=True)
    table.add_column("epsilon", justify="right", no_wrap=True)
    table.add_column("how")
    for rung in privacy.rungs:
        style = "bold" if rung.name == "effective" else ""
        table.add_row(rung.name, show(rung.epsilon), rung.says, style=style)
    for view in privacy.views:
        table.add_row(f"to type {view.leakage}", *_view(view))
    colour = "green" if verdict.valid else "red"
    sentences = Table.grid(padding=(0, 1))
    for reason in verdict.reasons:
        sentences.add_row("  because", reason)
    for note in verdict.notes:
        sentences.add_row("  [dim]note[/]", f"[dim]{note}[/]")
    held = "an unknown number of" if plan.copies is None else f"up to {plan.copies:,}"
    return Group(
        table,
        f"setting: {setting_in_words(plan.setting)}; one example is held by {held} "
        "clients",
        f"guarantee: [bold {colour}]{verdict.verdict}[/] (the claim, for this run)",
        sentences,
        f"what holds: {verdict.holds}",
    )


def _view(view: "View") -> tuple[str, str]:
    """Returns epsilon of the expected and of a frequent client, and what is read."""
    if view.reason:
        return show(view.epsilon), view.reason
    shown, more = show(view.usual.epsilon), ""
    if view.high != view.usual:
        shown, more = f"{shown}–{show(view.high.epsilon)}", " (expected–95 %)"
    usual, high = view.usual, view.high
    releases = _from_to(usual.releases, high.releases)
    rounds = _from_to(usual.participations, high.participations)
    how = f"{_READS[view.leakage]}: releases {releases}, rounds {rounds}{more}"
    return shown, f"{how}, q = {view.q:g}"


def _from_to(low: int, high: int) -> str:
    return f"{low:,}" if low == high else f"{low:,}–{high:,}"


def sigmas_table(
    found: Mapping[str, float | str],
    target: float,
    q: float,
    steps: int,
    delta: float,
) -> Group:
    """Returns the noise multiplier that each method asks for."""
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
    reasons = [value for value in found.values() if isinstance(value, str)]
    return Group(table, *(f"out of reach: {reason}" for reason in reasons))


def show(epsilon: float) -> str:
    """Returns epsilon with as many digits as the papers print, or the word inf."""
    if math.isinf(epsilon):
        return "inf"
    return f"{epsilon:.3f}" if 0.1 <= epsilon < 1e6 else f"{epsilon:.4g}"
