"""Figures of leakage: what was rebuilt, how often, and what the defense costs."""

import base64
import io
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from gradaudit.errors import InputError
from gradaudit.report import metrics
from gradaudit.report.drawing import (
    GREY,
    SMALL,
    WIDTH,
    Picture,
    legend,
    picture,
    plain,
    say,
    short,
    styles,
)
from gradaudit.report.result import AUDIT, RESULT, Result, Saved, kind_of, load
from gradaudit.report.verdict import in_words, worst

Plain = dict[str, Any]
_SIDE = 1.0  # inches of an image
_MOST = 12  # rows of pictures
_PLACES = {2: "an example's gradient", 1: "an update at the client", 0: "at the server"}


def reconstructions(result: Result, rows: int = _MOST) -> Picture:
    """Draws private examples, the attacker's iterates, and what it handed in.

    A row for each example of a victim, next to its best match in the batch.
    """
    found = films(result)[:rows]
    if not found:
        raise InputError("this result has no pictures: the data are no images")
    columns = [name for name, _ in found[0]["frames"]]
    height, width = found[0]["frames"][0][1].shape[:2]
    gap = max(1, width // 12)
    tops = np.arange(len(found)) * (height + gap)
    lefts = np.arange(len(columns)) * (width + gap)
    # One picture of them all: an axis for each would take seconds.
    canvas = np.ones((tops[-1] + height, lefts[-1] + width, 3))
    for top, film in zip(tops, found, strict=True):
        for left, (_, image) in zip(lefts, film["frames"], strict=True):
            canvas[top : top + height, left : left + width] = image
    side = _SIDE * height / width
    figure = picture(len(columns) * _SIDE + 0.6, len(found) * side + 0.7)
    axes = figure.subplots()
    axes.imshow(canvas)
    axes.set_xticks(lefts + (width - 1) / 2, columns)
    axes.set_yticks(tops + (height - 1) / 2, [f"{f['rmse']:.1e}" for f in found])
    axes.xaxis.tick_top()
    axes.yaxis.tick_right()
    axes.tick_params(length=0, labelsize=7)
    axes.spines[:].set_visible(False)
    document = result.to_dict()
    about, asr = document["about"], document["metrics"]["asr"]
    say(
        figure,
        f"{_rebuilt(document)} [{asr['low']:.2f}, {asr['high']:.2f}] at RMSE <= "
        f"{asr['threshold']:g} (RMSE at the right): {about['method']} against "
        f"{about['defense']} on {about['dataset']}, type {about['type']}",
    )
    return figure


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
        for example in range(len(truth)):
            matched = order[example]
            frames = [("private", truth[example])]
            for step, iteration in enumerate(arrays["iterations"].tolist()):
                frame = arrays["frames"][index, step, matched]
                frames.append((f"iteration {iteration}", frame))
            frames.append(("rebuilt", final[matched]))
            wrong = truth[example] - np.clip(np.nan_to_num(final[matched]), 0.0, 1.0)
            found.append(
                {
                    "victim": victim,
                    "rmse": float(np.sqrt(np.mean(np.square(wrong)))),
                    "frames": [(name, _rgb(image)) for name, image in frames],
                }
            )
    return found


def _rgb(image: Any) -> Any:
    shown = np.clip(np.nan_to_num(image, nan=1.0), 0.0, 1.0)
    return np.broadcast_to(shown, (*shown.shape[:2], 3))


def _rebuilt(document: Plain) -> str:
    """Returns how many victims; of batches, also how much of what is in them."""
    (won, asked), about = _won(document), document["about"]
    batch = about["batch_size"] * about["local_steps"]
    if batch == 1:
        return f"{won} of {asked} rebuilt"
    share = document["metrics"]["examples_rebuilt"]
    return f"{share:.0%} of all examples, {won} of {asked} batches of {batch} rebuilt"


def _won(document: Plain) -> tuple[int, int]:
    won = sum(draw["successes"] for draw in document["draws"])
    return won, document["victims"]["asked"]


def resilience(*results: Result, by: str = "defense") -> Picture:
    """Draws how many victims are rebuilt at every threshold on the RMSE.

    Of several attacks, or of all attacks of an audit: a panel for each place.

    Args:
      *results: attacks, or one audit.
      by: what tells the lines apart: a word of `result.about`, as defense or method.
    """
    attacks = [each for result in results for each in attacks_of(result)]
    if not attacks:
        raise InputError("there is no attack to draw")
    types = sorted({a.to_dict()["about"]["type"] for a in attacks}, reverse=True)
    figure = picture(WIDTH, 0.9 + 2.1 * len(types) + 0.16 * len(attacks))
    grid = figure.subplots(len(types), 1, squeeze=False, sharex=True)[:, 0]
    drawn = _styles(attacks, by)
    threshold = 0.1
    for axes, kind in zip(grid, types, strict=True):
        for result in attacks:
            document = result.to_dict()
            if document["about"]["type"] != kind:
                continue
            threshold = document["metrics"]["asr"]["threshold"]
            name = _line(document, by, attacks)
            style = drawn[_colour(document, by), document["threat"]["name"]]
            errors = [row["rmse"] for row in result.rows()["trials.csv"]]
            _steps(axes, errors, document["victims"]["asked"], style, name)
        axes.axvline(threshold, color=GREY, linewidth=0.8)
        plain(axes, xscale="log", xlim=(1e-4, 1.0), ylim=(-0.03, 1.05))
        axes.set_title(f"type {kind}: {_PLACES[kind]}", fontsize=SMALL, loc="left")
    grid[-1].set_xlabel("RMSE that counts as rebuilt", fontsize=SMALL)
    figure.supylabel("victims rebuilt", fontsize=SMALL)
    legend(figure, _all_lines(figure, grid), columns=1)
    say(figure, _resilience_found(attacks, threshold, by))
    return figure


def _colour(document: Plain, by: str) -> str:
    return str(document["about"].get(by, ""))


def _styles(attacks: Sequence[Result], by: str) -> dict[tuple[str, str], Plain]:
    """Returns a colour for each name, and dashes for each threat if there are more."""
    documents = [attack.to_dict() for attack in attacks]
    names = list(dict.fromkeys(_colour(document, by) for document in documents))
    threats = list(dict.fromkeys(document["threat"]["name"] for document in documents))
    colours = dict(zip(names, styles(), strict=False))
    dashes = [each["linestyle"] for _, each in zip(threats, styles(), strict=False)]
    if len(threats) == 1:
        return {(name, threats[0]): colours[name] for name in names}
    return {
        (name, threat): colours[name] | {"linestyle": line}
        for name in names
        for threat, line in zip(threats, dashes, strict=True)
    }


def attacks_of(result: Result) -> list[Result]:
    """Returns the attack itself, or those of an audit that were done."""
    document = result.to_dict()
    if kind_of(document) == RESULT:
        return [result] if "asr" in document["metrics"] else []
    folder = getattr(result, "folder", None)
    if folder is None:
        raise InputError("the audit's folder is not known: use ga.load(folder)")
    done = [c for c in document["cells"] if c["kind"] == "attack" and c["metrics"]]
    found: list[Result] = []
    for cell in done:
        try:
            saved = load(folder / cell["folder"])
        except InputError:
            continue  # its folder was taken away: the others are drawn
        # A cell that reads the same as another has its figures, under its own name.
        own = saved.to_dict()
        about = {"type": cell["type"], "defense": cell["defense"]["text"]}
        own = own | {"about": own["about"] | about, "threat": cell["threat"]}
        found.append(Saved(own, saved.folder))
    return found


def _line(document: Plain, by: str, attacks: Sequence[Result]) -> str:
    about, threat = document["about"], document["threat"]["name"]
    name = short(str(about.get(by, "")), 40)
    several = len({a.to_dict()["threat"]["name"] for a in attacks}) > 1
    return f"{name}, {threat}" if several else name


def _steps(
    axes: Any, errors: Sequence[float | None], asked: int, style: Plain, name: str
) -> None:
    reached = sorted(e for e in errors if e is not None and math.isfinite(e))
    places = [1e-5, *reached, 10.0]
    shares = [0.0, *((i + 1) / asked for i in range(len(reached)))]
    shares.append(shares[-1])
    axes.step(
        places, shares, where="post", label=name, linewidth=1.4, markersize=3.5,
        markevery=slice(1, -1), **style,
    )  # fmt: skip


class _Lines:
    """The lines of several axes, each name once: what a legend asks for."""

    def __init__(self, named: dict[str, Any]) -> None:
        self._named = named

    def get_legend_handles_labels(self) -> tuple[list[Any], list[str]]:
        return list(self._named.values()), list(self._named)


def _all_lines(figure: Picture, grid: Any) -> _Lines:
    del figure
    named: dict[str, Any] = {}
    for axes in grid:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            named.setdefault(label, handle)
    return _Lines(named)


def _resilience_found(attacks: Sequence[Result], threshold: float, by: str) -> str:
    worst: dict[str, tuple[float, str]] = {}
    for result in attacks:
        document = result.to_dict()
        won, asked = _won(document)
        name = short(str(document["about"].get(by, "")))
        entry = (won / max(asked, 1), f"{name} {won} of {asked}")
        worst[name] = max(worst.get(name, entry), entry)
    said = "; ".join(words for _, words in worst.values())
    return f"Rebuilt at RMSE <= {threshold:g}, at worst: {said}"


def frontier(result: Result) -> Picture:
    """Draws what each defense leaves of accuracy against what it leaves to attackers.

    Of an audit that trained: the success is that of the worst attack on each defense.
    """
    document = result.to_dict()
    if kind_of(document) != AUDIT:
        raise InputError("accuracy against leakage is drawn of an audit")
    points = list(_frontier(document))
    if not points:
        raise InputError("this audit did not train: ask for training rounds")
    figure = picture()
    axes = figure.subplots()
    for (name, accuracy, rate), style in zip(points, styles(), strict=False):
        ends = [[rate["value"] - rate["low"]], [rate["high"] - rate["value"]]]
        axes.errorbar(
            accuracy, rate["value"], np.abs(ends), markersize=6, capsize=2, label=name,
            **(style | {"linestyle": "none"}),
        )  # fmt: skip
    plain(
        axes, xlabel="accuracy after training", ylabel="victims rebuilt, worst attack"
    )
    axes.set(xlim=(0, 1.02), ylim=(-0.03, 1.05))
    legend(figure, axes)
    said = "; ".join(f"{n} {a:.2f} and {r['value']:.2f}" for n, a, r in points)
    say(figure, f"Accuracy and leakage: {said}")
    return figure


def _frontier(document: Plain) -> Iterator[tuple[str, float, Plain]]:
    for row in document["training"]:
        rates = [
            cell["verdict"]["rate"]
            for cell in document["cells"]
            if cell["defense"]["text"] == row["defense"]
            and cell["dataset"]["text"] == row["dataset"]
            and cell["kind"] == "attack"
            and cell["verdict"]["rate"]
        ]
        if row["accuracy"] is not None and rates:
            worst = max(rates, key=lambda rate: rate["value"] or 0.0)
            yield short(row["defense"]), row["accuracy"], worst


_FILMS = 3  # private examples of a cell that are shown
_SHOWN_SIDE = 46  # pixels of the screen that a private example takes at least


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
    zoom = max(1, round(_SHOWN_SIDE / width))
    searched = f"; what the attacker had after iterations {numbers}" if numbers else ""
    return {
        "source": f"data:image/png;base64,{coded}",
        "width": zoom * canvas.shape[1],
        "height": zoom * canvas.shape[0],
        "words": f"{title}: a private example{searched}; what it handed in, RMSE "
        f"{film['rmse']:.2g}",
    }
