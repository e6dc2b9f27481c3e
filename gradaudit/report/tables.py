"""Results as tables for people, and how a table fits a narrow terminal.

Here are attacks, line-ups, the least noise and captured updates; `tables_of_privacy`
has accounting and measured epsilons.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

if TYPE_CHECKING:
    from gradaudit.audit.informed import LineUpResult
    from gradaudit.audit.least_noise import EnoughResult
    from gradaudit.report.metrics import Rate

Plain = dict[str, Any]
Row = tuple[str, str, str]  # what it is, its value, words about it

_DRAWS_SHOWN = 8
_UPDATES_SHOWN = 8
_UNLIMITED = Console(width=100_000)


def fitted(shown: RenderableType, width: int) -> RenderableType:
    """Returns what is shown so that no word is cut in a terminal of this width.

    A table keeps its columns as long as the longest word of each finds room beside
    the others; else its rows are put below each other, a line for each cell. Groups are
    taken apart; what is no table stays as it is.
    """
    if isinstance(shown, Group):
        return Group(*(fitted(part, width) for part in shown.renderables))
    if not isinstance(shown, Table) or not shown.columns:
        return shown
    sizes = [_measured(column) for column in shown.columns]
    room = width - _frame(shown)
    least, most = (sum(size[i] for size in sizes) for i in (0, 1))
    if most <= room:
        return shown
    if least > room:
        return _stacked(shown)
    rest, wanted = room - least, max(most - least, 1)
    for column, (minimum, maximum) in zip(shown.columns, sizes, strict=True):
        column.width = minimum + rest * (maximum - minimum) // wanted
        column.no_wrap = False
    return shown


def _measured(column: Column) -> tuple[int, int]:
    """Returns the widths of the longest word and of the longest line of a column."""
    least = most = 0
    for part in (column.header, *column.cells):
        text = _text(part)
        measure = Measurement.get(_UNLIMITED, _UNLIMITED.options, text)
        plain = text.plain if isinstance(text, Text) else ""
        indent = len(plain) - len(plain.lstrip())
        least, most = max(least, measure.minimum + indent), max(most, measure.maximum)
    return (most if column.no_wrap else least), most


def _text(part: RenderableType) -> RenderableType:
    return _UNLIMITED.render_str(part) if isinstance(part, str) else part


def _frame(table: Table) -> int:
    """Returns what lines and padding take."""
    _, right, _, left = table.padding
    count = len(table.columns)
    lines = 0 if table.box is None else count + 1 if table.show_edge else count - 1
    return lines + count * (left + right)


def _stacked(table: Table) -> Group:
    """Returns each row as lines: its first cell, and the others below it."""
    lines: list[RenderableType] = []
    if table.title is not None:
        lines.append(_text(table.title))
    rows = zip(*(column.cells for column in table.columns), strict=True)
    for first, *others in rows:
        lines.append(_text(first))
        for column, cell in zip(table.columns[1:], others, strict=True):
            line = Text("  ", overflow="fold")
            header, said = _text(column.header), _text(cell)
            if isinstance(header, Text) and header.plain and table.show_header:
                line.append_text(header).append(": ")
            if not isinstance(said, Text):
                lines += [line, said]
            elif said.plain:
                lines.append(line.append_text(said))
    if table.caption is not None:
        lines.append(_text(table.caption))
    return Group(*lines)


def facts_table(title: str, rows: Iterable[Row]) -> Table:
    """Returns a table of facts without a head; the title is no markup, rows are."""
    table = Table(title=escape(title), title_justify="left", show_header=False)
    for _ in range(3):
        table.add_column(overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def _numbers_table(heads: Iterable[str]) -> Table:
    table = Table(box=SIMPLE_HEAD)
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    return table


def number(value: float | None) -> str:
    """Returns a short number; a dash where there is none."""
    if value is None:
        return "–"
    if value == int(value) and abs(value) < 1e6:
        return str(int(value))
    return f"{value:.2e}" if abs(value) < 1e-2 else f"{value:.3g}"


def _interval(rate: Plain) -> str:
    return f"{rate['value']:.3f}  \\[{rate['low']:.3f}, {rate['high']:.3f}]"


def _picked(rate: "Rate") -> str:
    return f"{rate.value:.3f} \\[{rate.low:.3f}, {rate.high:.3f}]"


def _bound(value: float | None, places: int = 3) -> str:
    return "none" if value is None else f"{value:.{places}f}"


def attack_table(result: Plain) -> Table:
    """Returns the table of one attack's result.json."""
    about = result["about"]
    title = (
        f"type {about['type']} · {about['method']} against {about['defense']} · "
        f"{about['dataset']} · {result['victims']['asked']} victims"
    )
    return facts_table(title, _attack_rows(result))


def _attack_rows(result: Plain) -> Iterator[Row]:
    yield from _rates(result)
    if result.get("cells") is not None:
        yield from _cell_rows(result["cells"])
    if result.get("imprint") is not None:
        yield from _imprint_rows(result["imprint"])
    yield from _portfolio_rows(result)
    yield from _searches(result)
    yield from _claims(result)
    ended = ", ".join(f"{count} {name}" for name, count in result["ended"].items())
    looks = result["threat"].get("looks", 1)
    several = f", {looks} looks" * (looks > 1)
    yield "searches ended", ended, f"threat: {result['threat']['name']}{several}"


def _rates(result: Plain) -> Iterator[Row]:
    """Yields how often and how well victims were rebuilt."""
    about, scores, draws = result["about"], result["metrics"], result["draws"]
    asr, rmse = scores["asr"], scores["rmse"]
    level = f"RMSE <= {asr['threshold']:g}; guessing: {asr['guess']:.3f}"
    yield "attack success rate", _interval(asr), level
    if len(draws) > 1:
        each = " ".join(f"{d['successes']}/{d['victims']}" for d in draws)
        if len(draws) > _DRAWS_SHOWN:
            some = sum(draw["successes"] > 0 for draw in draws)
            each = f"a success in {some} of {len(draws)}"
        yield "each network drawn", each, "the interval counts the draws"
    if result["victims"]["missing"]:
        count = len(result["victims"]["missing"])
        yield "never begun", str(count), "interrupted; counted as unknown"
    yield "RMSE", number(rmse["median"]), f"mean {number(rmse['mean'])}"
    if about["batch_size"] * about["local_steps"] > 1:
        share = number(scores["examples_rebuilt"])
        yield "examples rebuilt", share, "share of all examples"


def _cell_rows(found: Plain) -> Iterator[Row]:
    """Yields how much of a table is right."""
    for name, rate in (
        ("cells right", found["right"]),
        ("  whole rows", found["rows"]),
    ):
        yield name, _interval(rate), f"guessing: {rate['guess']:.3f}"


def _imprint_rows(found: Plain) -> Iterator[Row]:
    """Yields what a malicious server reached, and what a client could notice."""
    alone = f"{found['alone']:.3f}, expected {found['expected']:.3f}"
    yield (
        "alone in their bins",
        alone,
        f"share of all examples; {found['bins']} bins",
    )
    rebuilt = found["alone_rebuilt"]
    yield "  of these rebuilt", "–" if rebuilt is None else f"{rebuilt:.3f}", "share"
    added = f"{found['added_parameters']:,} parameters more"
    yield "a client could notice", added, f"{found['share_of_parameters']:.0%} of all"
    for said in found["noticeable"]:
        yield "", escape(said), ""


def _portfolio_rows(result: Plain) -> Iterator[Row]:
    """Yields how many searches failed by their own account, and how each member did."""
    scores = result["metrics"]
    unsolved, members = scores.get("unsolved"), scores.get("members") or ()
    if unsolved and unsolved["victims"]:
        remedy = "more may leak" if members else "try --method strongest"
        lost = f"{unsolved['victims']} of {result['victims']['asked']}"
        yield "not solved", lost, f"own misfit > {unsolved['level']:g}: {remedy}"
    for row in members:
        if row["asked"]:
            own = f"{row['rebuilt']} of {row['asked']}"
            yield f"  {escape(row['name'])}", own, f"handed in: {row['handed_in']}"


def _searches(result: Plain) -> Iterator[Row]:
    """Yields what the searches came to, and what they took."""
    scores, oracle, timing = result["metrics"], result["oracle"], result["timing"]
    psnr, ssim = (number(scores[name]["median"]) for name in ("psnr", "ssim"))
    yield "PSNR, SSIM", f"{psnr} dB, {ssim}", "medians"
    iterations = scores["iterations"]
    yield (
        "iterations to success",
        number(iterations["median"]),
        f"median; cap {iterations['cap']}; run {number(iterations['run_median'])}",
    )
    yield "evaluations", number(scores["evaluations"]["median"]), "median per victim"
    yield "labels recovered", number(scores["label_accuracy"]), ""
    yield (
        "oracle (not an attack)",
        f"ASR {oracle['asr']['value']:.3f}, RMSE {number(oracle['rmse']['median'])}",
        "best iterate by the truth",
    )
    yield (
        "time",
        f"{timing['total_s']:.1f} s",
        f"compile {timing['compile_s']:.1f} s; "
        f"{timing['victims_per_s']:.1f} victims/s after",
    )


def _claims(result: Plain) -> Iterator[Row]:
    """Yields the epsilon and the certificates, where there is noise."""
    if result["accounting"] is not None:
        epsilon = result["accounting"]["epsilon"]
        verdict = result["accounting"]["guarantee"]["verdict"]
        claimed, effective = (
            value if isinstance(value, str) else number(value)
            for value in (epsilon["claimed"], epsilon["effective"])
        )
        yield (
            f"ε, {escape(result['about']['dataset'])} as published",
            f"claimed {claimed}, effective {effective}",
            f"guarantee {verdict}; see gradaudit account",
        )
    if result.get("certificate") is not None:
        yield from _certificate_rows(result["certificate"])


def _certificate_rows(found: Plain) -> Iterator[Row]:
    """Yields what is picked, and what nobody passes."""
    line_up, rebuilt = found["line_up"], found["reconstruction"]
    rate, bound = line_up["measured"], line_up["certified"]["value"]
    picked = "not played" if rate is None else _interval(rate)
    one_of = f"line-up, one of {line_up['candidates']}"
    guessing = f"guessing: {line_up['guessing']:.3g}"
    if bound is None:
        yield one_of, picked, guessing
        yield "certificate", "none", escape(line_up["certified"]["reason"])
        return
    yield one_of, picked, f"certified: at most {bound:.3f}; {guessing}"
    if rebuilt["value"] is None:
        yield "rebuilt by anybody", "no bound", escape(rebuilt["reason"])
        return
    before = f"certified; without reading at most {rebuilt['kappa']:.3f}"
    yield "rebuilt by anybody", f"at most {rebuilt['value']:.3f}", before


def line_up_table(result: "LineUpResult") -> Group:
    """Returns a row for each cell: guessing, measured with its interval, certified."""
    about, cells = result.about, result.cells
    varied = cells[0].sigma is not None
    title = (
        f"line-up: type {about['type']} · {about['defense']} · {about['dataset']} · "
        f"candidates from {about['candidates_from']}"
    )
    heads = ["one of", "looks", "guessing", "picked", "certified"]
    table = _numbers_table(["σ", *heads] if varied else heads)
    broken = set(map(id, result.broken))
    for cell in cells:
        row = [f"{cell.sigma:g}"] if varied else []
        row += [f"{cell.candidates}", f"{cell.looks}", f"{cell.guessing:.3g}"]
        row += [_picked(cell.measured), _bound(cell.certified.value)]
        table.add_row(*row, style="bold red" if id(cell) in broken else "")
    reasons = dict.fromkeys(c.certified.reason for c in cells if c.certified.reason)
    said = [f"no certificate: {escape(reason)}" for reason in reasons]
    # What is reached before reading differs by row, and has its own column.
    said += [
        f"certified: {escape(line)}"
        for line in cells[0].certified.assumptions
        if not line.startswith("before reading")
    ]
    return Group(escape(title), table, *said)


def enough_table(result: "EnoughResult") -> Group:
    """Returns the least sigma that is enough, and a row for each that was tried."""
    about = result.about
    trained = result.chosen.accuracy is not None
    title = (
        f"σ = {result.sigma:.4g} is enough: type {about['type']}, {about['defense']}, "
        f"{about['dataset']}: nobody picks one of {about['candidates'][0]} more often "
        f"than {result.limit:g}"
    )
    heads = ["σ", "certified", "picked"]
    table = _numbers_table([*heads, "accuracy"] if trained else heads)
    for point in result.points:
        row = [f"{point.sigma:.4g}", _bound(point.certified.value, 4)]
        row.append(_picked(point.measured))
        if trained:
            row.append("–" if point.accuracy is None else f"{point.accuracy:.3f}")
        table.add_row(*row, style="bold" if point.sigma == result.sigma else "")
    guessing = f"guessing: {result.chosen.line_up.guessing:.3g}"
    return Group(escape(title), table, guessing)


def unseen_table(result: Plain) -> Table:
    """Returns the table of a result.json that has no truth."""
    about = result["about"]
    title = (
        f"type {about['type']} ({about['place']}) · {about['method']} · "
        f"{result['victims']['asked']} captured updates · no truth given"
    )
    return facts_table(title, _unseen_rows(result))


def _unseen_rows(result: Plain) -> Iterator[Row]:
    about, found = result["about"], result["metrics"]
    rate, agree = found["determined"], "explained, and independent starts agree"
    yield "determined by what was sent", _interval(rate), agree
    as_it_is = (
        f"of what was sent, at the best scale (as it is: {number(found['residual'])})"
    )
    yield "unexplained", number(found["unexplained"]), as_it_is
    starts = f"of {about['restarts']}, within RMSE {about['success_rmse']:g}"
    yield "starts that agree", number(found["agreement"]), starts
    for row in found["updates"][:_UPDATES_SHOWN]:
        sure = row["label_confidence"]
        labels = " ".join(map(str, row["labels"][:12]))
        said = "" if sure is None else f"{sure:.0%} of the starts say so"
        yield escape(f"labels, {row['folder']}"[:40]), labels, said
    if found["line_up"] is not None:
        line_up = found["line_up"]
        chosen = line_up["picks"][:_UPDATES_SHOWN]
        picks = " ".join(str(pick["candidate"]) for pick in chosen)
        yield (
            f"line-up of {line_up['candidates']}",
            f"candidate {picks}",
            f"unexplained {number(line_up['unexplained'])}, "
            f"next {number(line_up['next_unexplained'])}",
        )
    for finding in (result["mechanism"] or {}).get("findings", ()):
        words = escape(finding["sentence"])
        shown = f"[red]{words}[/]" if finding["against"] else words
        yield escape(finding["what"]), shown, ""
    yield "time", f"{result['timing']['total_s']:.1f} s", ""
