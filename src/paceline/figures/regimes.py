"""Steps to a target against the global batch, with the regimes that were found: Shallue et al., JMLR 2019, figure 1."""

from collections.abc import Sequence

import altair
import numpy as np

from paceline.analysis.batches.regimes import BatchSearch, Regimes, batch_searches, describe_search
from paceline.analysis.rows import Row
from paceline.figures.base import (
    INK,
    PALETTE,
    PANEL_HEIGHT,
    PANEL_WIDTH,
    SOFT,
    SUBTITLE_CHARACTERS,
    Drawing,
    Figure,
    Value,
    compose_chart,
    inline_data,
    wrap_lines,
)

REGIMES = {"perfect scaling": PALETTE[2], "diminishing returns": PALETTE[4], "hardly any gain": PALETTE[1]}
CURVE_POINTS = 60
AXIS = "global batch, samples"
# How far the axis goes beyond the batches that were tried.
MARGIN = 1.3
# A stretch of the axis below this share of it has no room for its name.
LEAST_NAMED = 0.095
# How far the first end of a regime is drawn above the foot of the panel, and each other below it, in pixels.
FIRST_END, GAP_OF_ENDS = 69, 28
# Room for them below the dots, as a part of the axis.
FOOT = 0.3


def applies(rows: Sequence[Row]) -> list[BatchSearch]:
    """Searches of which at least two batches came to their target."""
    return [search for search in batch_searches(rows) if len(search.outcomes) > 1]


def draw(rows: Sequence[Row]) -> altair.TopLevelMixin:
    """A panel per search."""
    searches = applies(rows)
    how = [
        "A dot per seed with the best learning rate of its batch, which the search chose anew for each",
        "Line: the fitted curve; dashes: where doubling the batch halves the steps; below: where the regimes end, with "
        "90 % intervals",
    ]
    shown = [row for search in searches for row in search.rows]
    return compose_chart(Drawing([_panel(search) for search in searches]), shown, "Steps to the target by batch", how)


def _panel(search: BatchSearch) -> altair.LayerChart:
    batches = [outcome.batch for outcome in search.outcomes]
    span = min(batches) / MARGIN, max(batches) * MARGIN
    dots: list[Value] = [
        {"batch": outcome.batch, "steps": steps, "lr": outcome.lr}
        for outcome in search.outcomes
        for steps in outcome.steps
    ]
    every = [float(value["steps"]) for value in dots]
    height = _height(min(every) / MARGIN, max(every) * MARGIN * MARGIN, search.regimes is not None)
    scale = {
        "x": altair.Scale(type="log", domain=list(span), nice=False),
        "y": altair.Scale(type="log", nice=False, domain=height),
    }
    x = altair.X("batch:Q", title=AXIS, scale=scale["x"],
                 axis=altair.Axis(values=batches, format="d", grid=False))  # fmt: skip
    y = altair.Y("steps:Q", title=f"steps to {search.target}", scale=scale["y"])
    layers = []
    if search.regimes is not None:
        layers += _bands(search.regimes, span, scale["x"])
        layers += _curves(search.regimes, (min(batches), span[1]), [min(every) / MARGIN, height[1]], x, y)
    base = altair.Chart(inline_data(dots))
    layers.append(
        base.mark_point(size=70, filled=True, opacity=0.9, color=PALETTE[0]).encode(
            x=x, y=y, tooltip=["batch:Q", "steps:Q", "lr:Q"]
        )
    )
    title = altair.TitleParams(
        search.title,
        subtitle=wrap_lines(" ".join(describe_search(search)), SUBTITLE_CHARACTERS),
    )
    return altair.layer(*layers).properties(width=PANEL_WIDTH, height=PANEL_HEIGHT, title=title)


def _height(low: float, high: float, has_foot: bool) -> list[float]:
    """The ends of the axis of steps, with room below for what is known of the regimes' ends."""
    return [low * (low / high) ** (FOOT / (1 - FOOT)) if has_foot else low, high]


def _bands(regimes: Regimes, span: tuple[float, float], scale: altair.Scale) -> list[altair.Chart]:
    """The regimes as coloured stretches of the axis with their names, and how far each of their ends is known."""
    inner = [min(max(edge.value, span[0]), span[1]) for edge in (regimes.perfect_up_to, regimes.little_from)]
    edges = [span[0], *inner, span[1]]
    stretches: list[Value] = [
        {"from": low, "to": high, "regime": name, "middle": float(np.sqrt(low * high)),
         "wide": float(np.log(high / low) / np.log(span[1] / span[0])) > LEAST_NAMED, "at": low, "end": high}
        for name, low, high in zip(REGIMES, edges[:-1], edges[1:], strict=True)
        if high > low
    ]  # fmt: skip
    base = altair.Chart(inline_data(stretches))
    colour = altair.Color("regime:N", legend=None, scale=altair.Scale(domain=list(REGIMES), range=[*REGIMES.values()]))
    words = {"fontSize": 11, "color": SOFT, "dy": 8, "baseline": "top"}
    last = base.transform_filter(f"!datum.wide && datum.end >= {span[1]}")
    return [
        base.mark_rect(opacity=0.13).encode(x=altair.X("from:Q", scale=scale, title=AXIS), x2="to:Q", color=colour),
        base.transform_filter("datum.wide")
        .mark_text(**words)
        .encode(x=altair.X("middle:Q", scale=scale, title=AXIS), y=altair.value(0), text="regime:N"),
        # The name of a narrow stretch would reach beyond the panel.
        last.mark_text(**words | {"dx": -6, "align": "right", "dy": 24}).encode(
            x=altair.X("end:Q", scale=scale, title=AXIS), y=altair.value(0), text="regime:N"
        ),
        *_ends(regimes, span, scale),
    ]


def _ends(regimes: Regimes, span: tuple[float, float], scale: altair.Scale) -> list[altair.Chart]:
    """The critical batch and the ends of the regimes beside it, each with its interval, at the foot of the panel."""
    ends = {"perfect scaling ends": regimes.perfect_up_to, "critical batch": regimes.critical_batch,
            "hardly any gain begins": regimes.little_from}  # fmt: skip
    charts = []
    for place, (name, end) in enumerate(ends.items()):
        low, high = max(end.low or span[0], span[0]), min(end.high or span[1], span[1])
        if low < high:
            y = altair.value(PANEL_HEIGHT - FIRST_END + place * GAP_OF_ENDS)
            value: Value = {"name": name, "at": end.value, "low": low, "high": high}
            charts += _end(altair.Chart(inline_data([value])).encode(y=y), value, span, scale)
    return charts


def _end(base: altair.Chart, value: Value, span: tuple[float, float], scale: altair.Scale) -> list[altair.Chart]:
    """An interval as a line, its number as a tick where it is in the panel, and its name above."""
    x = {name: altair.X(f"{name}:Q", scale=scale, title=AXIS) for name in ("low", "high", "at")}
    # Names stay within the panel: those on its right end where their line does.
    align, end = ("right", "high") if value["low"] > np.sqrt(span[0] * span[1]) else ("left", "low")
    charts = [
        base.mark_rule(strokeWidth=1.6, color=SOFT).encode(x=x["low"], x2="high:Q"),
        base.mark_text(fontSize=10, color=SOFT, align=align, baseline="bottom", dy=-3).encode(x=x[end], text="name:N"),
    ]
    if span[0] <= value["at"] <= span[1]:
        tick = base.mark_tick(thickness=3, size=11, color=INK, orient="vertical")
        charts.append(tick.encode(x=x["at"], tooltip=["name:N", "at:Q", "low:Q", "high:Q"]))
    return charts


def _curves(
    regimes: Regimes, span: tuple[float, float], height: Sequence[float], x: altair.X, y: altair.Y
) -> list[altair.Chart]:
    """The fitted curve, and the steps of the smallest batch halved with each doubling."""
    places = np.geomspace(*span, CURVE_POINTS)
    fitted: list[Value] = [{"batch": float(batch), "steps": regimes.steps(float(batch))} for batch in places]
    start = regimes.steps(span[0]) * span[0]
    ideal: list[Value] = [
        {"batch": float(batch), "steps": start / float(batch)} for batch in places if start / batch >= height[0]
    ]
    return [
        altair.Chart(inline_data(fitted)).mark_line(strokeWidth=2, color=PALETTE[0]).encode(x=x, y=y),
        altair.Chart(inline_data(ideal)).mark_line(strokeDash=[5, 4], color=INK).encode(x=x, y=y),
    ]


FIGURE = Figure("batch-regimes", "Up to which batch do larger ones pay?", applies, draw, place=11)
