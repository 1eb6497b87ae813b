"""The answer in a sentence: what was fastest, by how much over one worker, and whether chance could explain it."""

from collections.abc import Sequence

from paceline.analysis.labels import series_name, varying_fields
from paceline.analysis.rows import Row
from paceline.units import format_percent, format_rate


def headline(rows: Sequence[Row]) -> str | None:
    """The fastest configuration of a setting in a sentence; None when nothing was measured."""
    measured = [row for row in rows if row.samples_per_second is not None]
    if not measured:
        return None
    varying = varying_fields(measured)
    best = max(measured, key=lambda row: row.samples_per_second or 0)
    workers = "1 worker" if best.spec.workers == 1 else f"{best.spec.workers} workers"
    rate = format_rate(best.samples_per_second or 0)
    text = f"Fastest here: {series_name(best, varying)} with {workers}, {rate} samples/s"
    if best.spec.workers > 1 and best.speedup is not None:
        text += f", {best.speedup:.2f} times one worker"
        if best.efficiency is not None:
            text += f" ({format_percent(best.efficiency)} of ideal)"
    elif best.spec.workers == 1 and any(row.spec.workers > 1 for row in measured):
        text += "; more workers do not pay here"
    rivals = [row for row in measured if row is not best and (row.samples_per_second_high or 0) >= _low(best)]
    if rivals:
        others = ", ".join(f"{series_name(row, varying)} x{row.spec.workers}" for row in rivals)
        text += f"; its repeats overlap with those of {others}, so take them as equal"
    return text + "."


def _low(row: Row) -> float:
    return row.samples_per_second_low or 0.0
