"""Speed-up against the batch: from which batch on more workers pay."""

from collections.abc import Sequence
from functools import partial

import altair

from paceline.analysis.factors import BATCH, groups_varying, with_enough_levels
from paceline.analysis.labels import strategies_of
from paceline.analysis.rows import Row
from paceline.analysis.thresholds import pays_from
from paceline.figures.base import (
    SMALL_HEIGHT,
    SMALL_SUBTITLE_CHARACTERS,
    SMALL_WIDTH,
    SOFT,
    Figure,
    Value,
    colours,
    compose_chart,
    per_setting,
    wrap_lines,
)
from paceline.figures.marks import RANGE_NOTE, interval, line_labels, machine_shape, machine_state, oversubscribed_notes

COLUMNS = 3
# Height of a line of words below the lines, as a share of the axis.
LINE_SHARE = 0.08


def draw(rows: Sequence[Row]) -> altair.TopLevelMixin:
    """A panel per strategy, a line per worker count; a label says from which batch on more workers pay."""
    usable = _usable(rows)
    shown = [row for members in usable.values() for row in members]
    names = strategies_of(shown)
    series = [_series(count) for count in sorted({row.spec.workers for row in shown})]
    values = {title: _values(members) for title, members in usable.items()}
    drawing = per_setting(values, *(partial(_panel, name=name, series=series) for name in names))
    how = [
        "Above the line more workers are faster than one",
        "Below: from which batch on, between measured batches on a straight line",
        RANGE_NOTE.capitalize(),
        *oversubscribed_notes(shown),
    ]
    return compose_chart(
        drawing, shown, "Speed-up against batch", how, columns=min(COLUMNS, len(names)), share=("x", "y")
    )


def _usable(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Settings in which one strategy has a speed-up at two batches."""
    several = [row for row in rows if row.speedup is not None and row.spec.workers > 1]
    return {
        title: usable
        for title, members in groups_varying(several, BATCH).items()
        if (usable := with_enough_levels(members, BATCH, counts=1))
    }


def _series(workers: int) -> str:
    return f"{workers} workers"


def _values(rows: list[Row]) -> list[Value]:
    values: list[Value] = []
    top = max(1.0, *(row.speedup or 0.0 for row in rows))
    for name in strategies_of(rows):
        for line, count in enumerate(sorted({row.spec.workers for row in rows})):
            members = [row for row in rows if row.spec.strategy == name and row.spec.workers == count]
            points = [_point(row) for row in sorted(members, key=BATCH.level)]
            if len(points) > 1:
                pays = pays_from([(float(point["batch"]), float(point["speedup"])) for point in points])
                points[-1] |= {"label": f"{count} workers {pays}", "label_at": top * (line + 0.5) * LINE_SHARE}
            values += points
    return values


def _point(row: Row) -> Value:
    low, high = row.speedup_range or (row.speedup, row.speedup)
    return {
        "strategy": row.spec.strategy, "series": _series(row.spec.workers), "batch": int(BATCH.level(row)),
        "speedup": row.speedup, "low": low, "high": high, "machine": machine_state(row),
    }  # fmt: skip


def _panel(base: altair.Chart, title: str, name: str, series: Sequence[str]) -> altair.LayerChart:
    # From the same data, so that the page carries them once.
    even = base.transform_aggregate(points="count()").mark_rule(strokeDash=[4, 4], color=SOFT).encode(y=altair.datum(1))
    base = base.transform_filter(altair.FieldEqualPredicate(field="strategy", equal=name)).encode(
        x=altair.X("batch:O", title="batch", axis=altair.Axis(labelAngle=0)), color=colours(series, legend=None)
    )
    y = altair.Y("speedup:Q", title="times one worker", scale=altair.Scale(zero=True))
    dots = base.mark_point(size=60, filled=True, opacity=1).encode(
        y=y, shape=machine_shape(),
        tooltip=["strategy:N", "series:N", "batch:O", altair.Tooltip("speedup:Q", format=".3~g"), "machine:N"],
    )  # fmt: skip
    labels = line_labels(base, "label_at", "label", align="right", dx=10)
    heading = altair.TitleParams(name, subtitle=wrap_lines(title, SMALL_SUBTITLE_CHARACTERS), subtitleFontSize=11)
    return altair.layer(
        even, base.mark_line(strokeWidth=2).encode(y=y), *interval(base, "low", "high"), dots, labels
    ).properties(width=SMALL_WIDTH, height=SMALL_HEIGHT, title=heading)


FIGURE = Figure("break-even", "From which batch on do more workers pay?", _usable, draw, place=6)
