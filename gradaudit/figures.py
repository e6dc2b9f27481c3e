"""Pictures of an attack: what was private, what was rebuilt, and how fast."""

import pathlib
from typing import TYPE_CHECKING, Any

import numpy as np

from gradaudit import metrics

if TYPE_CHECKING:
    from gradaudit.result import AttackResult, Picture

_SIDE = 1.15  # inches of an image
_COLUMNS = 8  # frames of a row, the last one being what was handed in
_LINES = 200  # searches that are drawn; more are a blot


def save_all(result: "AttackResult", folder: pathlib.Path) -> list[pathlib.Path]:
    """Writes every figure that makes sense for the result; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    if result.pictures and result.truth.ndim == 5 and result.truth.shape[-1] in (1, 3):
        written.append(_save(reconstruction_grid(result), folder / "victims.png"))
    if any(len(trace.rmse) > 1 for trace in result.traces):
        written.append(_save(convergence(result), folder / "convergence.png"))
    return written


def reconstruction_grid(result: "AttackResult") -> Any:
    """Rows are private images; columns the truth, the iterates, the hand-in."""
    from matplotlib.figure import Figure

    rows = [
        (picture, example)
        for picture in result.pictures
        for example in range(len(picture.truth))
    ][:12]
    shown = _iterations_shown(result)
    columns = ["private", *(f"iteration {i}" for i in shown), "rebuilt"]
    height, width = result.truth.shape[2:4]
    gap = max(1, width // 12)
    tops = np.arange(len(rows)) * (height + gap)
    lefts = np.arange(len(columns)) * (width + gap)
    # One picture of them all: an axis for each would take seconds.
    canvas = np.ones((tops[-1] + height, lefts[-1] + width, 3))
    for top, (picture, example) in zip(tops, rows, strict=True):
        for left, image in zip(lefts, _film(picture, example, shown), strict=True):
            canvas[top : top + height, left : left + width] = image
    figure = Figure(
        figsize=(
            len(columns) * _SIDE + 0.6,
            len(rows) * _SIDE * height / width + 0.5,
        ),
        layout="constrained",
    )
    axis = figure.subplots()
    axis.imshow(canvas)
    axis.set_xticks(lefts + (width - 1) / 2, columns)
    axis.set_yticks(tops + (height - 1) / 2, [f"{p.rmse:.1e}" for p, _ in rows])
    axis.xaxis.tick_top()
    axis.yaxis.tick_right()
    axis.tick_params(length=0, labelsize=7)
    axis.spines[:].set_visible(False)
    asr = result.asr
    config = result.config
    figure.suptitle(
        f"type {config['type']}  {config['method']} against {config['defense']} on "
        f"{config['dataset']}: ASR {asr.value:.2f} [{asr.low:.2f}, {asr.high:.2f}] at "
        f"RMSE <= {config['success_rmse']:g} (RMSE at the right)",
        fontsize=8,
    )
    return figure


def _film(picture: "Picture", example: int, shown: list[int]) -> list[Any]:
    """Returns one private image, what the search had of it over time, and the end.

    A batch has no order that an attacker could know: the row shows its best match.
    """
    matched = metrics.match(picture.truth, np.nan_to_num(picture.final))[example]
    film = [picture.truth[example]]
    white = np.ones_like(film[0])
    for iteration in shown:
        earlier = [i for i in picture.frames if i <= iteration]
        film.append(picture.frames[max(earlier)][matched] if earlier else white)
    film.append(picture.final[matched])
    return [np.clip(np.nan_to_num(image, nan=1.0), 0.0, 1.0) for image in film]


def convergence(result: "AttackResult") -> Any:
    """RMSE (for the evaluator only) and the attacker's objective over iterations."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 2.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    for trace in result.traces[:_LINES]:
        steps = np.arange(1, len(trace.rmse) + 1)
        left.plot(steps, trace.rmse, color="tab:blue", alpha=0.3, linewidth=0.8)
        right.plot(steps, trace.objective, color="tab:red", alpha=0.3, linewidth=0.8)
    left.axhline(result.config["success_rmse"], color="black", linestyle=":")
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


def _iterations_shown(result: "AttackResult") -> list[int]:
    every = sorted({i for picture in result.pictures for i in picture.frames})
    if len(every) <= _COLUMNS - 2:
        return every
    chosen = np.linspace(0, len(every) - 1, _COLUMNS - 2).round().astype(int)
    return [every[i] for i in chosen]


def _save(figure: Any, path: pathlib.Path) -> pathlib.Path:
    figure.savefig(path, dpi=130)
    return path
