"""Real against theoretical scaling: speed-up with its share of the ideal, and training time, beside published ones."""

from collections.abc import Sequence
from functools import partial

import altair

from paceline.analysis.labels import groups, series_by_speed, series_name, varying_fields
from paceline.analysis.published import published_beside
from paceline.analysis.rows import Row
from paceline.figures.base import (
    PALETTE,
    PUBLISHED,
    SMALL_HEIGHT,
    SOFT,
    Figure,
    Value,
    colours,
    finished,
    per_setting,
)
from paceline.figures.marks import RANGE_NOTE, crowded_notes, interval, kept_apart, machine, machine_shape, workers_axis
from paceline.units import format_percent, format_seconds

WIDTH = 330
THEORY = "theoretical"
# The panels: the quantity, its axis, how numbers on it are written.
SPEEDUP, TIME = "speedup", "time"
AXES = {SPEEDUP: ("times one worker", ".1f"), TIME: ("training time, one worker = 100 %", ".0%")}


def applies(rows: Sequence[Row]) -> bool:
    """When one strategy has several workers and one worker to compare them with."""
    return bool(_usable(rows))


def draw(rows: Sequence[Row]) -> altair.TopLevelMixin:
    """Two panels: speed-up against the line of the ideal, and time against its share."""
    usable = _usable(rows)
    shown = [row for own in usable.values() for row in own]
    varying = varying_fields(shown)
    names = series_by_speed(shown, varying)
    printed = {one.source: one for row in shown for one in published_beside(row.spec)}
    names += [f"{source} {PUBLISHED}" for source in printed]
    values = {title: _values(own, varying) for title, own in usable.items()}
    drawing = per_setting(
        values, partial(_panel, names=names, quantity=SPEEDUP), partial(_panel, names=names, quantity=TIME)
    )
    how = [
        "Dashed: theoretical scaling",
        RANGE_NOTE.capitalize(),
        "Per cent beside lines: share of it that is real",
        *crowded_notes(shown),
    ]
    how += [f"Published by {one.source}: 1 and 2 GPUs, {one.about}" for one in printed.values()]
    return finished(drawing, rows, "Real against theoretical scaling", how, columns=2)


def _usable(rows: Sequence[Row]) -> dict[str, list[Row]]:
    found = {title: [row for row in own if row.measured] for title, own in groups(rows, without={"shrunk"}).items()}
    known = {title: [row for row in own if row.speedup is not None] for title, own in found.items()}
    return {title: own for title, own in known.items() if any(row.spec.workers > 1 for row in own)}


def _values(rows: list[Row], varying: Sequence[str]) -> list[Value]:
    made = [_point(row, series_name(row, varying)) for row in rows]
    printed = {one.workers: one for row in rows for one in published_beside(row.spec)}
    made += [
        {
            "series": f"{one.source} {PUBLISHED}", "workers": one.workers, SPEEDUP: one.efficiency * one.workers,
            TIME: 1 / (one.efficiency * one.workers), "share": f"{one.efficiency * 100:.2f} %",
            "seconds": f"{one.seconds:.2f} s", "machine": "own cores",
        }
        for one in printed.values()
    ]  # fmt: skip
    counts = sorted({value["workers"] for value in made} | {1})
    theory = [{"series": THEORY, "workers": count, SPEEDUP: count, TIME: 1 / count} for count in counts]
    return _labelled(made) + theory


def _point(row: Row, series: str) -> Value:
    speedup = row.speedup or 0.0
    low, high = row.speedup_range or (speedup, speedup)
    seconds = row.epochs[-1].elapsed_seconds.middle if row.epochs else 0.0
    return {
        "series": series, "workers": row.spec.workers, SPEEDUP: speedup, TIME: 1 / speedup if speedup else None,
        "share": format_percent(speedup / row.spec.workers), "seconds": format_seconds(seconds),
        "machine": machine(row), f"{SPEEDUP}_low": low, f"{SPEEDUP}_high": high, f"{TIME}_low": 1 / (high or 1.0),
        f"{TIME}_high": 1 / (low or 1.0),
    }  # fmt: skip


def _labelled(values: list[Value]) -> list[Value]:
    """Each line's last point says what it is; lines of more workers than colours say nothing."""
    last = {value["series"]: value for value in sorted(values, key=lambda one: one["workers"])}
    told = dict(sorted(last.items(), key=lambda item: -item[1][SPEEDUP])[: len(PALETTE)])
    for quantity in (SPEEDUP, TIME):
        top = max(
            max(value["workers"] for value in values) if quantity == SPEEDUP else 1.0,
            *(value[quantity] for value in values),
        )
        for name, at in kept_apart(
            {name: one[quantity] for name, one in told.items()}, SMALL_HEIGHT, (0.0, top)
        ).items():
            end = last[name]
            alone = next(
                (value["seconds"] for value in values if value["series"] == name and value["workers"] == 1), ""
            )
            note = end["share"] if quantity == SPEEDUP else f"{alone} → {end['seconds']}" if alone else end["seconds"]
            end |= {f"{quantity}_label": f"{name} {note}", f"{quantity}_at": at}
    return values


def _panel(base: altair.Chart, title: str, names: Sequence[str], quantity: str) -> altair.LayerChart:
    words, form = AXES[quantity]
    y = altair.Y(f"{quantity}:Q", title=words, axis=altair.Axis(format=form), scale=altair.Scale(zero=True))
    x = workers_axis()
    theory = base.transform_filter(f"datum.series == '{THEORY}'")
    base = base.transform_filter(f"datum.series != '{THEORY}'").encode(x=x, color=colours(names, legend=None))
    dots = base.mark_point(size=65, filled=True, opacity=1).encode(
        y=y, shape=machine_shape(), tooltip=["series:N", "workers:O", altair.Tooltip(f"{quantity}:Q", format=".3~g"),
                                             "share:N", "seconds:N", "machine:N"],
    )  # fmt: skip
    labels = (
        base.transform_filter(f"isValid(datum.{quantity}_label)")
        .mark_text(align="left", dx=9, fontSize=11, fontWeight="bold")
        .encode(y=f"{quantity}_at:Q", text=f"{quantity}_label:N")
    )
    layers = altair.layer(
        theory.mark_line(strokeDash=[4, 4], strokeWidth=1.2, color=SOFT).encode(x=x, y=y),
        base.mark_line(strokeWidth=2).encode(y=y),
        *interval(base.transform_filter(f"isValid(datum.{quantity}_low)"), f"{quantity}_low", f"{quantity}_high"),
        dots,
        labels,
    )
    return layers.properties(
        width=WIDTH, height=SMALL_HEIGHT, title=altair.TitleParams(title if quantity == SPEEDUP else "")
    )


FIGURE = Figure("efficiency", "How much of the theoretical scaling is real?", applies, draw, place=3)
