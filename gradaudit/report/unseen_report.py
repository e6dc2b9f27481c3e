"""An attack on captured updates without the truth: its table and its pictures."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.markup import escape
from rich.table import Table

from gradaudit.report.tables import number

_MOST = 12  # rows of a picture
_SIDE = 1.2  # inches of an image


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
