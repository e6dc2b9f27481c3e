"""Results as tables for people."""

import math
from typing import TYPE_CHECKING, Any

from rich.table import Table

if TYPE_CHECKING:
    from gradaudit.distinguish import LdpReport, MechanismReport
    from gradaudit.distinguish.cells import Cell
from typing import TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gradaudit.privacy import Account, Privacy, Stop

out = Console(highlight=False)


def attack_table(result: dict[str, Any]) -> Table:
    """Returns the table of one attack's result.json."""
    config, scores, oracle = result["config"], result["metrics"], result["oracle"]
    table = Table(
        title=(
            f"type {config['type']} · {config['method']} against {config['defense']} · "
            f"{config['dataset']} · {result['victims']} victims"
        ),
        title_justify="left",
        show_header=False,
    )
    asr, rmse, iterations = scores["asr"], scores["rmse"], scores["iterations"]
    table.add_row(
        "attack success rate",
        f"{asr['value']:.3f}  [{asr['low']:.3f}, {asr['high']:.3f}]",
        f"RMSE <= {asr['threshold']:g}; guessing: {asr['guess']:.3f}",
    )
    table.add_row("RMSE", number(rmse["median"]), f"mean {number(rmse['mean'])}")
    table.add_row(
        "PSNR, SSIM",
        f"{number(scores['psnr']['median'])} dB, {number(scores['ssim']['median'])}",
        "medians",
    )
    table.add_row(
        "iterations to success",
        number(iterations["median"]),
        f"median; cap {iterations['cap']}; run {number(iterations['run_median'])}",
    )
    table.add_row(
        "evaluations", number(scores["evaluations"]["median"]), "median per victim"
    )
    table.add_row("labels recovered", number(scores["label_accuracy"]), "")
    table.add_row(
        "oracle (not an attack)",
        f"ASR {oracle['asr']['value']:.3f}, RMSE {number(oracle['rmse']['median'])}",
        "best iterate by the truth",
    )
    timing = result["timing"]
    table.add_row(
        "time",
        f"{timing['total_s']:.1f} s",
        f"compile {timing['compile_s']:.1f} s; "
        f"{timing['victims_per_s']:.1f} victims/s after",
    )
    if result["accounting"] is not None:
        epsilon = result["accounting"]["epsilon"]
        verdict = result["accounting"]["guarantee"]["verdict"]
        table.add_row(
            "privacy of a training",
            f"claimed {_epsilon(epsilon['claimed'])}, "
            f"effective {_epsilon(epsilon['effective'])}",
            f"ε; guarantee {verdict}; see gradaudit account",
        )
    status = ", ".join(f"{count} {name}" for name, count in result["status"].items())
    table.add_row("status", status, "")
    return table


def _epsilon(value: float | str) -> str:
    return value if isinstance(value, str) else number(value)


def number(value: float | None) -> str:
    """Returns a short number; a dash where there is none."""
    if value is None:
        return "–"
    if value == int(value) and abs(value) < 1e6:
        return str(int(value))
    return f"{value:.2e}" if abs(value) < 1e-2 else f"{value:.3g}"


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
        words = [
            f"{short_number(point.mean)} ({short_number(point.exact)})"
            for point in points
        ]
        table.add_row(f"{norm:g}", *words)
    return table


def mechanism_table(report: "MechanismReport") -> Table:
    """Returns what was claimed, what is exact, and what the trials prove."""
    result = report.result
    table = Table(title=report.name, title_justify="left", show_header=False)
    claim = result.claim
    table.add_row(
        "claimed", f"ε = {short_number(claim.epsilon)}", f"δ = {claim.delta:g}"
    )
    if result.closed_form is not None:
        table.add_row("closed form", f"ε = {short_number(result.closed_form)}", "exact")
    table.add_row(
        "proven by trials",
        f"ε ≥ {short_number(result.lower_bound)}",
        f"{result.trials:,} trials, ceiling {short_number(result.ceiling)}",
    )
    table.add_row(
        "strongest test", result.statistic, f"on the pair: {result.pair}, from a pilot"
    )
    table.add_row("errors", f"FP {result.fp:.4f}", f"FN {result.fn:.4f}")
    for name, value in result.estimates.items():
        table.add_row(f"jax-privacy {name}", short_number(value), "for comparison")
    verdict = result.verdict.value
    reason = f"by {result.refuted_by}" if result.refuted_by else ""
    if verdict == "can't tell":
        reason = f"needs {result.trials_needed:,} trials"
    table.add_row("verdict", f"[{_COLOURS[verdict]}]{verdict}[/]", reason)
    for caveat in report.caveats:
        table.add_row("caveat", "", caveat)
    return table


def short_number(value: float) -> str:
    """Returns two decimals; `inf` where no error was seen, `–` where undefined."""
    if math.isnan(value):
        return "–"
    return "inf" if math.isinf(value) else f"{value:.2f}"


def _cell(cell: "Cell") -> str:
    colour = _COLOURS[cell.verdict.value]
    measured = f"{short_number(cell.mean)} ± {short_number(cell.spread)}"
    return f"{measured}\n[{colour}]≥ {short_number(cell.lower_bound)}[/]"


def _verdict(verdict: str, trials_needed: int) -> str:
    words = f"[{_COLOURS[verdict]}]{verdict}[/]"
    if verdict == "can't tell":
        return f"{words}: needs {trials_needed:,} trials"
    return words


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
