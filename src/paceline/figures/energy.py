"""Energy per epoch and per 1,000 samples: what each strategy draws for the same work."""

from collections.abc import Sequence
from functools import partial

import altair

from paceline.analysis.factors import settings_where
from paceline.analysis.labels import series_name, varying_fields
from paceline.analysis.rows import Row
from paceline.analysis.statistics import Band
from paceline.figures.base import INK, PALETTE, Figure, Value, compose_chart, per_setting
from paceline.figures.marks import (
    MOST_BARS,
    RANGE_NOTE,
    bar_notes,
    bars_panel,
    interval,
    names_axis,
    oversubscribed_notes,
)
from paceline.units import format_rate

WIDTH = 300
ESTIMATED = "estimated"
SOURCES = {
    "nvml": "From the counters of the GPUs in use, idling included",
    "rapl": "From the processor's counters for the whole machine, idling included",
    ESTIMATED: "Estimated, not measured: CPU seconds x {watts:g} W for each busy core",
}


def draw(rows: Sequence[Row]) -> altair.TopLevelMixin:
    """Bars per strategy and worker count, least first; the axis says where joules are estimated."""
    usable = _usable(rows)
    shown = [row for members in usable.values() for row in members]
    values = {title: _values(members) for title, members in usable.items()}
    mark = " (estimated)" if all(row.expense.energy_source == ESTIMATED for row in shown) else ""
    drawing = per_setting(
        values,
        partial(_panel, quantity="epoch", axis=f"joules per epoch{mark}"),
        partial(_panel, quantity="thousand", axis=f"joules per 1,000 samples{mark}"),
    )
    how = [
        *_sources(shown),
        *bar_notes((len(members) for members in usable.values()), "that draw least"),
        f"Last epoch, median of repeats, {RANGE_NOTE}",
    ]
    how += oversubscribed_notes(shown, "Star")
    return compose_chart(drawing, shown, "Energy of training", how, columns=2)


def _usable(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Settings in which two runs have joules."""
    return settings_where(
        rows,
        lambda row: row.epochs and row.epochs[-1].joules is not None and row.expense.energy_source,
        lambda members: len(members) > 1,
    )


def _sources(rows: Sequence[Row]) -> list[str]:
    texts = dict.fromkeys(
        SOURCES[row.expense.energy_source].format(watts=row.expense.watts_per_core or 0.0)
        for row in rows
        if row.expense.energy_source in SOURCES
    )
    return list(texts)


def _values(rows: list[Row]) -> list[Value]:
    varying = varying_fields(rows)
    bars = []
    for row in rows:
        last = row.epochs[-1]
        assert last.joules is not None
        thousand = Band(
            *(1000 * joules / last.samples for joules in (last.joules.median, last.joules.low, last.joules.high))
        )
        name = f"{series_name(row, varying)} x{row.spec.workers}{'*' if row.oversubscribed else ''}"
        labels: Value = {"name": name, "workers": str(row.spec.workers), "source": row.expense.energy_source}
        bars.append({**labels, **_fields("epoch", last.joules), **_fields("thousand", thousand)})
    return sorted(bars, key=lambda value: float(value["epoch"]))[:MOST_BARS]


def _fields(name: str, band: Band) -> Value:
    ends = {f"{name}_low": band.low, f"{name}_high": band.high}
    return {name: band.median, **ends, f"{name}_label": format_rate(band.median)}


def _panel(base: altair.Chart, title: str, quantity: str, axis: str) -> altair.LayerChart:
    y = names_axis(altair.EncodingSortField(field=quantity, op="min"))
    x = altair.X(f"{quantity}:Q", title=axis)
    tooltip = ["name:N", altair.Tooltip(f"{quantity}:Q", format=",.4~g"), "source:N"]
    bars = base.mark_bar(height={"band": 0.72}, color=PALETTE[2]).encode(x=x, y=y, tooltip=tooltip)
    ranges = interval(base.encode(y=y), f"{quantity}_low", f"{quantity}_high", across=True, color=altair.value(INK))
    labels = base.mark_text(align="left", dx=6).encode(x=f"{quantity}_high:Q", y=y, text=f"{quantity}_label:N")
    return bars_panel([bars, *ranges, labels], title if quantity == "epoch" else "", WIDTH)


FIGURE = Figure("energy", "What does training draw?", _usable, draw, place=7)
