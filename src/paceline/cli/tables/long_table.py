"""A table without lines that is quick with thousands of rows: what rich lays out cell by cell is padded text here."""

from collections.abc import Iterable, Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markup import escape
from rich.segment import Segment
from rich.style import Style
from rich.table import Table
from rich.text import Text

from paceline.user_input.printable import printable

# Behind each column.
GAP = 1
HEADING = Style(dim=True)
# What rich reads as markup or as the name of a picture.
_MARKS = frozenset("[]:\\")


class LongTable:
    """Names in the first column, and numbers to the right under the other headings. Prints what `Table` prints."""

    def __init__(self, first: str, columns: Sequence[str], least_width: int | None = None) -> None:
        self._headings = tuple(printable(heading, keep="\n") for heading in (first, *columns))
        self._least_width = least_width or 1
        self._rows: list[tuple[str, ...]] = []

    def add_row(self, *cells: str) -> None:
        """Adds a line; cells may have markup."""
        self._rows.append(tuple(printable(cell, keep="\n") for cell in cells))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = [[_read(console, cell) for cell in row] for row in self._rows]
        headings = [heading.split("\n") for heading in self._headings]
        widths = [max(map(_width, column)) for column in zip(*lines, *_levelled(headings), strict=True)]
        widths[0] = max(widths[0], self._least_width)
        room = options.max_width - sum(widths[1:]) - GAP * len(widths)
        if room < self._least_width or any("\n" in cell for row in self._rows for cell in row):
            yield self._laid_out_by_rich()
            return
        widths[0] = min(widths[0], room)
        for heading in _levelled(headings):
            yield from _line(console, heading, widths, HEADING)
        for line in lines:
            for part in _folded(console, line, widths[0]):
                yield from _line(console, part, widths)

    def _laid_out_by_rich(self) -> Table:
        """The table where the terminal has no room for its columns."""
        table = Table(box=None, padding=(0, GAP, 0, 0), header_style=HEADING)
        table.add_column(escape(self._headings[0]), overflow="fold", min_width=self._least_width)
        for name in self._headings[1:]:
            table.add_column(escape(name), justify="right", no_wrap=True)
        for row in self._rows:
            table.add_row(*row)
        return table


# A cell as it is shown: text as it is, or text with styles.
_Cell = str | Text


def _read(console: Console, cell: str) -> _Cell:
    return cell if _MARKS.isdisjoint(cell) else console.render_str(cell)


def _width(cell: _Cell) -> int:
    if isinstance(cell, str):
        return len(cell) if cell.isascii() else cell_len(cell)
    return cell.cell_len


def _levelled(headings: Sequence[Sequence[str]]) -> Iterable[tuple[str, ...]]:
    """The lines of headings, of which some have more than others."""
    height = max(map(len, headings))
    return zip(*([*[""] * (height - len(heading)), *heading] for heading in headings), strict=True)


def _folded(console: Console, line: Sequence[_Cell], width: int) -> Iterable[Sequence[_Cell]]:
    """The line, or several where its name is longer than the column."""
    name = line[0]
    if _width(name) <= width:
        return [line]
    text = Text(name) if isinstance(name, str) else name
    first, *others = text.wrap(console, width, overflow="fold")
    lines: list[Sequence[_Cell]] = [[first, *line[1:]]]
    for part in others:
        lines.append([part, *[""] * (len(line) - 1)])
    return lines


def _line(
    console: Console, cells: Sequence[_Cell], widths: Sequence[int], style: Style | None = None
) -> Iterable[Segment]:
    plain: list[str] = []
    for number, (cell, width) in enumerate(zip(cells, widths, strict=True)):
        space = " " * (width - _width(cell))
        before, after = ("", space + " " * GAP) if number == 0 else (space, " " * GAP)
        if isinstance(cell, str):
            plain += (before, cell, after)
        else:
            yield Segment("".join([*plain, before]), style)
            yield from cell.render(console)
            plain = [after]
    yield Segment("".join(plain), style)
    yield Segment.line()
