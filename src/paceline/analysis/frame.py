"""Rows as flat dictionaries, for JSON, CSV and polars."""

import csv
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from paceline.analysis.labels import flatten
from paceline.analysis.memory import heaviest_columns
from paceline.analysis.rows import Row
from paceline.breakdown import mean_parts
from paceline.user_input.printable import spreadsheet_cell

if TYPE_CHECKING:
    import polars

_FIRST = ("workload", "dataset", "dataset_copies", "strategy", "workers", "scaling", "global_batch", "local_batch")

# Fields of a row that are left out or become columns of their own.
_NESTED = (
    "spec", "samples_per_second_of_runs", "losses", "epochs", "breakdown", "expense", "convergence", "memory",
    "checkpoint", "membership", "test_metrics", "loading", "own_order", "noise",
)  # fmt: skip
# Columns that scripts of users may read under their first name.
_COLUMNS = {"instrumentation_overhead": "watching"}


def flat_row(row: Row) -> dict[str, Any]:
    """A row as a flat dictionary: what ran, then the results, then the remaining settings."""
    values: dict[str, Any] = {name: getattr(row.spec, name) for name in _FIRST}
    for field in fields(Row):
        if field.name not in _NESTED:
            value = getattr(row, field.name)
            column = _COLUMNS.get(field.name, field.name)
            values[column] = None if isinstance(value, float) and not math.isfinite(value) else value
    if row.spec.script is None:
        # Only steps of a script may have an unknown number of samples; other results keep the columns they had.
        del values["counts_steps"]
    for name, has_it in (("steps_to_target", row.spec.has_target), ("noise_scale", row.noise_scale is not None),
                         ("progress_speedup", row.noise_scale is not None)):  # fmt: skip
        if not has_it:
            del values[name]
    values |= {f"metric_{name}": value for name, value in row.test_metrics.items()}
    values["status"] = str(row.status)
    values["shrunk"] = row.spec.shrunk.text if row.spec.shrunk else None
    for part in (row.expense, row.convergence, row.checkpoint):
        values |= {field.name: getattr(part, field.name) for field in fields(part)}
    values |= heaviest_columns(row.memory)
    if row.loading is not None:
        values["own_order"] = row.own_order
        values |= {f"input_{name}": value for name, value in row.loading.model_dump().items() if name != "step_seconds"}
    values |= {f"{name}_seconds": value for name, value in mean_parts(row.breakdown).items()}
    return values | {name: value for name, value in flatten(row.spec).items() if name not in values}


def flat_rows(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """All rows with the same columns, also where only some strategies have a knob."""
    return same_columns([flat_row(row) for row in rows])


def flat_lines(rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """The same one by one, so that those of thousands need not be in memory together."""
    names = dict.fromkeys(name for row in rows for name in flat_row(row))
    for row in rows:
        line = flat_row(row)
        yield {name: line.get(name) for name in names}


def same_columns(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The lines, each with the columns of all of them."""
    names = dict.fromkeys(name for line in lines for name in line)
    return [{name: line.get(name) for name in names} for line in lines]


def csv_text(lines: Sequence[dict[str, Any]]) -> str:
    """Lines with the same columns as comma-separated values under a header."""
    buffer = io.StringIO()
    if lines:
        writer = csv.DictWriter(buffer, list(lines[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: spreadsheet_cell(value) for name, value in line.items()} for line in lines)
    return buffer.getvalue()


def to_frame(lines: Sequence[dict[str, Any]]) -> "polars.DataFrame":
    """Flat lines with the same columns as a polars table."""
    import polars

    cells = [{name: str(v) if isinstance(v, list | tuple | dict) else v for name, v in line.items()} for line in lines]
    return polars.DataFrame(cells, infer_schema_length=None)
