"""Samples per second against workers: whether adding workers pays, and how far from the ideal it is."""

from collections.abc import Sequence
from typing import Any

import altair

from paceline.analysis.labels import groups, series_name, varying_fields
from paceline.analysis.rows import Row
from paceline.figures.base import PALETTE, PANEL_HEIGHT, PANEL_WIDTH, Figure, themed

# The ideal line may stretch the axis to this many times the fastest run.
ROOM_FOR_IDEAL = 2.5


def applies(rows: Sequence[Row]) -> bool:
    """As soon as anything was measured."""
    return any(row.measured for row in rows)


def draw(rows: Sequence[Row]) -> altair.TopLevelMixin:
    """A panel per setting; one line per strategy with the range of its repeats; the ideal dashed."""
    measured = [row for row in rows if row.measured]
    varying = varying_fields(measured)
    names = list(dict.fromkeys(series_name(row, varying) for row in measured))
    panels = [_panel(title, panel, varying, names) for title, panel in groups(measured).items()]
    return themed(altair.vconcat(*panels).resolve_scale(color="shared"))


def _panel(title: str, rows: list[Row], varying: list[str], names: list[str]) -> altair.TopLevelMixin:
    points = [_point(row, series_name(row, varying)) for row in rows]
    workers = sorted({row.spec.workers for row in rows})
    top = _top(rows, workers)
    x = altair.X("workers:Q", title="workers", axis=altair.Axis(values=workers, format="d"),
                 scale=altair.Scale(domain=[min(workers) - 0.15, max(workers) + 0.15], nice=False))  # fmt: skip
    y = altair.Y("rate:Q", title="samples/s, last epoch", scale=altair.Scale(domain=[0, top], nice=False))
    colour = altair.Color("series:N", title=None, scale=altair.Scale(domain=names, range=list(PALETTE[: len(names)])))
    base = altair.Chart(altair.Data(values=points)).encode(x=x, color=colour)
    ranges = base.mark_rule(strokeWidth=1.5, opacity=0.7).encode(y=altair.Y("low:Q"), y2="high:Q")
    marks = base.mark_point(size=70, filled=True, opacity=1).encode(
        y=y,
        shape=altair.Shape("machine:N", title=None, scale=altair.Scale(
            domain=["own cores", "oversubscribed"], range=["circle", "cross"])),
        tooltip=[f"{name}:N" for name in ("series", "workers", "rate", "speedup", "efficiency", "runs")],
    )  # fmt: skip
    layers = [base.mark_line(strokeWidth=2).encode(y=y), ranges, marks]
    ideal = _ideal(rows, workers, top)
    if ideal:
        layers.insert(0, altair.Chart(altair.Data(values=ideal)).mark_line(
            strokeDash=[4, 4], color="#777", clip=True).encode(x=x, y=y))  # fmt: skip
        layers.append(altair.Chart(altair.Data(values=ideal[-1:])).mark_text(
            align="right", dx=-6, dy=-8, color="#666", text="ideal").encode(x=x, y=y))  # fmt: skip
    return altair.layer(*layers).properties(
        width=PANEL_WIDTH, height=PANEL_HEIGHT,
        title=altair.TitleParams(title, subtitle="dots: median of repeats; bars: their range; dashed: ideal scaling"),
    )  # fmt: skip


def _point(row: Row, series: str) -> dict[str, Any]:
    return {
        "series": series,
        "workers": row.spec.workers,
        "rate": row.samples_per_second,
        "low": row.samples_per_second_low,
        "high": row.samples_per_second_high,
        "runs": row.runs,
        "speedup": f"{row.speedup:.2f}x" if row.speedup else "",
        "efficiency": f"{row.efficiency:.0%}" if row.efficiency else "",
        "machine": "oversubscribed" if row.oversubscribed else "own cores",
    }


def _top(rows: list[Row], workers: list[int]) -> float:
    """Room for all bars, and for the ideal line unless it would flatten everything else."""
    highest = max(row.samples_per_second_high or 0 for row in rows)
    return min(max(highest, _single(rows) * max(workers)), ROOM_FOR_IDEAL * highest) * 1.08


def _single(rows: list[Row]) -> float:
    return max((row.samples_per_second or 0 for row in rows if row.spec.workers == 1), default=0.0)


def _ideal(rows: list[Row], workers: list[int], top: float) -> list[dict[str, float]]:
    """Proportional growth from the fastest one-worker run, cut where it would leave the picture."""
    single = _single(rows)
    if not single or max(workers) == 1:
        return []
    last = min(max(workers), top / 1.08 / single)
    return [{"workers": 1, "rate": single}, {"workers": last, "rate": single * last}]


FIGURE = Figure("scaling", "Does adding workers pay?", applies, draw, place=1)
