"""Time to a target against workers: steps from the fitted curve, the time of a step as it was measured."""

from collections.abc import Sequence

import altair

from paceline.analysis.batches.regimes import BatchSearch, batch_searches
from paceline.analysis.batches.time_to_target import TargetTime, target_times
from paceline.analysis.rows import Row
from paceline.figures.base import (
    INK,
    PANEL_HEIGHT,
    PANEL_WIDTH,
    SOFT,
    SUBTITLE_CHARACTERS,
    Drawing,
    Figure,
    Value,
    colours,
    compose_chart,
    inline_data,
    wrap_lines,
)
from paceline.units import format_count, format_seconds

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
    base = altair.Chart(inline_data(values)).encode(
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
    return altair.layer(base.mark_line(strokeWidth=2, opacity=0.7), *dots, *_soonest(values, y)).properties(
        width=PANEL_WIDTH, height=PANEL_HEIGHT,
        title=altair.TitleParams(search.title, subtitle=wrap_lines(" ".join(_sentences(times)), SUBTITLE_CHARACTERS)),
    )  # fmt: skip


def _soonest(values: Sequence[Value], y: altair.Y) -> list[altair.Chart]:
    """A ring and words around the soonest that was measured; softer words at the soonest of all, if it was not."""
    best = {known: min((value for value in values if value["known"] == known), key=_seconds, default=None)
            for known in (MEASURED, ASSUMED)}  # fmt: skip
    measured, assumed = best[MEASURED], best[ASSUMED]
    marks = []
    if measured is not None:
        base = altair.Chart(inline_data([{**measured, "text": _words(measured)}]))
        # Beside the first count there is room on the right only.
        marks += [
            base.mark_point(size=260, strokeWidth=2, color=INK).encode(x="workers:O", y=y),
            base.mark_text(dy=20, dx=-12, align="left", fontSize=12, fontWeight="bold", color=INK).encode(
                x="workers:O", y=y, text="text:N"
            ),
        ]
    if assumed is not None and (measured is None or _seconds(assumed) < _seconds(measured)):
        base = altair.Chart(inline_data([{**assumed, "text": f"{assumed['time']} if sending were free"}]))
        marks.append(
            base.mark_text(dy=18, align="right", dx=12, fontSize=11, color=SOFT).encode(
                x="workers:O", y=y, text="text:N"
            )
        )
    return marks


def _words(value: Value) -> str:
    return f"soonest measured: {format_count(value['workers'], 'worker')}, {value['time']}"


def _seconds(value: Value) -> float:
    return float(value["seconds"])


def _sentences(times: Sequence[TargetTime]) -> list[str]:
    """The best number of workers, as measured, and that beyond it nothing was."""
    measured = [time for time in times if time.measured]
    if not measured:
        return []
    best, most = min(measured, key=lambda time: time.seconds), max(time.workers for time in measured)
    alone = min((time.seconds for time in measured if time.workers == 1), default=None)
    gain = f", {alone / best.seconds:.2f} times as soon as one" if alone is not None and best.workers > 1 else ""
    return [
        f"Soonest of what was measured: {format_count(best.workers, 'worker')} with {best.local_batch:,} samples each, "
        f"{format_seconds(best.seconds)}{gain}.",
        f"More than {most} were not measured.",
    ]


FIGURE = Figure("time-to-target", "How many workers reach the target soonest?", applies, draw, place=12)
