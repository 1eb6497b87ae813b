"""Long tables print what rich prints, cell by cell, for a fraction of its time."""

import io

import pytest
from rich.console import Console
from rich.table import Table

from paceline.cli.tables.long_table import LongTable
from paceline.cli.terminal import plain_table

HEADINGS = ("wor-\nkers", "samples/s\nlast epoch", "spread", "accu-\nracy")
ROWS = [
    ("torch-ddp", "1", "1,234", "3 %", "–"),
    ("torch-ddp bucket_mb=1 first_order=true", "16[yellow]*[/]", "9", "–", "97.1 %"),
    (r"\[red]a name of a user", "2", "1.2", "100 %", "1"),
    ("a-name-that-has-no-place-to-break-it-and-is-longer-than-its-column", "2", "1.2", "100 %", "1"),
    ("语言模型", "2", "1.2", "100 %", "1"),
    ("", "2", "1.2", "100 %", "1"),
]


def printed(table: LongTable | Table, width: int, colour: bool) -> str:
    console = Console(width=width, file=io.StringIO(), force_terminal=colour, highlight=False)
    console.print(table)
    return console.file.getvalue()


def filled(table: LongTable | Table, rows: list[tuple[str, ...]]) -> LongTable | Table:
    for row in rows:
        table.add_row(*row)
    return table


@pytest.mark.parametrize("width", [40, 46, 50, 60, 80, 120, 200])
@pytest.mark.parametrize("least", [None, 9, 18])
@pytest.mark.parametrize("rows", [ROWS, ROWS[:1], ROWS[3:4]], ids=["many", "one", "long"])
def test_a_long_table_is_printed_as_rich_prints_it(width, least, rows):
    long = filled(LongTable("strategy", HEADINGS, least), rows)
    by_rich = filled(plain_table("strategy", *HEADINGS, least_width=least), rows)
    assert printed(long, width, False) == printed(by_rich, width, False)


def test_what_is_marked_in_a_long_table_is_coloured():
    long, by_rich = filled(LongTable("strategy", HEADINGS), ROWS), filled(plain_table("strategy", *HEADINGS), ROWS)
    coloured = printed(long, 120, True)
    assert "\x1b[33m*\x1b[0m" in coloured
    assert "\x1b[33m*\x1b[0m" in printed(by_rich, 120, True)
    assert coloured.startswith("\x1b[2m")
