"""Parts that several figures draw: intervals, axes of workers, spaced labels, marks of oversubscribed runs."""

from collections.abc import Iterable, Mapping, Sequence
from math import exp, log
from typing import Any

import altair

from paceline.analysis.rows import Row
from paceline.figures.base import PANEL_WIDTH

OWN_CORES, OVERSUBSCRIBED = "own cores", "oversubscribed"
OVERSUBSCRIBED_MEANING = "oversubscribed (more processes than cores)"
RANGE_NOTE = "bars: lowest to highest repeat"
# From this ratio of largest to smallest on, a linear axis would flatten the small ones.
LOGARITHMIC_FROM = 12.0
# Height of a line of text in pixels.
LINE_HEIGHT = 13
# Height of a lying bar with its gap, in pixels, and how many of them a reader can still compare.
BAR_STEP = 24
MOST_BARS = 24


def interval(base: altair.Chart, low: str, high: str, *, across: bool = False, **encoding: Any) -> list[altair.Chart]:
    """The range of the repeats as a line with ends; `across` for bars that lie."""
    axis, end = ("x", "x2") if across else ("y", "y2")
    make = altair.X if across else altair.Y
    rule = base.mark_rule(strokeWidth=1.4).encode(**{axis: make(f"{low}:Q"), end: f"{high}:Q"}, **encoding)
    ticks = [
        base.mark_tick(thickness=1.4, size=8, orient="vertical" if across else "horizontal").encode(
            **{axis: make(f"{name}:Q")}, **encoding
        )
        for name in (low, high)
    ]
    return [rule, *ticks]


def workers_axis(**options: Any) -> altair.X:
    """Worker counts as they were measured, evenly spaced."""
    return altair.X("workers:O", title="workers", axis=altair.Axis(labelAngle=0), **options)


def machine_state(row: Row) -> str:
    """Whether every process had its own cores or the machine was oversubscribed."""
    return OVERSUBSCRIBED if row.oversubscribed else OWN_CORES


def machine_shape() -> altair.Shape:
    """Circles, and crosses where the machine was oversubscribed."""
    scale = altair.Scale(domain=[OWN_CORES, OVERSUBSCRIBED], range=["circle", "cross"])
    return altair.Shape("machine:N", scale=scale, legend=None)


def line_labels(
    base: altair.Chart, at: str, text: str, scale: altair.Scale | None = None, **options: Any
) -> altair.Chart:
    """The names of lines, each beside the one point of its line that has a field `at`."""
    style = {"align": "left", "dx": 9, "fontSize": 11, "fontWeight": "bold"} | options
    y = altair.Y(f"{at}:Q") if scale is None else altair.Y(f"{at}:Q", scale=scale)
    labelled = base.transform_filter(f"isValid(datum.{at if text == 'series' else text})")
    return labelled.mark_text(**style).encode(y=y, text=f"{text}:N")


def names_axis(order: altair.EncodingSortField | None = None) -> altair.Y:
    """The names of lying bars, in the order of the values or in this one."""
    return altair.Y("name:N", title=None, sort=order, axis=altair.Axis(domain=False, ticks=False))


def stacked_bars(
    base: altair.Chart, quantity: str, title: str, parts: Mapping[str, str], columns: int, *more: str
) -> tuple[altair.Chart, altair.Chart]:
    """Lying bars of parts, whose colours are given, and a chart of those values that end a bar with a label."""
    y, names = names_axis(), list(parts)
    bars = base.mark_bar(height={"band": 0.72}).encode(
        x=altair.X(f"{quantity}:Q", title=title, stack="zero"), y=y, order=altair.Order("place:Q"),
        color=altair.Color("part:N", title=None, sort=names, legend=altair.Legend(orient="top", columns=columns),
                           scale=altair.Scale(domain=names, range=list(parts.values()))),
        tooltip=["name:N", "part:N", altair.Tooltip(f"{quantity}:Q", format=",.3~g"), *more],
    )  # fmt: skip
    return bars, base.transform_filter("isValid(datum.label)").encode(y=y)


def bars_panel(layers: Sequence[altair.Chart], title: str, width: int = PANEL_WIDTH) -> altair.LayerChart:
    """A panel as high as its lying bars need."""
    size = {"width": width, "height": {"step": BAR_STEP}}
    return altair.layer(*layers).properties(title=altair.TitleParams(title), **size)


def bar_notes(bars: Iterable[int], which: str) -> list[str]:
    """Which bars are drawn, where there would be too many."""
    return [f"The {MOST_BARS} {which}; the table has all"] if max(bars, default=0) > MOST_BARS else []


def oversubscribed_notes(rows: Sequence[Row], mark: str = "Crosses") -> list[str]:
    """What the mark of oversubscribed runs means, where there are any."""
    return [f"{mark}: {OVERSUBSCRIBED_MEANING}"] if any(row.oversubscribed for row in rows) else []


def is_wide(values: Sequence[float]) -> bool:
    """Whether the values differ so much that only a logarithmic axis shows all of them."""
    positive = [value for value in values if value > 0]
    return bool(positive) and max(positive) / min(positive) >= LOGARITHMIC_FROM


def space_labels(
    places: Mapping[str, float], height: int, span: tuple[float, float], wide: bool = False
) -> dict[str, float]:
    """Positions for the labels of lines that end at these values, so that none overlaps another.

    `span` is what the axis of that height shows; `wide` says that the axis is logarithmic.
    """
    bottom, top = (log(edge) for edge in span) if wide else span
    least = (top - bottom or 1.0) * LINE_HEIGHT / height
    positions = {name: log(value) if wide else value for name, value in places.items()}

    def first(bundle: Sequence[str]) -> float:
        """The position of the lowest label of a bundle."""
        return sum(positions[name] for name in bundle) / len(bundle) - least * (len(bundle) - 1) / 2

    # Neighbours that would touch become a bundle, evenly spaced around the middle of its lines.
    bundles: list[list[str]] = []
    for name in sorted(positions, key=lambda name: positions[name]):
        bundles.append([name])
        while len(bundles) > 1 and first(bundles[-1]) - first(bundles[-2]) < least * len(bundles[-2]):
            bundles[-2:] = [bundles[-2] + bundles[-1]]
    moved = {name: first(bundle) + least * number for bundle in bundles for number, name in enumerate(bundle)}
    return {name: exp(at) if wide else at for name, at in moved.items()}
