"""`accounting`: every epsilon that the papers print, beside ours.

Wei & Liu 2022, Tables V and VI; Wei et al. 2021, Table VI; Wei et al. 2023, Tables 6, 7
and 11. No scale changes anything: there is nothing to train.
"""

import functools

from gradaudit.benchmarks.papers import accounting_rows
from gradaudit.benchmarks.suite import (
    Benchmark,
    Cell,
    Context,
    Entry,
    Measured,
    Plain,
    Row,
    Scale,
    Table,
    found,
    number,
)
from gradaudit.privacy import gaussian, spend

_METHODS = {
    "BaseC": "base",
    "AdvC": "advanced",
    "OptC": "optimal",
    "zCDP": "zcdp",
    "MA": "moments",
}
_PAPERS = {
    "000": "Wei et al. 2023",
    "001": "Wei et al. 2021",
    "002": "Wei & Liu 2022",
}


@functools.cache  # five methods answer for the same steps
def _tight(sigma: float, q: float, delta: float, steps: int) -> float:
    return spend("pld", gaussian(sigma, q, steps), delta).epsilon


def measure_epsilon(
    context: Context, *, method: str, sigma: float, q: float, delta: float, steps: int
) -> Plain:
    """Returns epsilon by the clean formula, the papers' habits, and tightly."""
    events = gaussian(sigma, q, steps)
    return {
        "clean": spend(method, events, delta).epsilon,
        "paper": spend(method, events, delta, "paper").epsilon,
        "tight": _tight(sigma, q, delta, steps),
    }


def _rows(scale: Scale) -> list[dict[str, str]]:
    rows = accounting_rows()
    return rows[:6] if scale is Scale.SMOKE else rows


def _name(row: dict[str, str]) -> str:
    return f"{row['source']}, {row['method']}, {row['steps']} steps"


def cells(scale: Scale, seed: int) -> list[Cell]:
    """Returns a cell for each printed epsilon."""
    return [
        Cell(
            _name(row),
            measure_epsilon,
            {
                "method": _METHODS[row["method"]],
                "sigma": float(row["sigma"]),
                "q": float(row["q"]),
                "delta": float(row["delta"]),
                "steps": int(row["steps"]),
            },
        )
        for row in _rows(scale)
    ]


def tables(measured: Measured, scale: Scale) -> list[Table]:
    """Returns one row for each printed epsilon."""
    rows: list[Row] = []
    for row in _rows(scale):
        name, (paper, _, table) = _name(row), row["source"].partition(" ")
        values = [found(measured, name, key) for key in ("paper", "clean", "tight")]
        digits = len(row["published_eps"].partition(".")[2])
        rows.append(
            [
                f"{_PAPERS[paper]}, {table}",
                _METHODS[row["method"]],
                f"{int(row['steps']):,}",
                row["published_eps"],
                *(Entry(number(value, max(3, digits))) for value in values),
            ]
        )
    heads = ["source", "method", "steps", "published"]
    heads += ["by the papers' habits", "clean formula", "tight (PLD)"]
    return [Table("Epsilon at delta = 1e-5, sigma = 6", heads, rows)]


def differences(scale: Scale) -> list[str]:
    """Returns what differs from the published setting."""
    few = ["the first six figures only"] if scale is Scale.SMOKE else []
    return [
        *few,
        "the papers' habits: one composition more than steps (but at 10,000), the "
        "Gaussian mechanism's epsilon rounded to three digits",
    ]


ACCOUNTING = Benchmark(
    "accounting",
    "Every printed epsilon beside ours",
    "Wei & Liu 2022, Tables V, VI; Wei et al. 2021, Table VI; Wei et al. 2023, "
    "Tables 6, 7, 11",
    cells,
    tables,
    differences,
)
