"""How figures look: colours that everybody can tell apart, and pictures for pages."""

import functools
import io
import re
import textwrap
import warnings
from collections.abc import Iterator
from typing import Any

# Okabe and Ito's: told apart without red and green, on paper and on a dark screen.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8a6d00", "#56b4e9")
MARKERS = ("o", "s", "^", "D", "v", "P")
LINES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (1, 1)))
GREY = "#767676"
SMALL, _USUAL = 9, 10  # points
WIDTH = 4.6  # inches: what a phone shows without letters that are too small

Picture = Any  # a matplotlib Figure, which is not loaded before something is drawn


@functools.cache
def _shown() -> type:
    from matplotlib.figure import Figure

    class Shown(Figure):
        """A figure that notebooks show, whatever their backend is."""

        def _repr_png_(self) -> bytes:
            return rendered(self, "png", dpi=110)

    return Shown


def rendered(figure: Picture, kind: str, **options: Any) -> bytes:
    """Returns the file of a figure: png, svg, pdf ...

    Names may have letters that the font lacks: a box is drawn, and nothing said.
    """
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        warnings.filterwarnings("ignore", "Matplotlib currently does not support")
        figure.savefig(file, format=kind, **options)
    return file.getvalue()


def picture(width: float = WIDTH, height: float = 3.2) -> Picture:
    """Returns an empty figure of so many inches, its layout kept free of overlaps."""
    return _shown()(figsize=(width, height), layout="constrained")


def styles() -> Iterator[dict[str, Any]]:
    """Yields how to draw one line after the other: colour, marker and dashes differ."""
    number = 0
    while True:
        yield {
            "color": COLOURS[number % len(COLOURS)],
            "marker": MARKERS[number % len(MARKERS)],
            "linestyle": LINES[number % len(LINES)],
        }
        number += 1


def say(figure: Picture, finding: str, points: int = _USUAL) -> None:
    """Sets the finding as the title, in as many lines as the width needs."""
    letters = int(130 / points * figure.get_figwidth())
    lines = textwrap.wrap(finding, letters, break_on_hyphens=False)
    figure.suptitle("\n".join(lines), fontsize=points)
    figure.set_label(finding)  # whole, for whoever shows it in another way


def plain(axes: Any, **words: Any) -> None:
    """Gives axes their words; small letters, a light grid, no box around."""
    axes.set(**words)
    axes.tick_params(labelsize=SMALL)
    for label in (axes.xaxis.label, axes.yaxis.label, axes.title):
        label.set_fontsize(SMALL)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def legend(figure: Picture, *axes: Any, columns: int = 2) -> None:
    """Puts the lines' names, each once, below the figure."""
    named: dict[str, Any] = {}
    for each in axes:
        for handle, label in zip(*each.get_legend_handles_labels(), strict=True):
            named.setdefault(label, handle)
    if named:
        # So many letters of this size, and a line before each name, fit beside others.
        fits = int(13 * figure.get_figwidth()) // (max(map(len, named)) + 6)
        figure.legend(
            list(named.values()),
            list(named),
            fontsize=SMALL,
            frameon=False,
            loc="outside lower center",
            ncols=max(1, min(columns, len(named), fits)),
        )


def plain_numbers(axis: Any, places: Any) -> None:
    """Writes these places of a logarithmic axis as numbers, and no others."""
    low, high = sorted(axis.get_view_interval())
    shown = [place for place in places if low <= place <= high]
    axis.set_ticks(shown, [f"{place:g}" for place in shown])
    axis.set_ticks([], minor=True)


def short(name: str, letters: int = 28) -> str:
    """Returns a name that fits beside others, in letters that can be drawn."""
    shown = visible(name).replace("$", r"\$")  # no formula is meant
    return shown if len(shown) <= letters else f"{shown[: letters - 1]}…"


def visible(text: str) -> str:
    """Returns text without what is not seen: controls, and what turns its direction."""
    return "".join(
        letter if letter.isprintable() or letter in "\n\t" else "\ufffd"
        for letter in text
    )


def svg(figure: Picture, name: str) -> str:
    """Returns the figure as an element of a page: text as text, in the page's colours.

    `name` keeps the ids of several figures of one page apart. Black becomes the colour
    of the page's text, so that it is read on a dark page as well.
    """
    from matplotlib import rc_context

    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        text = rendered(figure, "svg", transparent=True, metadata=nothing).decode()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\b(id=")', rf"\1{name}-", text)
    text = re.sub(r'(href="#|url\(#)', rf"\1{name}-", text)
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    text = re.sub(r"(fill|stroke): ?#000000", r"\1: currentColor", text)
    return re.sub(r"\n\s*", "\n", text)


def size(figure: Picture) -> tuple[int, int]:
    """Returns width and height in pixels of a screen, for the page's layout."""
    width, height = figure.get_size_inches()
    return round(96 * width), round(96 * height)
