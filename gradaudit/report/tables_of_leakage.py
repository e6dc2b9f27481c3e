"""Results as tables for people: attacks, line-ups, calibration, captured updates."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    pass


from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradaudit.audit.informed import LineUpResult
    from gradaudit.audit.least_noise import EnoughResult


Row = tuple[str, str, str]

_DRAWS_SHOWN = 8


def attack_table(result: dict[str, Any]) -> Table:
    """Returns the table of one attack's result.json."""
    about = result["about"]
    table = Table(
        title=escape(
            f"type {about['type']} · {about['method']} against {about['defense']} · "
            f"{about['dataset']} · {result['victims']['asked']} victims"
        ),
        title_justify="left",
        show_header=False,
    )
    for row in (
        *_rates(result),
        *special_rows(result),
        *_searches(result),
        *_claims(result),
    ):
        table.add_row(*row)
    ended = ", ".join(f"{count} {name}" for name, count in result["ended"].items())
    looks = result["threat"].get("looks", 1)
    several = f", {looks} looks" * (looks > 1)
    known = f"threat: {result['threat']['name']}{several}"
    table.add_row("searches ended", ended, known)
    return table


def _rates(result: dict[str, Any]) -> Iterator[Row]:
    """Yields how often and how well victims were rebuilt."""
    about, scores = result["about"], result["metrics"]
    asr, rmse = scores["asr"], scores["rmse"]
    yield (
        "attack success rate",
        f"{asr['value']:.3f}  \\[{asr['low']:.3f}, {asr['high']:.3f}]",
        f"RMSE <= {asr['threshold']:g}; guessing: {asr['guess']:.3f}",
    )
    if len(result["draws"]) > 1:
        draws = result["draws"]
        each = " ".join(f"{d['successes']}/{d['victims']}" for d in draws)
        if len(draws) > _DRAWS_SHOWN:
            some = sum(draw["successes"] > 0 for draw in draws)
            each = f"a success in {some} of {len(draws)}"
        yield "each network drawn", each, "the interval counts the draws"
    if len(result["victims"]["missing"]):
        count = len(result["victims"]["missing"])
        yield "never begun", str(count), "interrupted; counted as unknown"
    yield "RMSE", number(rmse["median"]), f"mean {number(rmse['mean'])}"
    if about["batch_size"] * about["local_steps"] > 1:
        share = number(scores["examples_rebuilt"])
        yield "examples rebuilt", share, "share of all examples"


def _searches(result: dict[str, Any]) -> Iterator[Row]:
    """Yields what the searches came to, and what they took."""
    scores, oracle, timing = result["metrics"], result["oracle"], result["timing"]
    iterations = scores["iterations"]
    yield (
        "PSNR, SSIM",
        f"{number(scores['psnr']['median'])} dB, {number(scores['ssim']['median'])}",
        "medians",
    )
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


def _claims(result: dict[str, Any]) -> Iterator[Row]:
    """Yields the epsilon and the certificates, where there is noise."""
    if result["accounting"] is not None:
        epsilon = result["accounting"]["epsilon"]
        verdict = result["accounting"]["guarantee"]["verdict"]
        yield (
            f"ε, {escape(result['about']['dataset'])} as published",
            f"claimed {_epsilon(epsilon['claimed'])}, "
            f"effective {_epsilon(epsilon['effective'])}",
            f"guarantee {verdict}; see gradaudit account",
        )
    if result.get("certificate") is not None:
        yield from certificate_rows(result["certificate"])


def _epsilon(value: float | str) -> str:
    return value if isinstance(value, str) else number(value)


def number(value: float | None) -> str:
    """Returns a short number; a dash where there is none."""
    if value is None:
        return "–"
    if value == int(value) and abs(value) < 1e6:
        return str(int(value))
    return f"{value:.2e}" if abs(value) < 1e-2 else f"{value:.3g}"


def special_rows(result: dict[str, Any]) -> list[Row]:
    """Returns the rows that this result.json has beside the usual ones."""
    return [
        *_cell_rows(result.get("cells")),
        *_imprint_rows(result.get("imprint")),
        *_unsolved_rows(result),
        *(_member_row(m) for m in result["metrics"].get("members") or () if m["asked"]),
    ]


def _unsolved_rows(result: dict[str, Any]) -> list[Row]:
    """Returns how many searches failed by their own account."""
    scores = result["metrics"]
    unsolved = scores.get("unsolved")
    if not unsolved or not unsolved["victims"]:
        return []
    remedy = "more may leak" if scores["members"] else "try --method strongest"
    lost = f"{unsolved['victims']} of {result['victims']['asked']}"
    return [("not solved", lost, f"own misfit > {unsolved['level']:g}: {remedy}")]


def _member_row(row: dict[str, Any]) -> Row:
    """Returns how one attack of a portfolio did."""
    own = f"{row['rebuilt']} of {row['asked']}"
    return f"  {escape(row['name'])}", own, f"handed in: {row['handed_in']}"


def _cell_rows(found: dict[str, Any] | None) -> list[Row]:
    """Returns how much of a table is right."""
    if found is None:
        return []
    kinds = (("cells right", found["right"]), ("  whole rows", found["rows"]))
    return [
        (
            name,
            f"{rate['value']:.3f}  \\[{rate['low']:.3f}, {rate['high']:.3f}]",
            f"guessing: {rate['guess']:.3f}",
        )
        for name, rate in kinds
    ]


def _imprint_rows(found: dict[str, Any] | None) -> list[Row]:
    """Returns what a malicious server reached, and what a client could notice."""
    if found is None:
        return []
    rebuilt = found["alone_rebuilt"]
    added = f"{found['added_parameters']:,} parameters more"
    return [
        (
            "alone in their bins",
            f"{found['alone']:.3f}, expected {found['expected']:.3f}",
            f"share of all examples; {found['bins']} bins",
        ),
        ("  of these rebuilt", "–" if rebuilt is None else f"{rebuilt:.3f}", "share"),
        (
            "a client could notice",
            added,
            f"{found['share_of_parameters']:.0%} of all",
        ),
        *(("", escape(said), "") for said in found["noticeable"]),
    ]


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


def unseen_table(result: dict[str, Any]) -> Table:
    """Returns the table of a result.json that has no truth."""
    about, found = result["about"], result["metrics"]
    table = Table(
        title=escape(
            f"type {about['type']} ({about['place']}) · {about['method']} · "
            f"{result['victims']['asked']} captured updates · no truth given"
        ),
        title_justify="left",
        show_header=False,
    )
    for _ in range(3):
        table.add_column(overflow="fold")
    rate = found["determined"]
    table.add_row(
        "determined by what was sent",
        f"{rate['value']:.3f}  \\[{rate['low']:.3f}, {rate['high']:.3f}]",
        "explained, and independent starts agree",
    )
    table.add_row(
        "unexplained",
        number(found["unexplained"]),
        f"of what was sent, at the best scale (as it is: {number(found['residual'])})",
    )
    table.add_row(
        "starts that agree",
        number(found["agreement"]),
        f"of {about['restarts']}, within RMSE {about['success_rmse']:g}",
    )
    for row in found["updates"][:8]:
        sure = row["label_confidence"]
        labels = " ".join(map(str, row["labels"][:12]))
        table.add_row(
            escape(f"labels, {row['folder']}"[:40]),
            labels,
            "" if sure is None else f"{sure:.0%} of the starts say so",
        )
    if found["line_up"] is not None:
        line_up = found["line_up"]
        picks = " ".join(str(pick["candidate"]) for pick in line_up["picks"][:8])
        table.add_row(
            f"line-up of {line_up['candidates']}",
            f"candidate {picks}",
            f"unexplained {number(line_up['unexplained'])}, "
            f"next {number(line_up['next_unexplained'])}",
        )
    for finding in (result["mechanism"] or {}).get("findings", ()):
        words = escape(finding["sentence"])
        table.add_row(
            escape(finding["what"]), f"[red]{words}[/]" if finding["against"] else words
        )
    table.add_row("time", f"{result['timing']['total_s']:.1f} s", "")
    return table
