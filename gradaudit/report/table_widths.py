"""Tables in narrow terminals: names and numbers are wrapped or stacked, never cut."""

from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

_UNLIMITED = Console(width=100_000)


def fitted(shown: RenderableType, width: int) -> RenderableType:
    """Returns what is shown so that no word is cut in a terminal of this width.

    A table keeps its columns as long as the longest word of each finds room beside
    the others; else its rows are put below each other, a line for each cell. Groups are
    taken apart; what is no table stays as it is.
    """
    if isinstance(shown, Group):
        return Group(*(fitted(part, width) for part in shown.renderables))
    if not isinstance(shown, Table) or not shown.columns:
        return shown
    sizes = [_measured(column) for column in shown.columns]
    room = width - _frame(shown)
    least, most = (sum(size[i] for size in sizes) for i in (0, 1))
    if most <= room:
        return shown
    if least > room:
        return _stacked(shown)
    rest, wanted = room - least, max(most - least, 1)
    for column, (minimum, maximum) in zip(shown.columns, sizes, strict=True):
        column.width = minimum + rest * (maximum - minimum) // wanted
        column.no_wrap = False
    return shown


def _measured(column: Column) -> tuple[int, int]:
    """Returns the widths of the longest word and of the longest line of a column."""
    least = most = 0
    for part in (column.header, *column.cells):
        text = _text(part)
        measure = Measurement.get(_UNLIMITED, _UNLIMITED.options, text)
        plain = text.plain if isinstance(text, Text) else ""
        indent = len(plain) - len(plain.lstrip())
        least, most = max(least, measure.minimum + indent), max(most, measure.maximum)
    return (most if column.no_wrap else least), most


def _text(part: RenderableType) -> RenderableType:
    return _UNLIMITED.render_str(part) if isinstance(part, str) else part


def _frame(table: Table) -> int:
    """Returns what lines and padding take."""
    _, right, _, left = table.padding
    count = len(table.columns)
    lines = 0 if table.box is None else count + 1 if table.show_edge else count - 1
    return lines + count * (left + right)


def _stacked(table: Table) -> Group:
    """Returns each row as lines: its first cell, and the others below it."""
    lines: list[RenderableType] = []
    if table.title is not None:
        lines.append(_text(table.title))
    rows = zip(*(column.cells for column in table.columns), strict=True)
    for first, *others in rows:
        lines.append(_text(first))
        for column, cell in zip(table.columns[1:], others, strict=True):
            line = Text("  ", overflow="fold")
            header, said = _text(column.header), _text(cell)
            if isinstance(header, Text) and header.plain and table.show_header:
                line.append_text(header).append(": ")
            if not isinstance(said, Text):
                lines += [line, said]
            elif said.plain:
                lines.append(line.append_text(said))
    if table.caption is not None:
        lines.append(_text(table.caption))
    return Group(*lines)
