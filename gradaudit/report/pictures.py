"""Pictures of examples: private ones, the attacker's iterates, what it handed in."""

import base64
import io
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradaudit.errors import InputError
from gradaudit.report import metrics
from gradaudit.report.drawing import Picture, picture, say
from gradaudit.report.result import Result, Saved
from gradaudit.report.verdict import in_words, successes, worst

Plain = dict[str, Any]
Image = NDArray[Any]  # (height, width, 3), in [0, 1]
_SIDE = 1.0  # inches of an image
_MOST = 12  # rows of pictures
_IN_A_ROW = 8  # examples of a batch that is an answer
_FILMS = 3  # private examples of a cell that are shown
_SHOWN_SIDE = 46  # pixels of the screen that a private example takes at least


def reconstructions(result: Result, rows: int = _MOST) -> Picture:
    """Draws private examples, the attacker's iterates, and what it handed in.

    A row for each example of a victim, next to its best match in the batch.
    """
    found = films(result)[:rows]
    if not found:
        raise InputError("this result has no pictures: the data are no images")
    names = [name for name, _ in found[0]["frames"]]
    images = [[image for _, image in film["frames"]] for film in found]
    height, width = images[0][0].shape[:2]
    side = _SIDE * height / width
    figure = picture(len(names) * _SIDE + 0.6, len(found) * side + 0.7)
    _tile(figure, images, [f"{film['rmse']:.1e}" for film in found], names)
    document = result.to_dict()
    about, asr = document["about"], document["metrics"]["asr"]
    say(
        figure,
        f"{_rebuilt(document)} [{asr['low']:.2f}, {asr['high']:.2f}] at RMSE <= "
        f"{asr['threshold']:g} (RMSE at the right): {about['method']} against "
        f"{about['defense']} on {about['dataset']}, type {about['type']}",
    )
    return figure


def answers_grid(answers: Sequence[NDArray[np.float32]], titles: Sequence[str]) -> Any:
    """Returns the pictures of each answer, (examples, h, w, channels), as a row."""
    rows = [[_rgb(each) for each in batch[:_IN_A_ROW]] for batch in answers[:_MOST]]
    height, width = rows[0][0].shape[:2]
    side = 1.2 * _SIDE
    figure = picture(len(rows[0]) * side + 3.0, len(rows) * side * height / width + 0.4)
    _tile(figure, rows, titles[:_MOST])
    return figure


def _tile(
    figure: Picture,
    rows: Sequence[Sequence[Image]],
    at_right: Sequence[str],
    above: Sequence[str] = (),
) -> None:
    """Shows rows of images as one: an axis for each would take seconds."""
    height, width = rows[0][0].shape[:2]
    gap = max(1, width // 12)
    tops = np.arange(len(rows)) * (height + gap)
    lefts = np.arange(len(rows[0])) * (width + gap)
    canvas = np.ones((tops[-1] + height, lefts[-1] + width, 3))
    for top, images in zip(tops, rows, strict=True):
        for left, image in zip(lefts, images, strict=True):
            canvas[top : top + height, left : left + width] = image
    axes = figure.subplots()
    axes.imshow(canvas)
    axes.set_xticks((lefts + (width - 1) / 2)[: len(above)], list(above))
    axes.set_yticks(tops + (height - 1) / 2, list(at_right))
    axes.xaxis.tick_top()
    axes.yaxis.tick_right()
    axes.tick_params(length=0, labelsize=7)
    axes.spines[:].set_visible(False)


def films(result: Result) -> list[Plain]:
    """Returns each pictured example's frames, as (name, RGB image in [0, 1]).

    Empty for what is no image, or was never pictured.
    """
    arrays = result.arrays().get("reconstructions.npz", {})
    if "frames" not in arrays or arrays["truth"].ndim != 5:
        return []
    if arrays["truth"].shape[-1] not in (1, 3):
        return []
    places = {int(v): i for i, v in enumerate(arrays["victim"])}
    found = []
    for index, victim in enumerate(arrays["pictured"].tolist()):
        truth = arrays["truth"][places[victim]]
        final = arrays["reconstruction"][places[victim]]
        order = metrics.match(truth, np.nan_to_num(final))
        for private, matched in zip(truth, order, strict=True):
            frames = [("private", private)]
            for step, iteration in enumerate(arrays["iterations"].tolist()):
                frame = arrays["frames"][index, step, matched]
                frames.append((f"iteration {iteration}", frame))
            frames.append(("rebuilt", final[matched]))
            wrong = private - np.clip(np.nan_to_num(final[matched]), 0, 1)
            found.append(
                {
                    "rmse": float(np.sqrt(np.mean(np.square(wrong)))),
                    "frames": [(name, _rgb(image)) for name, image in frames],
                }
            )
    return found


def _rgb(image: Any) -> Image:
    shown = np.clip(np.nan_to_num(image, nan=1.0), 0, 1)
    return np.broadcast_to(shown, (*shown.shape[:2], 3))


def _rebuilt(document: Plain) -> str:
    """Returns how many victims; of batches, also how much of what is in them."""
    (won, asked), about = successes(document), document["about"]
    batch = about["batch_size"] * about["local_steps"]
    if batch == 1:
        return f"{won} of {asked} rebuilt"
    share = document["metrics"]["examples_rebuilt"]
    return f"{share:.0%} of all examples, {won} of {asked} batches of {batch} rebuilt"


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
            verdict = cell["verdict"]
            figure = f"{cell['threat']['name']}: {in_words(verdict['rate'])}"
            yield strip(_title(same), verdict["kind"], figure, found)


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
    import PIL.Image

    images = [image for _, image in film["frames"]]
    height, width = images[0].shape[:2]
    solid = np.ones((height, width, 1))
    gap = np.zeros((height, max(1, width // 12), 4))  # the page shows through
    row: list[Image] = []
    for image in images:
        row += [np.concatenate([image, solid], axis=2), gap]
    canvas = (255 * np.concatenate(row[:-1], axis=1)).round().astype(np.uint8)
    file = io.BytesIO()
    PIL.Image.fromarray(canvas).save(file, format="PNG", optimize=True)
    coded = base64.b64encode(file.getvalue()).decode()
    zoom = max(1, round(_SHOWN_SIDE / width))
    searched = f"; what the attacker had after iterations {numbers}" if numbers else ""
    return {
        "source": f"data:image/png;base64,{coded}",
        "width": zoom * canvas.shape[1],
        "height": zoom * canvas.shape[0],
        "words": f"{title}: a private example{searched}; what it handed in, RMSE "
        f"{film['rmse']:.2g}",
    }
