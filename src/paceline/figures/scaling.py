"""Samples per second against workers: whether adding workers pays, and how far from the ideal it is."""

from collections.abc import Sequence

import altair

from paceline.analysis.factors import settings_where
from paceline.analysis.labels import series_by_speed, series_name, varying_within
from paceline.analysis.rows import Row
from paceline.figures.base import (
    PALETTE,
    PANEL_HEIGHT,
    PANEL_WIDTH,
    SOFT,
    Figure,
    Value,
    colours,
    compose_chart,
    per_setting,
)
from paceline.figures.marks import (
    RANGE_NOTE,
    interval,
    line_labels,
    machine_shape,
    machine_state,
    oversubscribed_notes,
    space_labels,
    workers_axis,
)
from paceline.units import format_percent

# The ideal line may stretch the axis to this many times the fastest run.
ROOM_FOR_IDEAL = 2.5
IDEAL = "ideal"
# Names of lines that find room one above the other; colours, which are fewer, may go to others than these.
MOST_LABELS = 10


def draw(rows: Sequence[Row]) -> altair.TopLevelMixin:
    """A panel per setting; one line per strategy with the range of its repeats; the ideal dashed."""
    usable = _usable(rows)
    shown = [row for members in usable.values() for row in members]
    varying = varying_within(usable.values())
    names = series_by_speed(shown, varying)
    values = {title: _values(members, varying) for title, members in usable.items()}
    panels = [{value["series"] for value in members} - {IDEAL} for members in values.values()]
    colour = colours(names, panels, legend=None)
    drawing = per_setting(values, lambda base, title: _panel(base, title, colour))
    how = [f"Dots: median of repeats, {RANGE_NOTE}", "Dashed: the fastest single worker times the workers"]
    how += [f"Grey: all but the {len(PALETTE)} fastest"] if max(map(len, panels)) > len(PALETTE) else []
    return compose_chart(drawing, shown, "Samples per second against workers", [*how, *oversubscribed_notes(shown)])


def _usable(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Settings in which one strategy ran with two worker counts."""
    return settings_where(
        rows, lambda row: row.measured, lambda members: len({row.spec.workers for row in members}) > 1
    )


def _values(rows: list[Row], varying: list[str]) -> list[Value]:
    points = [_point(row, series_name(row, varying)) for row in rows]
    last = {value["series"]: value for value in sorted(points, key=lambda value: value["workers"])}
    edge = max(value["workers"] for value in points)
    ended = sorted(last.values(), key=lambda value: -value["rate"])
    ends = [value for value in ended if value["workers"] == edge]
    ideal = _ideal(rows)
    top = max([value["high"] for value in points] + [value["rate"] for value in ideal])
    labels = space_labels({value["series"]: value["rate"] for value in ends[:MOST_LABELS]}, PANEL_HEIGHT, (0.0, top))
    # A series that ends earlier has its name beside its last point.
    labels |= {value["series"]: value["rate"] for value in ended[:MOST_LABELS] if value["workers"] < edge}
    labelled = [
        {**value, "label_at": labels.get(value["series"]) if value is last[value["series"]] else None}
        for value in points
    ]
    return labelled + ideal


def _point(row: Row, series: str) -> Value:
    return {
        "series": series, "workers": row.spec.workers, "rate": row.samples_per_second,
        "low": row.samples_per_second_low, "high": row.samples_per_second_high, "runs": row.runs,
        "speedup": f"{row.speedup:.2f}x" if row.speedup else "",
        "efficiency": format_percent(row.efficiency) if row.efficiency else "", "machine": machine_state(row),
    }  # fmt: skip


def _ideal(rows: list[Row]) -> list[Value]:
    """Proportional growth from the fastest one-worker run, ended where it would flatten everything else."""
    single = max((row.samples_per_second or 0 for row in rows if row.spec.workers == 1), default=0.0)
    room = ROOM_FOR_IDEAL * max(row.samples_per_second_high or 0 for row in rows)
    counts = [count for count in sorted({row.spec.workers for row in rows}) if single * count <= room]
    if not single or len(counts) < 2:
        return []
    return [{"series": IDEAL, "workers": count, "rate": single * count} for count in counts]


def _panel(base: altair.Chart, title: str, colour: altair.Color) -> altair.LayerChart:
    y = altair.Y("rate:Q", title="samples/s, last epoch", scale=altair.Scale(zero=True))
    ideal = base.transform_filter(f"datum.series == '{IDEAL}'").encode(x=workers_axis(), y=y)
    base = base.transform_filter(f"datum.series != '{IDEAL}'").encode(x=workers_axis(), color=colour)
    dots = base.mark_point(size=70, filled=True, opacity=1).encode(
        y=y, shape=machine_shape(),
        tooltip=["series:N", "workers:O", altair.Tooltip("rate:Q", format=",.0f"), "speedup:N", "efficiency:N",
                 "runs:Q", "machine:N"],
    )  # fmt: skip
    labels = line_labels(base, "label_at", "series", dx=10, fontSize=12)
    above = ideal.transform_window(last="rank()", sort=[altair.SortField("workers", order="descending")])
    layers = altair.layer(
        ideal.mark_line(strokeDash=[4, 4], color=SOFT, strokeWidth=1.2),
        base.mark_line(strokeWidth=2).encode(y=y),
        *interval(base, "low", "high"),
        dots,
        above.transform_filter("datum.last == 1").mark_text(align="right", dx=-12, color=SOFT, text=IDEAL),
        labels,
    )
    return layers.properties(width=PANEL_WIDTH, height=PANEL_HEIGHT, title=altair.TitleParams(title))


FIGURE = Figure("scaling", "Does adding workers pay?", _usable, draw, place=2)
