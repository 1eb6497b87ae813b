"""Rows ─► the ranking: a line per configuration, with the value that each cell is sorted by."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paceline.analysis.cells import Cell, Column
from paceline.analysis.labels import data_name, group_by_setting, series_name, varying_fields
from paceline.analysis.quality import quality_columns
from paceline.analysis.rows import Row
from paceline.analysis.verdicts.judge import first_keys
from paceline.link import link_rank
from paceline.units import format_bytes, format_percent, format_rate, format_seconds


@dataclass(frozen=True)
class Table:
    """Headings with their meanings, and lines; the best of each setting is marked, and what is as good."""

    headings: list[tuple[str, str]]
    lines: list[tuple[bool, list[Cell]]]
    # Headings of columns whose words may be broken over lines.
    words: frozenset[str] = frozenset()


_NUMBERS = (
    Column("samples/s", lambda row: row.samples_per_second, format_rate, "last epoch, median of repeats"),
    Column("spread", lambda row: row.spread, format_percent, "largest minus smallest repeat over the median"),
    Column("speed-up", lambda row: row.speedup, "{:.2f}x".format, "times the same run on one worker"),
    Column("efficiency", lambda row: row.efficiency, format_percent, "speed-up over workers, where each had its cores"),
    Column(
        "progress",
        lambda row: row.progress_speedup,
        "{:.2f}x".format,
        "speed-up times what a sample of the larger batch is worth (goodput)",
    ),
    Column(
        "noise scale",
        lambda row: row.noise_scale,
        "{:,.0f}".format,
        "of gradients, in samples: much larger batches hardly help",
    ),
    Column(
        "to target", lambda row: row.steps_to_target, "{:,.0f}".format, "steps until the test set came to the target"
    ),
    Column("first epoch", lambda row: row.first_epoch_samples_per_second, format_rate, "samples/s of the first epoch"),
    Column("J/1,000", lambda row: row.expense.joules_per_1000_samples, format_rate, "joules per 1,000 samples"),
    Column("start-up", lambda row: row.startup_seconds, format_seconds, "until the end of the first step"),
    Column("memory", lambda row: row.peak_memory_bytes, format_bytes, "peak of the largest process"),
    Column(
        "save",
        lambda row: row.checkpoint.checkpoint_save_seconds,
        format_seconds,
        "of a checkpoint, for which training stands still; in no other number",
    ),
    Column(
        "load", lambda row: row.checkpoint.checkpoint_load_seconds, format_seconds, "of a checkpoint, from the disk"
    ),
    Column("checkpoint", lambda row: row.checkpoint.checkpoint_bytes, format_bytes, "bytes of all ranks together"),
    Column("runs", lambda row: float(row.runs), "{:.0f}".format, "good repeats"),
)


# Behind the efficiency.
QUALITY_PLACE = 4


def _batch(row: Row) -> str:
    return f"{row.spec.global_batch:,}" if row.spec.global_batch else f"{row.spec.local_batch:,} per worker"


def _length(row: Row) -> str:
    return f"{row.spec.epochs} epochs" if row.spec.epochs else f"{row.spec.steps} steps"


# Parts of a setting, shown where they differ.
_SETTINGS: tuple[tuple[str, Callable[[Row], str], Callable[[Row], float | str]], ...] = (
    ("model", lambda row: row.spec.workload, lambda row: row.spec.workload),
    ("data", lambda row: data_name(row.spec), lambda row: row.spec.dataset_copies),
    ("batch", _batch, lambda row: row.spec.samples_per_step),
    ("link", lambda row: row.spec.link.text if row.spec.link else "–", lambda row: link_rank(row.spec.link)[0]),
    ("length", _length, lambda row: row.spec.epochs or row.spec.steps or 0),
)


def ranking(rows: Sequence[Row]) -> Table:
    """The ranking by setting, the fastest first; fields in which settings differ have columns."""
    measured = [row for row in rows if row.measured]
    parts = [part for part in _SETTINGS if len({part[1](row) for row in measured}) > 1]
    columns = (*_NUMBERS[:QUALITY_PLACE], *quality_columns(measured), *_NUMBERS[QUALITY_PLACE:])
    numbers = [column for column in columns if any(column.value(row) is not None for row in measured)]
    crowded = "* oversubscribed: more processes than cores" if any(row.oversubscribed for row in measured) else ""
    headings = [
        ("#", "place in its setting, the same for what chance could make the best"),
        ("strategy", ""),
        ("workers", crowded),
    ]
    headings += [(name, "") for name, *_ in parts] + [(column.heading, column.meaning) for column in numbers]
    lines = []
    for group in group_by_setting(measured).values():
        varying, firsts = varying_fields(group), first_keys(group)
        for number, row in enumerate(sorted(group, key=lambda row: -(row.samples_per_second or 0.0)), start=1):
            place = 1 if row.key in firsts else number
            note = "*" if row.oversubscribed else ""
            cells = [
                Cell(str(place), place),
                Cell(series_name(row, varying), series_name(row, varying)),
                Cell(f"{row.spec.workers}{note}", row.spec.workers),
                *(Cell(text(row), key(row)) for _, text, key in parts),
                *(column.cell(row) for column in numbers),
            ]
            lines.append((place == 1, cells))
    return Table(headings, lines, frozenset(name for name, *_ in parts))


def membership_changes(rows: Sequence[Row]) -> Table:
    """What each departure and arrival cost, a line for each."""
    headings = [
        ("strategy", ""), ("workers", ""), ("change", "with the step at which it was made"),
        ("stood still", "the longest time without new samples"), ("there after", "until the newcomer trained"),
        ("made again", "samples since the last checkpoint, or of an answer that was lost"),
        ("left out", "samples that nobody took over"), ("before", "samples/s"),
        ("after", "samples/s while training went on"), ("went on", ""),
    ]  # fmt: skip
    changed = [row for row in rows if row.membership is not None]
    varying = varying_fields(changed)
    lines = []
    for row in changed:
        for change in row.membership.changes if row.membership else ():
            rates = (change.samples_per_second_before, change.samples_per_second_after)
            texts = [
                series_name(row, varying), str(row.spec.workers), f"{change.kind} {change.step}",
                format_seconds(change.standstill_seconds), _or_nothing(change.until_training_seconds, format_seconds),
                f"{change.samples_again:,}", f"{change.samples_left_out:,}",
                *(_or_nothing(rate, format_rate) for rate in rates), "yes" if change.went_on else "no",
            ]  # fmt: skip
            lines.append((False, [Cell(text, text) for text in texts]))
    return Table(headings, lines)


def _or_nothing(value: float | None, text: Callable[[float], str]) -> str:
    return "" if value is None else text(value)
