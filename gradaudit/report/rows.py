"""Rows of an attack's table that only some attacks and some data have."""

from typing import Any

from rich.markup import escape

Row = tuple[str, str, str]


def special_rows(result: dict[str, Any]) -> list[Row]:
    """Returns the rows that this result.json has beside the usual ones."""
    return [
        *_cells(result.get("cells")),
        *_imprint(result.get("imprint")),
        *_unsolved(result),
        *(_member(m) for m in result["metrics"].get("members") or () if m["asked"]),
    ]


def _unsolved(result: dict[str, Any]) -> list[Row]:
    """Returns how many searches failed by their own account."""
    scores = result["metrics"]
    unsolved = scores.get("unsolved")
    if not unsolved or not unsolved["victims"]:
        return []
    remedy = "more may leak" if scores["members"] else "try --method strongest"
    lost = f"{unsolved['victims']} of {result['victims']['asked']}"
    return [("not solved", lost, f"own misfit > {unsolved['level']:g}: {remedy}")]


def _member(row: dict[str, Any]) -> Row:
    """Returns how one attack of a portfolio did."""
    own = f"{row['rebuilt']} of {row['asked']}"
    return f"  {escape(row['name'])}", own, f"handed in: {row['handed_in']}"


def _cells(found: dict[str, Any] | None) -> list[Row]:
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


def _imprint(found: dict[str, Any] | None) -> list[Row]:
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
