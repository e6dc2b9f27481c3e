"""Pictures of an attack: what was private, what was rebuilt, and how fast."""

import pathlib
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from gradaudit.result import AttackResult

_COLUMNS = 8  # frames of a row, the last one being what was handed in
_LINES = 200  # searches that are drawn; more are a blot


def save_all(result: "AttackResult", folder: pathlib.Path) -> list[pathlib.Path]:
    """Writes every figure that makes sense for the result; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    if result.pictures and result.truth.ndim == 5:
        written.append(_save(reconstruction_grid(result), folder / "victims.png"))
    if any(len(trace.rmse) > 1 for trace in result.traces):
        written.append(_save(convergence(result), folder / "convergence.png"))
    return written


def reconstruction_grid(result: "AttackResult") -> Any:
    """Rows are private images; columns the truth, the iterates, the hand-in."""
    rows = [
        (picture, example)
        for picture in result.pictures
        for example in range(len(picture.truth))
    ][:12]
    shown = _iterations_shown(result)
    columns = ["private", *(f"iteration {i}" for i in shown), "rebuilt"]
    figure, axes = _subplots(len(rows), len(columns), 1.15)
    for row, (picture, example) in zip(axes, rows, strict=True):
        images: list[Any] = [picture.truth]
        for iteration in shown:
            earlier = [i for i in picture.frames if i <= iteration]
            images.append(picture.frames[max(earlier)] if earlier else None)
        images.append(picture.final)
        for axis, image in zip(row, images, strict=True):
            axis.set_axis_off()
            if image is not None:
                _show(axis, image[example])
        row[-1].text(
            1.06,
            0.5,
            f"{picture.rmse:.1e}",
            transform=row[-1].transAxes,
            va="center",
            fontsize=7,
        )
    for axis, title in zip(axes[0], columns, strict=True):
        axis.set_title(title, fontsize=7)
    asr = result.asr
    config = result.config
    figure.suptitle(
        f"type {config['type']}  {config['method']} against {config['defense']} on "
        f"{config['dataset']}: ASR {asr.value:.2f} [{asr.low:.2f}, {asr.high:.2f}] at "
        f"RMSE <= {config['success_rmse']:g} (RMSE at the right)",
        fontsize=8,
    )
    return figure


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


def _show(axis: Any, image: Any) -> None:
    grey = image.shape[-1] == 1
    pixels = np.clip(image[..., 0] if grey else image, 0.0, 1.0)
    axis.imshow(pixels, cmap="gray" if grey else None, vmin=0.0, vmax=1.0)


def _subplots(rows: int, columns: int, side: float) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(
        figsize=(columns * side + 0.6, rows * side + 0.5), layout="constrained"
    )
    return figure, figure.subplots(rows, columns, squeeze=False)


def _save(figure: Any, path: pathlib.Path) -> pathlib.Path:
    figure.savefig(path, dpi=130)
    return path
