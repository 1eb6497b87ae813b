"""Accuracy and loss against epochs and against seconds: whether more workers learn as well, and sooner."""

from collections.abc import Sequence
from functools import partial

import altair

from paceline.analysis.epochs import EpochSummary
from paceline.analysis.factors import settings_where
from paceline.analysis.labels import series_name, varying_within
from paceline.analysis.rows import Row
from paceline.analysis.statistics import Band
from paceline.figures.base import PALETTE, SOFT, Figure, Value, colours, compose_chart, per_setting
from paceline.units import format_percent

WIDTH, HEIGHT = 330, 200
# Two epochs are two points, not a curve.
LEAST_EPOCHS = 3
WIDEST, THINNEST = 6.0, 1.6
TARGET = "target"
QUANTITIES = {"accuracy": ("test accuracy", ".0%"), "loss": ("training loss", "~g")}
AXES = {"epoch": "epoch", "seconds": "seconds of training"}


def draw(rows: Sequence[Row]) -> altair.TopLevelMixin:
    """Four panels: accuracy above, loss below; epochs on the left, seconds on the right."""
    usable = _usable(rows)
    shown = [row for members in usable.values() for row in members]
    varying = varying_within(usable.values())
    names = list(dict.fromkeys(_name(row, varying) for row in shown))
    values = {title: _values(members, varying) for title, members in usable.items()}
    kinds = [partial(_panel, names=names, quantity=quantity, axis=axis) for quantity in QUANTITIES for axis in AXES]
    drawing = per_setting(values, *kinds)
    how = [
        "Lines: median of repeats; shaded: lowest to highest; where lines coincide, thin ones lie on wide ones",
        "Seconds are training only, without evaluation",
    ]
    targets = dict.fromkeys(row.convergence.target_accuracy for row in shown if row.convergence.target_accuracy)
    how += [f"Dotted: the target, {format_percent(target)}" for target in targets if target]
    how += [f"Grey: all but {len(PALETTE)}"] if len(names) > len(PALETTE) else []
    return compose_chart(drawing, shown, "Accuracy and loss while training", how, columns=2)


def _usable(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Settings in which runs were long enough to have curves."""
    return settings_where(rows, lambda row: len(row.epochs) >= LEAST_EPOCHS and row.epochs[-1].test_accuracy)


def _name(row: Row, varying: Sequence[str]) -> str:
    return f"{series_name(row, varying)} x{row.spec.workers}"


def _values(rows: list[Row], varying: Sequence[str]) -> list[Value]:
    points = [_point(epoch, _name(row, varying)) for row in rows for epoch in row.epochs]
    target = rows[0].convergence.target_accuracy
    return points + ([{"series": TARGET, "accuracy": target}] if target else [])


def _point(epoch: EpochSummary, series: str) -> Value:
    return {
        "series": series, "epoch": epoch.number, "seconds": epoch.elapsed_seconds.median,
        **_fields("accuracy", epoch.test_accuracy), **_fields("loss", epoch.train_loss),
    }  # fmt: skip


def _widths(count: int) -> list[float]:
    """Later lines are thinner, so that all of a bundle can be seen."""
    return [WIDEST - (WIDEST - THINNEST) * place / max(1, count - 1) for place in range(count)]


def _fields(name: str, band: Band | None) -> Value:
    return {} if band is None else {name: band.median, f"{name}_low": band.low, f"{name}_high": band.high}


def _panel(base: altair.Chart, title: str, names: Sequence[str], quantity: str, axis: str) -> altair.LayerChart:
    words, form = QUANTITIES[quantity]
    number = altair.Axis(format="d", tickMinStep=1) if axis == "epoch" else altair.Axis()
    x = altair.X(f"{axis}:Q", title=AXES[axis], axis=number, scale=altair.Scale(zero=False, nice=False))
    y = altair.Y(f"{quantity}:Q", title=words, axis=altair.Axis(format=form), scale=altair.Scale(zero=False))
    first = (quantity, axis) == ("accuracy", "epoch")
    colour = colours(names, legend=altair.Legend(orient="top", columns=2, symbolOpacity=1) if first else None)
    target = base.transform_filter(f"datum.series == '{TARGET}'").mark_rule(strokeDash=[2, 3], color=SOFT)
    base = base.transform_filter(f"datum.series != '{TARGET}'").encode(x=x, color=colour)
    band = base.mark_area(opacity=0.18).encode(y=altair.Y(f"{quantity}_low:Q"), y2=f"{quantity}_high:Q")
    widths = altair.Scale(type="ordinal", domain=list(names), range=_widths(len(names)))
    line = base.mark_line().encode(
        y=y,
        strokeWidth=altair.StrokeWidth("series:N", legend=None, scale=widths),
        tooltip=["series:N", "epoch:Q", altair.Tooltip("seconds:Q", format=".3~g"),
                      altair.Tooltip(f"{quantity}:Q", format=".4~g")],
    )  # fmt: skip
    layers = [band, line, *([target.encode(y=y)] if quantity == "accuracy" else [])]
    return altair.layer(*layers).properties(
        width=WIDTH, height=HEIGHT, title=altair.TitleParams(title if first else "")
    )


FIGURE = Figure("learning", "Do more workers learn as well, and sooner?", _usable, draw, place=4)
