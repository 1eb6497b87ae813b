"""Rows ─► the ranking: every configuration under every number, with what each cell is sorted by."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paceline.analysis.labels import data_name, groups, series_name, varying_fields
from paceline.analysis.rows import Row
from paceline.units import format_bytes, format_percent, format_rate, format_seconds


@dataclass(frozen=True)
class Cell:
    """What is shown, and what it is sorted by."""

    text: str
    value: float | str | None


@dataclass(frozen=True)
class Table:
    """Headings with what they mean, and lines; the best of each setting is marked."""

    headings: list[tuple[str, str]]
    lines: list[tuple[bool, list[Cell]]]


# Heading, what it means, the number, how it is written.
_NUMBERS: tuple[tuple[str, str, Callable[[Row], float | None], Callable[[float], str]], ...] = (
    ("samples/s", "last epoch, median of repeats", lambda row: row.samples_per_second, format_rate),
    ("spread", "largest minus smallest repeat over the median", lambda row: row.spread, format_percent),
    ("speed-up", "times the same run on one worker", lambda row: row.speedup, "{:.2f}x".format),
    ("efficiency", "speed-up over workers, where each had its cores", lambda row: row.efficiency, format_percent),
    ("accuracy", "of the test set after the last epoch", lambda row: row.test_accuracy, "{:.1%}".format),
    ("first epoch", "samples/s of the first epoch", lambda row: row.first_epoch_samples_per_second, format_rate),
    ("J/1,000", "joules per 1,000 samples", lambda row: row.expense.joules_per_1000_samples, format_rate),
    ("start-up", "until the end of the first step", lambda row: row.startup_seconds, format_seconds),
    ("memory", "peak of the largest process", lambda row: row.peak_memory_bytes, format_bytes),
    ("runs", "good repeats", lambda row: float(row.runs), "{:.0f}".format),
)  # fmt: skip


def _batch(row: Row) -> str:
    return f"{row.spec.global_batch:,}" if row.spec.global_batch else f"{row.spec.local_batch:,} per worker"


def _length(row: Row) -> str:
    return f"{row.spec.epochs} epochs" if row.spec.epochs else f"{row.spec.steps} steps"


# Parts of a setting, shown where they differ.
_SETTINGS: tuple[tuple[str, Callable[[Row], str], Callable[[Row], float | str]], ...] = (
    ("model", lambda row: row.spec.workload, lambda row: row.spec.workload),
    ("data", lambda row: data_name(row.spec), lambda row: row.spec.dataset_copies),
    ("batch", _batch, lambda row: row.spec.samples_per_step),
    ("length", _length, lambda row: row.spec.epochs or row.spec.steps or 0),
)


def ranking(rows: Sequence[Row]) -> Table:
    """Setting by setting, the fastest first; settings stand in columns of their own where there are several."""
    measured = [row for row in rows if row.measured]
    parts = [part for part in _SETTINGS if len({part[1](row) for row in measured}) > 1]
    numbers = [number for number in _NUMBERS if any(number[2](row) is not None for row in measured)]
    headings = [("#", "place in its setting"), ("strategy", ""), ("workers", "")]
    headings += [(name, "") for name, *_ in parts] + [(name, meaning) for name, meaning, *_ in numbers]
    lines = []
    for group in groups(measured).values():
        varying = varying_fields(group)
        for place, row in enumerate(sorted(group, key=lambda one: -(one.samples_per_second or 0.0)), start=1):
            crowd = " oversubscribed" if row.oversubscribed else ""
            cells = [
                Cell(str(place), place),
                Cell(series_name(row, varying), series_name(row, varying)),
                Cell(f"{row.spec.workers}{crowd}", row.spec.workers),
                *(Cell(text(row), key(row)) for _, text, key in parts),
                *(_number(value(row), form) for _, _, value, form in numbers),
            ]
            lines.append((place == 1, cells))
    return Table(headings, lines)


def _number(value: float | None, form: Callable[[float], str]) -> Cell:
    return Cell("" if value is None else form(value), value)
