"""Figures: measured against theoretical epsilon, and the effect of the norm."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gradaudit.ldp.cells import Cell
from gradaudit.ldp.config import Box
from gradaudit.ldp.sweep import NormPoint

_STYLE = {
    Box.WHITE: {"color": "#c44e52", "marker": "o", "label": "white box"},
    Box.BLACK: {"color": "#4c72b0", "marker": "s", "label": "black box"},
}


def save_epsilon_figure(cells: Sequence[Cell], path: Path) -> None:
    """Draws one panel per adversary: both boxes, mean and spread, and y = x."""
    names = list(dict.fromkeys(cell.adversary for cell in cells))
    columns = min(3, len(names))
    rows = -(-len(names) // columns)
    figure, grid = _figure(rows, columns)
    top = 1.15 * max(cell.epsilon for cell in cells)
    for axes, name in zip(grid.flat, names, strict=False):
        _identity(axes, top)
        for box, style in _STYLE.items():
            chosen = [
                cell for cell in cells if (cell.adversary, cell.box) == (name, box)
            ]
            if chosen:
                _errorbar(axes, chosen, style)
        axes.set_title(name.replace("-", " "), fontsize=10)
    for axes in grid.flat[len(names) :]:
        axes.set_visible(False)
    for axes in grid[-1, :]:
        axes.set_xlabel("theoretical ε")
    for axes in grid[:, 0]:
        axes.set_ylabel("measured ε")
    grid[0, 0].legend(fontsize=8, loc="upper left")
    _save(figure, path)


def save_norm_figure(points: Sequence[NormPoint], path: Path) -> None:
    """Draws epsilon against the norm of a dummy gradient, measured and exact."""
    figure, grid = _figure(1, 1)
    axes = grid[0, 0]
    for index, epsilon in enumerate(dict.fromkeys(point.epsilon for point in points)):
        chosen = [point for point in points if point.epsilon == epsilon]
        norms = [point.norm for point in chosen]
        color = f"C{index}"
        axes.plot(norms, [point.exact for point in chosen], "-", color=color, lw=1)
        axes.errorbar(
            norms,
            [point.mean for point in chosen],
            [point.spread for point in chosen],
            fmt="o",
            ms=4,
            color=color,
            label=f"ε = {epsilon:g}",
        )
    axes.axvline(1.0, color="grey", ls=":", lw=1)
    axes.set_xlabel("norm of the gradient / clip (line: exact law)")
    axes.set_ylabel("measured ε, white box")
    axes.legend(fontsize=8)
    _save(figure, path)


def _figure(rows: int, columns: int) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(
        figsize=(1.2 + 2.9 * columns, 0.8 + 2.5 * rows), layout="constrained"
    )
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    return figure, grid


def _identity(axes: Any, top: float) -> None:
    axes.plot([0, top], [0, top], ls="--", lw=1, color="grey", label="measured = ε")
    axes.axhline(0, lw=0.5, color="grey")
    axes.grid(alpha=0.2)


def _errorbar(axes: Any, cells: list[Cell], style: dict[str, str]) -> None:
    # An infinite estimate (no error seen) is drawn at what its trials could prove.
    means = [cell.mean if np.isfinite(cell.mean) else cell.ceiling for cell in cells]
    spreads = np.nan_to_num([cell.spread for cell in cells])
    epsilons = [cell.epsilon for cell in cells]
    axes.errorbar(epsilons, means, spreads, lw=1.2, ms=4, capsize=2, **style)


def _save(figure: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
