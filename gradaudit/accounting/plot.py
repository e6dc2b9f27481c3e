"""Epsilon over steps, all methods in one picture."""

import pathlib

import numpy as np

from gradaudit.accounting.account import METHODS, ask
from gradaudit.accounting.events import Events, FloatArray
from gradaudit.errors import InputError

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
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise InputError(f"can't write the plot {path}: {error}") from None


def _label(name: str, curve: FloatArray) -> str:
    return f"{_LABELS[name]}: {curve[-1]:.4g}"
