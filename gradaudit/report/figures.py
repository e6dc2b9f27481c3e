"""Figures: `ga.plot`'s of a result, and the curves of single runs.

Every function of `ga.plot` (`__all__`) takes a result, fresh or from `ga.load`, and
returns a figure whose title says what was found. Nothing is written;
`figure.savefig("mine.pdf")` does that.
"""

import pathlib
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gradaudit.errors import InputError
from gradaudit.privacy.events import Events, FloatArray
from gradaudit.privacy.methods import METHODS, ask
from gradaudit.report.figures_of_leakage import frontier, reconstructions, resilience
from gradaudit.report.figures_of_privacy import epsilon, line_up, norms
from gradaudit.report.result import write_figure

if TYPE_CHECKING:
    from gradaudit.audit.attack_result import AttackResult
    from gradaudit.distinguish.whitebox import NormPoint
    from gradaudit.federation.training import RoundRecord


from numpy.typing import NDArray

__all__ = ["epsilon", "frontier", "line_up", "norms", "reconstructions", "resilience"]

_LINES = 200  # searches that are drawn; more are a blot


def _title(figure: Any, text: str) -> None:
    """Sets a title in as many lines as the figure's width needs."""
    letters = int(16 * figure.get_figwidth())  # of 8 points
    figure.suptitle("\n".join(textwrap.wrap(text, letters)), fontsize=8)


def convergence(result: "AttackResult") -> Any:
    """RMSE (for the evaluator only) and the attacker's objective over iterations."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 2.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    for trace in result.traces[:_LINES]:
        steps = np.arange(1, len(trace.rmse) + 1)
        left.plot(steps, trace.rmse, color="tab:blue", alpha=0.3, linewidth=0.8)
        right.plot(steps, trace.objective, color="tab:red", alpha=0.3, linewidth=0.8)
    left.axhline(result.about["success_rmse"], color="black", linestyle=":")
    left.set_title("RMSE of the selected iterate (evaluator)", fontsize=8)
    right.set_title("objective (all that the attacker sees)", fontsize=8)
    for axis in (left, right):
        axis.set_yscale("log")
        axis.set_xlabel("attack iteration", fontsize=8)
        axis.tick_params(labelsize=7)
    if max(len(trace.rmse) for trace in result.traces) > 60:
        for axis in (left, right):
            axis.set_xscale("log")
    return figure


def training_curve(history: "Sequence[RoundRecord]", title: str) -> Any:
    """Draws accuracy, and the gradient's norm before and after the defense."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(9, 3.4), layout="constrained")
    accuracy, norms = figure.subplots(1, 2)
    _title(figure, title)
    measured = [r for r in history if r.accuracy is not None]
    accuracy.plot([r.round for r in measured], [r.accuracy for r in measured], ".-")
    accuracy.set(xlabel="round", ylabel="validation accuracy")
    rounds = [r.round for r in history]
    for name, style in (("norm_before", ".-"), ("norm_after", ".--")):
        values = [_joint(getattr(r, name)) for r in history]
        label = name.replace("norm_", "") + " the defense"
        norms.plot(rounds, values, style, label=label)
    norms.set(xlabel="round", ylabel="norm of the batch gradient", yscale="log")
    norms.legend()
    for axes in (accuracy, norms):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        if len(rounds) == 1:
            axes.set_xlim(rounds[0] - 0.5, rounds[0] + 0.5)
    return figure


def _joint(norms: tuple[float, ...]) -> float:
    return float(sum(norm**2 for norm in norms) ** 0.5)


_LABELS = {
    "base": "base composition",
    "advanced": "advanced composition",
    "optimal": "optimal composition",
    "zcdp": "zCDP",
    "moments": "moments accountant",
    "rdp": "Renyi, improved conversion",
    "pld": "loss distribution (tight)",
}


_MOST_POINTS = 400


def plot_over_steps(
    path: str | pathlib.Path,
    events: Events,
    delta: float,
    convention: str = "clean",
    target: float | None = None,
) -> None:
    """Writes the picture; the format follows from the file's name."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.2), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    shown = np.unique(np.linspace(1, events.steps, _MOST_POINTS).astype(int))
    for index, name in enumerate(METHODS):
        method, asked = ask(name, events, delta, convention)
        curve = method.curve(asked, delta)[asked.steps - events.steps :][shown - 1]
        width = 2.6 if name == "pld" else 1.4
        axes.plot(shown, curve, color=f"C{index}", linewidth=width)
        axes.plot([], [], color=f"C{index}", linewidth=width, label=_label(name, curve))
    if target is not None:
        label = f"target: {target:g}"
        axes.axhline(target, color="black", linestyle=":", linewidth=1, label=label)
    axes.set(
        xlabel="step",
        ylabel=rf"$\varepsilon$ at $\delta$ = {delta:g}",
        yscale="log",
        xlim=(1, max(2, events.steps)),
        title="Privacy spent, by accounting method",
    )
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right center", frameon=False, fontsize=8)
    try:
        write_figure(pathlib.Path(path), figure)
    except (OSError, ValueError) as error:
        raise InputError(f"can't write the plot {path}: {error}") from None


def _label(name: str, curve: FloatArray) -> str:
    return f"{_LABELS[name]}: {curve[-1]:.4g}"


def norm_figure(points: "Sequence[NormPoint]") -> Any:
    """Draws epsilon against the norm of a dummy gradient, measured and exact."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.1, 3.3), layout="constrained")
    axes = figure.subplots()
    for index, level in enumerate(dict.fromkeys(point.epsilon for point in points)):
        chosen = [point for point in points if point.epsilon == level]
        norms = [point.norm for point in chosen]
        color = f"C{index}"
        axes.plot(norms, [point.exact for point in chosen], "-", color=color, lw=1)
        axes.errorbar(
            norms,
            [point.mean for point in chosen],
            np.nan_to_num([point.spread for point in chosen]),
            fmt="o",
            ms=4,
            color=color,
            label=f"ε = {level:g}",
        )
    axes.axvline(1.0, color="grey", ls=":", lw=1)
    axes.set_xlabel("norm of the gradient / clip (line: exact law)")
    axes.set_ylabel("measured ε, white box")
    axes.legend(fontsize=8)
    return figure


_MOST = 12  # rows of a picture


_SIDE = 1.2  # inches of an image


def answers_grid(answers: Sequence[NDArray[np.float32]], titles: Sequence[str]) -> Any:
    """Returns the pictures of each answer, (examples, h, w, channels), as a row."""
    from matplotlib.figure import Figure

    shown = answers[:_MOST]
    count, (height, width) = len(shown[0]), shown[0].shape[1:3]
    gap = max(1, width // 12)
    rows, columns = len(shown), min(count, 8)
    canvas = np.ones((rows * (height + gap) - gap, columns * (width + gap) - gap, 3))
    for row, pictures in enumerate(shown):
        for column in range(columns):
            top, left = row * (height + gap), column * (width + gap)
            image = np.clip(np.nan_to_num(pictures[column], nan=1.0), 0.0, 1.0)
            canvas[top : top + height, left : left + width] = image
    figure = Figure(
        figsize=(columns * _SIDE + 3.0, rows * _SIDE * height / width + 0.4),
        layout="constrained",
    )
    axis = figure.subplots()
    axis.imshow(canvas)
    axis.set_xticks([])
    places = np.arange(rows) * (height + gap) + (height - 1) / 2
    axis.set_yticks(places, list(titles[:_MOST]))
    axis.yaxis.tick_right()
    axis.tick_params(length=0, labelsize=7)
    axis.spines[:].set_visible(False)
    return figure
