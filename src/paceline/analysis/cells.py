"""Rows as cells of a table for people: text, and the value behind it to sort by."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paceline.analysis.labels import series_name
from paceline.analysis.rows import Row
from paceline.units import format_bytes, format_percent, format_rate, format_seconds


@dataclass(frozen=True)
class Column:
    """One column: its heading, the value of a row, and how that is written."""

    heading: str
    value: Callable[[Row], float | None]
    text: Callable[[float], str]
    meaning: str = ""

    def cell(self, row: Row) -> "Cell":
        """The cell of a row; empty where the row has no value."""
        value = self.value(row)
        return Cell("" if value is None else self.text(value), value)


@dataclass(frozen=True)
class Cell:
    """The text that is shown, and the value that the cell is sorted by; None where there is none."""

    text: str
    value: float | str | None


# What decides comes first, so that it is seen on a narrow screen too.
COLUMNS = (
    Column("samples/s, last epoch", lambda row: row.samples_per_second, format_rate),
    Column("speed-up", lambda row: row.speedup, "{:.2f}x".format),
    Column("efficiency", lambda row: row.efficiency, format_percent),
    Column("spread", lambda row: row.spread, format_percent),
    Column("samples/s, epoch 1", lambda row: row.first_epoch_samples_per_second, format_rate),
    Column("start-up", lambda row: row.startup_seconds, format_seconds),
    Column("peak memory", lambda row: row.peak_memory_bytes, format_bytes),
    Column("save", lambda row: row.checkpoint.checkpoint_save_seconds, format_seconds, "of a checkpoint"),
    Column("energy per epoch", lambda row: row.expense.joules_per_epoch, "{:,.3g} J".format),
    Column("runs", lambda row: row.runs, "{:.0f}".format),
)


def row_name(row: Row, varying: Sequence[str]) -> str:
    """The series and the worker count; `varying` names the fields that tell it from its neighbours."""
    return f"{series_name(row, varying)} x{row.spec.workers}"
