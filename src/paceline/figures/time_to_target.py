"""Time to a target against workers: steps from the fitted curve, the time of a step as it was measured."""

from collections.abc import Sequence

import altair

from paceline.analysis.batches.regimes import BatchSearch, batch_searches
from paceline.analysis.batches.time_to_target import TargetTime, target_times
from paceline.analysis.rows import Row
from paceline.figures.base import PANEL_HEIGHT, PANEL_WIDTH, Drawing, Figure, Value, colours, compose_chart
from paceline.units import format_seconds

MEASURED, ASSUMED = "measured", "assumed"
# How far the axis of time goes beyond what is drawn.
MARGIN = 1.4


def applies(rows: Sequence[Row]) -> list[tuple[BatchSearch, list[TargetTime]]]:
    """Searches with regimes, beside which the time of a step is known."""
    searches = [(search, target_times(search, rows)) for search in batch_searches(rows)]
    return [(search, times) for search, times in searches if times]


def draw(rows: Sequence[Row]) -> altair.TopLevelMixin:
    """A panel per search, a line per local batch."""
    searches = applies(rows)
    how = [
        "Each worker has the local batch of its line, so more workers train on larger batches",
        "Filled: the time of a step was measured with so many workers. Open: taken to be that of the most measured, as "
        "if more workers sent for free, so that what remains is the batch that grows too large",
    ]
    shown = [row for search, _ in searches for row in search.rows]
    return compose_chart(
        Drawing([_panel(search, times) for search, times in searches]), shown, "Time to the target by workers", how
    )


def _panel(search: BatchSearch, times: Sequence[TargetTime]) -> altair.LayerChart:
    values: list[Value] = [
        {
            "series": f"{time.local_batch:,} per worker", "workers": time.workers, "seconds": time.seconds,
            "known": MEASURED if time.measured else ASSUMED, "time": format_seconds(time.seconds),
            "batch": time.workers * time.local_batch,
        }
        for time in times
    ]  # fmt: skip
    names = list(dict.fromkeys(value["series"] for value in values))
    seconds = [float(value["seconds"]) for value in values]
    scale = altair.Scale(type="log", nice=False, domain=[min(seconds) / MARGIN, max(seconds) * MARGIN])
    y = altair.Y("seconds:Q", title=f"seconds to {search.target}", scale=scale)
    base = altair.Chart(altair.Data(values=values)).encode(
        x=altair.X("workers:O", title="workers", axis=altair.Axis(labelAngle=0)),
        y=y,
        color=colours(names, legend=altair.Legend(orient="top")),
    )
    tooltip = ["series:N", "workers:O", "batch:Q", "time:N", "known:N"]
    dots = [
        base.transform_filter(altair.FieldEqualPredicate(field="known", equal=known))
        .mark_point(size=70, filled=known == MEASURED, opacity=1, strokeWidth=1.6)
        .encode(tooltip=tooltip)
        for known in (MEASURED, ASSUMED)
    ]
    soonest = min(values, key=lambda value: float(value["seconds"]))
    label = altair.Chart(altair.Data(values=[soonest])).mark_text(dy=16, fontSize=11).encode(
        x="workers:O", y=y, text="time:N", color=colours(names, legend=None)
    )  # fmt: skip
    return altair.layer(base.mark_line(strokeWidth=2), *dots, label).properties(width=PANEL_WIDTH, height=PANEL_HEIGHT)


FIGURE = Figure("time-to-target", "How many workers reach the target soonest?", applies, draw, place=12)
