"""The gradient noise scale over training, beside the critical batch that a search for a target found."""

from collections.abc import Sequence

import altair

from paceline.analysis.batches.agreement import compare_with_noise, searches_with_noise
from paceline.analysis.batches.regimes import BatchSearch
from paceline.analysis.labels import series_name, varying_fields
from paceline.analysis.rows import Row
from paceline.figures.base import (
    INK,
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

AXIS = "noise scale, samples"
# Intervals without an upper end are drawn to this many times the largest number.
OPEN_END = 1.5


def applies(rows: Sequence[Row]) -> list[Row]:
    """Runs in which at least one epoch could tell the noise scale."""
    return [row for row in rows if row.noise]


def draw(rows: Sequence[Row]) -> altair.TopLevelMixin:
    """A line per configuration with the interval of each epoch, over the critical batches of searches alike."""
    measured = applies(rows)
    searches = searches_with_noise(rows)
    varying = varying_fields(measured)
    known = [noise for row in measured for _, noise in row.noise]
    top = OPEN_END * max(end for noise in known for end in (noise.scale, noise.high) if end is not None)
    values: list[Value] = [
        {
            "series": f"{series_name(row, varying)} x{row.spec.workers}, batch {row.spec.samples_per_step:,}",
            "epoch": number, "noise": noise.scale, "low": noise.low or noise.scale, "high": noise.high or top,
            "end": "known" if noise.high else "open",
        }
        for row in measured
        for number, noise in row.noise
    ]  # fmt: skip
    names = list(dict.fromkeys(value["series"] for value in values))
    scale = altair.Scale(type="log", nice=True)
    base = altair.Chart(inline_data(values)).encode(
        x=altair.X(
            "epoch:Q",
            title="epoch",
            scale=altair.Scale(zero=False, padding=16),
            axis=altair.Axis(format="d", tickMinStep=1),
        ),
        color=colours(names, legend=altair.Legend(orient="top", columns=2)),
    )
    y = altair.Y("noise:Q", title=AXIS, scale=scale)
    panel = altair.layer(
        *(layer for search in searches for layer in _critical_batch(search, top, scale)),
        base.mark_rule(strokeWidth=1.2, opacity=0.6).encode(y=altair.Y("low:Q", title=AXIS, scale=scale), y2="high:Q"),
        # An interval without an upper end goes to the top and beyond.
        base.transform_filter(altair.FieldEqualPredicate(field="end", equal="open"))
        .mark_point(shape="triangle-up", size=60, filled=True, opacity=0.6)
        .encode(y=altair.Y("high:Q", title=AXIS, scale=scale)),
        base.mark_line(strokeWidth=2).encode(y=y),
        base.mark_point(size=50, filled=True, opacity=1).encode(
            y=y, tooltip=["series:N", "epoch:Q", altair.Tooltip("noise:Q", format=",.0f")]
        ),
    ).properties(width=PANEL_WIDTH, height=PANEL_HEIGHT)
    how = [
        "Simple noise scale of McCandlish et al. (2018) of each epoch; bars: 90 % interval, arrow: no upper end",
        "Batches much larger than it hardly make a gradient better",
    ]
    if searches:
        how.append("Dashes: the critical batch that a search for a target found, over all training; band: its interval")
        how += [said.rstrip(".") for search in searches if (said := compare_with_noise(search, rows)) is not None]
    return compose_chart(Drawing([panel]), measured, "Gradient noise scale over training", how)


def _critical_batch(search: BatchSearch, top: float, scale: altair.Scale) -> list[altair.Chart]:
    """A dashed line with its name, and a band where it may lie."""
    assert search.regimes is not None
    critical = search.regimes.critical_batch
    value: Value = {
        "at": critical.value, "low": critical.low or critical.value, "high": critical.high or max(top, critical.value),
        "name": f"critical batch to {search.target}: {critical.value:,.0f}",
    }  # fmt: skip
    base = altair.Chart(inline_data([value]))
    y = altair.Y("at:Q", title=AXIS, scale=scale)
    return [
        base.mark_rect(opacity=0.12, color=SOFT).encode(y=altair.Y("low:Q", title=AXIS, scale=scale), y2="high:Q"),
        base.mark_rule(strokeDash=[5, 4], color=INK).encode(y=y),
        base.mark_text(align="right", baseline="bottom", dx=-6, dy=-4, color=INK).encode(
            x=altair.value(PANEL_WIDTH), y=y, text="name:N"
        ),
    ]


FIGURE = Figure("noise-scale", "How large may the batch become as training goes on?", applies, draw, place=13)
