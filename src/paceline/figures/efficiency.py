"""Real against theoretical scaling: speed-up with its share of the ideal, and training time, beside published ones."""

from collections.abc import Sequence
from functools import partial

import altair

from paceline.analysis.factors import settings_where
from paceline.analysis.labels import series_by_speed, series_name, varying_within
from paceline.analysis.rows import Row
from paceline.figures.base import (
    PALETTE,
    PUBLISHED,
    SMALL_HEIGHT,
    SOFT,
    Figure,
    Value,
    colours,
    compose_chart,
    per_setting,
)
from paceline.figures.marks import (
    OWN_CORES,
    RANGE_NOTE,
    interval,
    line_labels,
    machine_shape,
    machine_state,
    oversubscribed_notes,
    space_labels,
    workers_axis,
)
from paceline.units import format_percent, format_seconds

WIDTH = 330
# Bhilegaonkar, Hoskote, Nale, "Comparison & study of Distributed Deep Learning Training Techniques": TensorFlow
# MirroredStrategy, MNIST, 30 epochs, batch 1024 per GPU (59 and 30 steps an epoch), 1 against 2 GPUs.
SOURCE, ABOUT, LOCAL_BATCH = "Bhilegaonkar et al.", "30 epochs of 60,000 images, batch 1024 per GPU", 1024
# By workers: seconds of the whole training, and the share of ideal scaling.
PRINTED = {1: (109.47, 1.0), 2: (78.61, 0.6963)}
THEORY = "theoretical"
# The panels: the quantity, its axis, how numbers on it are written.
SPEEDUP, TIME = "speedup", "time"
AXES = {SPEEDUP: ("times one worker, last epoch", ".1f"), TIME: ("time of all epochs, one worker = 100 %", ".0%")}


def draw(rows: Sequence[Row]) -> altair.TopLevelMixin:
    """Two panels: speed-up of the last epoch against the ideal, and time of the whole training, as the paper has it."""
    usable = _usable(rows)
    shown = [row for members in usable.values() for row in members]
    varying = varying_within(usable.values())
    names = series_by_speed(shown, varying)
    printed = any(map(_beside_printed, shown))
    names += [f"{SOURCE} {PUBLISHED}"] if printed else []
    values = {title: _values(members, varying) for title, members in usable.items()}
    colour = colours(names, [{value["series"] for value in members} for members in values.values()], legend=None)
    drawing = per_setting(
        values, partial(_panel, colour=colour, quantity=SPEEDUP), partial(_panel, colour=colour, quantity=TIME)
    )
    how = [
        "Dashed: theoretical scaling",
        RANGE_NOTE.capitalize(),
        "Per cent beside lines: share of it that is real",
        *oversubscribed_notes(shown),
    ]
    how += [f"Published by {SOURCE}: 1 and 2 GPUs, {ABOUT}"] if printed else []
    return compose_chart(drawing, shown, "Real against theoretical scaling", how, columns=2)


def _usable(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Settings that have several workers, and one worker to compare them with."""
    return settings_where(
        rows,
        lambda row: row.measured and row.speedup is not None,
        lambda members: any(row.spec.workers > 1 for row in members),
    )


def _beside_printed(row: Row) -> bool:
    """Whether the run is on MNIST with the same local batch, whatever the machine and the length."""
    return row.spec.dataset in ("mnist", "mnist-5k") and row.spec.local_batch == LOCAL_BATCH


def _values(rows: list[Row], varying: Sequence[str]) -> list[Value]:
    points = [_point(row, rows, series_name(row, varying)) for row in rows]
    points += [
        {
            "series": f"{SOURCE} {PUBLISHED}", "workers": workers, "machine": OWN_CORES,
            "share_of_time": f"{efficiency * 100:.2f} %", "seconds": f"{seconds:.2f} s",
            TIME: 1 / (efficiency * workers),
        }
        for workers, (seconds, efficiency) in (PRINTED.items() if any(map(_beside_printed, rows)) else ())
    ]  # fmt: skip
    counts = sorted({value["workers"] for value in points} | {1})
    theory = [{"series": THEORY, "workers": count, SPEEDUP: count, TIME: 1 / count} for count in counts]
    return _labelled(points) + theory


def _point(row: Row, rows: Sequence[Row], series: str) -> Value:
    low, high = row.speedup_range or (row.speedup, row.speedup)
    value: Value = {
        "series": series, "workers": row.spec.workers, "machine": machine_state(row), SPEEDUP: row.speedup,
        f"{SPEEDUP}_low": low, f"{SPEEDUP}_high": high, "share": format_percent((row.speedup or 0) / row.spec.workers),
    }  # fmt: skip
    alone = next((other for other in rows if other.spec.workers == 1 and other.spec.strategy == row.baseline), None)
    if alone is not None and alone.epochs and row.epochs:
        elapsed, single = row.epochs[-1].elapsed_seconds, alone.epochs[-1].elapsed_seconds.median
        value |= {
            TIME: elapsed.median / single, f"{TIME}_low": elapsed.low / single, f"{TIME}_high": elapsed.high / single,
            "seconds": format_seconds(elapsed.median),
            "share_of_time": format_percent(single / elapsed.median / row.spec.workers),
        }  # fmt: skip
    return value


def _labelled(values: list[Value]) -> list[Value]:
    """Each line's last point says what it is; of more lines than colours only the fastest do."""
    for quantity in (SPEEDUP, TIME):
        points = [value for value in values if value.get(quantity) is not None]
        last = {value["series"]: value for value in sorted(points, key=lambda value: value["workers"])}
        several = [name for name in last if last[name]["workers"] > 1]
        # All lines begin where one worker is; a name there would lie on those that go on.
        last = {name: value for name, value in last.items() if name in several or not several}
        best = sorted(last, key=lambda name: last[name][quantity], reverse=quantity == SPEEDUP)[: len(PALETTE)]
        ideal = float(max(value["workers"] for value in values)) if quantity == SPEEDUP else 1.0
        ends = [end for value in points for end in (value[quantity], value.get(f"{quantity}_high")) if end is not None]
        top = max([ideal, *ends])
        apart = space_labels({name: last[name][quantity] for name in best}, SMALL_HEIGHT, (0.0, top))
        for name, at in apart.items():
            last[name] |= {f"{quantity}_at": at, f"{quantity}_label": _label(name, quantity, last[name], points)}
    return values


def _label(name: str, quantity: str, end: Value, values: Sequence[Value]) -> str:
    if quantity == SPEEDUP:
        return f"{name} {end['share']}"
    alone = [value["seconds"] for value in values if value["series"] == name and value["workers"] == 1]
    return f"{name} {' → '.join([*alone, end['seconds']])} ({end['share_of_time']})"


def _panel(base: altair.Chart, title: str, colour: altair.Color, quantity: str) -> altair.LayerChart | None:
    if all(value.get(quantity) is None for value in base.data.values if value["series"] != THEORY):
        return None
    words, form = AXES[quantity]
    y = altair.Y(f"{quantity}:Q", title=words, axis=altair.Axis(format=form), scale=altair.Scale(zero=True))
    x = workers_axis()
    theory = base.transform_filter(f"datum.series == '{THEORY}'")
    base = base.transform_filter(f"datum.series != '{THEORY}'").encode(x=x, color=colour)
    base = base.transform_filter(f"isValid(datum.{quantity})")
    dots = base.mark_point(size=65, filled=True, opacity=1).encode(
        y=y, shape=machine_shape(), tooltip=["series:N", "workers:O", altair.Tooltip(f"{quantity}:Q", format=".3~g"),
                                             "share:N", "share_of_time:N", "seconds:N", "machine:N"],
    )  # fmt: skip
    labels = line_labels(base, f"{quantity}_at", f"{quantity}_label")
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


FIGURE = Figure("efficiency", "How much of the theoretical scaling is real?", _usable, draw, place=3)
