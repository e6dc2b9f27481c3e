"""Strips of pictures for a page: private, as the search went on, rebuilt."""

import base64
import io
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from gradaudit.errors import InputError
from gradaudit.report.figures_of_leakage import films
from gradaudit.report.saved import Saved
from gradaudit.report.verdict import in_words, worst

Plain = dict[str, Any]
_FILMS = 3  # private examples of a cell that are shown
_SIDE = 46  # pixels of the screen that a private example takes at least


def strips_of(saved: Saved, cells: Sequence[Plain]) -> Iterator[Plain]:
    """Yields pictures of the worst attack on each place and defense, each once."""
    groups: dict[tuple[str, int, str], list[Plain]] = {}
    for cell in cells:
        if cell["kind"] == "attack" and cell["metrics"]:
            key = cell["dataset"]["text"], cell["type"], cell["defense"]["text"]
            groups.setdefault(key, []).append(cell)
    shown: dict[str, list[Plain]] = {}  # by folder: who reads the same shares one
    for group in groups.values():
        cell = worst(group) or group[0]
        shown.setdefault(cell["folder"], []).append(cell)
    for same in shown.values():
        cell = same[0]
        try:
            found = films(saved.cell(cell))
        except InputError:  # its folder was taken away
            continue
        if found:
            title = _title(same)
            figure = f"{cell['threat']['name']}: {in_words(cell['verdict']['rate'])}"
            yield strip(title, cell["verdict"]["kind"], figure, found)


def _title(cells: Sequence[Plain]) -> str:
    """Returns "type 2, none and fed-sdp", or "types 1 and 0, fed-cdp"."""
    by_type: dict[int, list[str]] = {}
    for cell in cells:
        by_type.setdefault(cell["type"], []).append(cell["defense"]["text"])
    by_names: dict[str, list[str]] = {}
    for leakage, names in by_type.items():
        by_names.setdefault(" and ".join(names), []).append(str(leakage))
    return "; ".join(
        f"type{'s' * (len(types) > 1)} {' and '.join(types)}, {names}"
        for names, types in by_names.items()
    )


def strip(title: str, verdict: str, figure: str, found: Sequence[Plain]) -> Plain:
    """Returns the pictures of one attack, with its verdict and its figure."""
    between = [name for name, _ in found[0]["frames"][1:-1]]
    numbers = ", ".join(name.removeprefix("iteration ") for name in between)
    return {
        "title": title,
        "verdict": verdict,
        "figure": figure,
        "between": f"iterations {numbers}" if between else "",
        "films": [_film(film, title, numbers) for film in found[:_FILMS]],
    }


def _film(film: Plain, title: str, numbers: str) -> Plain:
    """Returns one strip as a picture with its words."""
    from PIL import Image

    images = [image for _, image in film["frames"]]
    height, width = images[0].shape[:2]
    solid = np.ones((height, width, 1))
    images = [np.concatenate([image, solid], axis=2) for image in images]
    gap = np.zeros((height, max(1, width // 12), 4))  # the page shows through
    row = [part for image in images for part in (image, gap)][:-1]
    canvas = (255 * np.concatenate(row, axis=1)).round().astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(canvas).save(file, format="PNG", optimize=True)
    coded = base64.b64encode(file.getvalue()).decode()
    zoom = max(1, round(_SIDE / width))
    searched = f"; what the attacker had after iterations {numbers}" if numbers else ""
    return {
        "source": f"data:image/png;base64,{coded}",
        "width": zoom * canvas.shape[1],
        "height": zoom * canvas.shape[0],
        "words": f"{title}: a private example{searched}; what it handed in, RMSE "
        f"{film['rmse']:.2g}",
    }
