"""Names that people and programs choose are text on a terminal: nothing in them is obeyed."""

import io
from collections.abc import Callable

import pytest

from paceline.analysis.frame import csv_text, flat_rows
from paceline.analysis.rows import summarise
from paceline.cli import terminal
from paceline.cli.show import print_results
from paceline.cli.tables.long_table import LongTable
from paceline.record import Epoch, Rank, Record
from paceline.report.page import render
from paceline.spec import RunSpec

NAME = "\x1b[31m=cmd [bold]x[/] :x: \u202e\x07\x9b<b>"
SHOWN = "\\x1b[31m=cmd [bold]x[/] :x: \\u202e\\x07\\x9b<b>"


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What is printed on a wide terminal."""
    written = io.StringIO()
    console = terminal._console()
    console.file, console.width = written, 200
    monkeypatch.setattr("paceline.cli.show.output", lambda: console)
    return written


EPOCH = Epoch(number=0, seconds=1.0, steps=10, samples=640, cpu_seconds=1.0, train_loss=0.5, test_accuracy=0.5)


@pytest.fixture
def record_of(make_record: Callable[..., Record], make_spec: Callable[..., RunSpec]) -> Callable[..., Record]:
    """A run with results whose workload, study, host and strategy have these names."""

    def make(name: str, strategy: str = "torch-single") -> Record:
        spec = make_spec().model_copy(update={"workload": name, "strategy": strategy})
        rank = Rank(rank=0, role="worker", cores=(0,), cpu_seconds=1.0, peak_memory_bytes=1)
        return make_record(spec=spec, study=name, environment={"host": name}, epochs=(EPOCH,), ranks=(rank,))

    return make


def test_a_console_prints_marks_as_numbers_and_no_pictures(printed: io.StringIO) -> None:
    console = terminal._console()
    console.file = printed
    console.print("a\x1b[31m :x: \u202e\nb\tc")
    assert printed.getvalue() == "a\\x1b[31m :x: \\u202e\nb       c\n"


def test_headings_and_cells_of_long_tables_are_text(printed: io.StringIO) -> None:
    console = terminal._console()
    console.file, console.width = printed, 200
    table = LongTable("name", ["\x1b[31m[bold]x"])
    table.add_row("a\x07", "1")
    console.print(table)
    console.width = 6
    console.print(table)
    said = printed.getvalue()
    assert "\x1b" not in said and "\x07" not in said
    assert "\\x1b[31m[bold]x" in said and "a\\x07" in said


def test_results_with_hostile_names_are_text_everywhere(printed: io.StringIO, record_of: Callable[..., Record]) -> None:
    records = [record_of(NAME), record_of(NAME, "torch-ddp")]
    rows = summarise(records)
    print_results(rows, [])
    assert SHOWN in printed.getvalue()
    for text in (printed.getvalue(), csv_text(flat_rows(rows)), render(records)):
        assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(text)


def test_a_spreadsheet_computes_no_name(record_of: Callable[..., Record]) -> None:
    text = csv_text(flat_rows(summarise([record_of("=HYPERLINK(1)")])))
    assert "\n'=HYPERLINK(1)," in text
