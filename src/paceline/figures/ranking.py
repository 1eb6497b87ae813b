"""Strategies ranked by samples per second: the answer as a picture."""

from collections.abc import Sequence

import altair

from paceline.analysis.factors import settings_where
from paceline.analysis.labels import series_name, varying_fields
from paceline.analysis.rows import Row
from paceline.analysis.verdicts.judge import first_keys
from paceline.figures.base import INK, OTHERS, PALETTE, Figure, Value, compose_chart, per_setting
from paceline.figures.marks import (
    MOST_BARS,
    OVERSUBSCRIBED,
    RANGE_NOTE,
    bar_notes,
    bars_panel,
    interval,
    machine_state,
    names_axis,
)
from paceline.units import format_percent, format_rate

BEST, OTHER = "fastest", "others"


def draw(rows: Sequence[Row]) -> altair.TopLevelMixin:
    """A bar per strategy and worker count, longest first, with its number."""
    usable = _usable(rows)
    values = {title: _values(members) for title, members in usable.items()}
    drawing = per_setting(values, _panel)
    how = [f"Median of repeats, {RANGE_NOTE}", "In brackets: times one worker, and share of ideal scaling",
           "In colour: the fastest, and what chance could make as fast"]  # fmt: skip
    how += bar_notes((len(members) for members in usable.values()), "fastest")
    return compose_chart(
        drawing, [row for members in usable.values() for row in members], "Samples per second, last epoch", how
    )


def _usable(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Settings that have two results to compare."""
    return settings_where(rows, lambda row: row.measured, lambda members: len(members) > 1)


def _values(rows: list[Row]) -> list[Value]:
    varying, firsts = varying_fields(rows), first_keys(rows)
    ranked = sorted(rows, key=lambda row: -(row.samples_per_second or 0.0))[:MOST_BARS]
    return [
        {
            "name": f"{series_name(row, varying)} x{row.spec.workers}", "rate": row.samples_per_second,
            "low": row.samples_per_second_low, "high": row.samples_per_second_high,
            "place": place + 1, "kind": BEST if row.key in firsts else OTHER, "machine": machine_state(row),
            "label": label(row), "runs": row.runs,
        }
        for place, row in enumerate(ranked)
    ]  # fmt: skip


def label(row: Row) -> str:
    """The number, how it compares with one worker, and whether the machine was oversubscribed."""
    text = format_rate(row.samples_per_second or 0.0)
    if row.spec.workers > 1 and row.speedup is not None:
        ideal = f", {format_percent(row.efficiency)}" if row.efficiency is not None else ""
        text += f" ({row.speedup:.2f}x{ideal})"
    return text + (f" {OVERSUBSCRIBED}" if row.oversubscribed else "")


def _panel(base: altair.Chart, title: str) -> altair.LayerChart:
    y = names_axis(altair.EncodingSortField(field="place", op="min"))
    x = altair.X("rate:Q", title="samples/s, last epoch", axis=altair.Axis(grid=True))
    colour = altair.Color("kind:N", legend=None, scale=altair.Scale(domain=[BEST, OTHER], range=[PALETTE[0], OTHERS]))
    tooltip = ["name:N", altair.Tooltip("rate:Q", format=",.0f"), "label:N", "runs:Q", "machine:N"]
    bars = base.mark_bar(height={"band": 0.72}).encode(x=x, y=y, color=colour, tooltip=tooltip)
    ranges = interval(base.encode(y=y), "low", "high", across=True, color=altair.value(INK))
    labels = base.mark_text(align="left", dx=6).encode(x="high:Q", y=y, text="label:N")
    return bars_panel([bars, *ranges, labels], title)


FIGURE = Figure("ranking", "What is fastest here?", _usable, draw, place=1)
