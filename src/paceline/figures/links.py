"""Samples per second against the rate of the link and against its delay: where each strategy stops paying."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import exp, log

import altair

from paceline.analysis.labels import group_by_setting, shorten_titles, varying_fields
from paceline.analysis.links import name_without_link
from paceline.analysis.rows import Row
from paceline.figures.base import (
    PANEL_HEIGHT,
    PANEL_WIDTH,
    SOFT,
    Drawing,
    Figure,
    Value,
    colours,
    compose_chart,
    inline_data,
)
from paceline.figures.marks import (
    RANGE_NOTE,
    interval,
    is_wide,
    line_labels,
    machine_shape,
    machine_state,
    oversubscribed_notes,
    space_labels,
)
from paceline.link import NetworkLink, format_bits_per_second, format_delay

ALONE = "one worker"
# The room that names need to the right of the lines.
LABEL_PIXELS = 250


@dataclass(frozen=True)
class Axis:
    """What is drawn from left to right: the part of a link that varies, while the other part is the same."""

    title: str
    position: Callable[[NetworkLink], float]
    label: Callable[[NetworkLink], str]
    held: Callable[[NetworkLink], str]
    # Whether points stand where their numbers are, on a logarithmic axis, or side by side.
    numeric: bool


RATE = Axis(
    "rate of the link, bit/s",
    lambda link: link.bits_per_second,
    lambda link: format_bits_per_second(link.bits_per_second),
    lambda link: f"delay {format_delay(link.delay_seconds)}" if link.delay_seconds else "no delay",
    numeric=True,
)
DELAY = Axis(
    "delay each way",
    lambda link: link.delay_seconds,
    lambda link: format_delay(link.delay_seconds) if link.delay_seconds else "none",
    lambda link: f"at {format_bits_per_second(link.bits_per_second)}",
    numeric=False,
)


def applies(rows: Sequence[Row]) -> bool:
    """When one strategy ran over two links that differ in their rate alone, or in their delay alone."""
    return any(_groups(rows, axis) for axis in (RATE, DELAY))


def draw(rows: Sequence[Row]) -> altair.TopLevelMixin:
    """Panels by rate and by delay, one line per strategy, and what one worker reaches as a dashed line."""
    varying = varying_fields([row for row in rows if row.measured])
    groups = {title: (axis, members) for axis in (RATE, DELAY) for title, members in _groups(rows, axis).items()}
    values = {
        title: _values(members, _alone(rows, members[0]), axis, varying) for title, (axis, members) in groups.items()
    }
    names = dict.fromkeys(value["series"] for members in values.values() for value in members)
    colour = colours([name for name in names if name != ALONE], legend=None)
    titles, common = shorten_titles(list(values))
    axes = [axis for axis, _ in groups.values()]
    panels = [
        _panel(members, axis, colour, short) for members, axis, short in zip(values.values(), axes, titles, strict=True)
    ]
    drawing = Drawing(panels, common=common)
    shown = [row for _, members in groups.values() for row in members]
    how = [
        f"Dots: median of repeats, {RANGE_NOTE}", "Dashed: one worker, which needs no link",
        "Names say from which rate on a strategy is faster than it", *oversubscribed_notes(shown),
    ]  # fmt: skip
    return compose_chart(drawing, shown, "Samples per second over links", how)


def _groups(rows: Sequence[Row], axis: Axis) -> dict[str, list[Row]]:
    """Rows that crossed a link, by setting, workers and the part of the link that is held; those with two levels."""
    groups: dict[str, list[Row]] = {}
    for setting, members in group_by_setting(rows, without={"shrunk", "link"}).items():
        for row in members:
            if row.measured and row.spec.link is not None and row.spec.workers > 1:
                parts = (axis.held(row.spec.link), f"{row.spec.workers} workers", setting)
                groups.setdefault(" · ".join(part for part in parts if part), []).append(row)
    return {title: members for title, members in groups.items() if _levels(members, axis) > 1}


def _levels(rows: Sequence[Row], axis: Axis) -> int:
    return len({axis.position(row.spec.link) for row in rows if row.spec.link is not None})


def _alone(rows: Sequence[Row], like: Row) -> float | None:
    """Samples per second of the fastest single worker of that setting."""
    settings = group_by_setting(rows, without={"shrunk", "link"}).values()
    members = next((group for group in settings if like in group), [])
    rates = [row.samples_per_second for row in members if row.spec.workers == 1 and row.spec.link is None]
    return max((rate for rate in rates if rate is not None), default=None)


def _values(rows: Sequence[Row], alone: float | None, axis: Axis, varying: Sequence[str]) -> list[Value]:
    points = [_point(row, axis, name_without_link(row, varying)) for row in rows]
    lines: dict[str, list[Value]] = {}
    for point in sorted(points, key=lambda point: point["at"]):
        lines.setdefault(point["series"], []).append(point)
    rates = [point["rate"] for point in points] + ([alone] if alone else [])
    span, wide = (min(rates), max(rates)) if is_wide(rates) else (0.0, max(rates)), is_wide(rates)
    ends = {name: line[-1]["rate"] for name, line in lines.items()} | ({ALONE: alone} if alone else {})
    apart = space_labels(ends, PANEL_HEIGHT, span, wide)
    for name, line in lines.items():
        verdict = _verdict(line, alone) if axis.numeric and alone else ""
        line[-1] |= {"label": f"{name} {verdict}".strip(), "label_at": apart[name]}
    if not alone:
        return points
    # The dashed line goes from edge to edge, and its name stands where those of the others do.
    last = max(points, key=lambda point: point["at"])
    words = {"series": ALONE, "alone": alone, "label": ALONE, "label_at": apart[ALONE]}
    return [*points, {**words, "at": last["at"], "link": last["link"]}]


def _point(row: Row, axis: Axis, series: str) -> Value:
    assert row.spec.link is not None
    return {
        "series": series, "at": axis.position(row.spec.link), "link": axis.label(row.spec.link),
        "rate": row.samples_per_second, "low": row.samples_per_second_low, "high": row.samples_per_second_high,
        "runs": row.runs, "speedup": f"{row.speedup:.2f}x" if row.speedup else "", "machine": machine_state(row),
    }  # fmt: skip


def _verdict(line: Sequence[Value], alone: float) -> str:
    """From which rate on a line is above one worker, on a straight line between points of the logarithmic axis."""
    above = [point["rate"] >= alone for point in line]
    if all(above):
        return "pays throughout"
    if not above[-1]:
        return "does not pay"
    place = None
    for before, after in pairwise(line):
        if before["rate"] < alone <= after["rate"]:
            share = (alone - before["rate"]) / (after["rate"] - before["rate"])
            place = exp(log(before["at"]) + share * (log(after["at"]) - log(before["at"])))
    assert place is not None
    return f"pays from {format_bits_per_second(float(f'{place:.2g}'))}"


def _panel(values: Sequence[Value], axis: Axis, colour: altair.Color, heading: str) -> altair.LayerChart:
    base = altair.Chart(inline_data(values))
    rates = [float(value["rate" if "rate" in value else "alone"]) for value in values]
    wide = is_wide(rates)
    scale = altair.Scale(type="log", nice=False, padding=12) if wide else altair.Scale(zero=True)
    title = "samples/s, last epoch" + (", logarithmic" if wide else "")
    y, level = (altair.Y(f"{name}:Q", title=title, scale=scale) for name in ("rate", "alone"))
    x = _x(values, axis)
    dashed = base.transform_filter(f"datum.series == '{ALONE}'")
    line = base.transform_filter(f"datum.series != '{ALONE}'").encode(x=x, color=colour)
    dots = line.mark_point(size=70, filled=True, opacity=1).encode(
        y=y, shape=machine_shape(),
        tooltip=["series:N", "link:N", altair.Tooltip("rate:Q", format=",.0f"), "speedup:N", "runs:Q", "machine:N"],
    )  # fmt: skip
    layers = altair.layer(
        dashed.mark_rule(strokeDash=[4, 4], color=SOFT, strokeWidth=1.2).encode(y=level),
        line_labels(dashed.encode(x=x), "label_at", "label", scale, dx=10, fontSize=12, color=SOFT),
        line.mark_line(strokeWidth=2).encode(y=y),
        *interval(line, "low", "high"),
        dots,
        line_labels(line, "label_at", "label", scale, dx=10, fontSize=12),
    )
    return layers.properties(width=PANEL_WIDTH - LABEL_PIXELS, height=PANEL_HEIGHT, title=altair.TitleParams(heading))


def _x(values: Sequence[Value], axis: Axis) -> altair.X:
    if axis.numeric:
        at = sorted({value["at"] for value in values})
        labels = " : ".join(f"datum.value == {place!r} ? '{format_bits_per_second(place)}'" for place in at) + " : ''"
        marks = altair.Axis(values=at, labelExpr=labels, labelAngle=0)
        return altair.X("at:Q", title=axis.title, scale=altair.Scale(type="log", nice=False), axis=marks)
    order = [value["link"] for value in sorted(values, key=lambda value: value["at"])]
    edge_to_edge = altair.Scale(type="point", padding=0)
    return altair.X(
        "link:O", title=axis.title, sort=list(dict.fromkeys(order)), scale=edge_to_edge, axis=altair.Axis(labelAngle=0)
    )


FIGURE = Figure("links", "Over which link does each strategy stop paying?", applies, draw, place=0)
