"""A quantity against workers, a panel per strategy, a line per level of a factor: five figures have this form."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import altair

from paceline.analysis.factors import Factor, groups_varying, with_enough_levels
from paceline.analysis.labels import series_name, varying_fields
from paceline.analysis.rows import Row
from paceline.analysis.statistics import Band
from paceline.figures.base import (
    SMALL_HEIGHT,
    SMALL_SUBTITLE_CHARACTERS,
    SMALL_WIDTH,
    Value,
    colours,
    compose_chart,
    fullest,
    per_setting,
    wrap_lines,
)
from paceline.figures.marks import (
    RANGE_NOTE,
    interval,
    is_wide,
    machine_shape,
    machine_state,
    oversubscribed_notes,
    space_labels,
    workers_axis,
)

COLUMNS = 3
MOST_PANELS = 9
# A point of a line: the name of the line, its place among the others, the value.
Line = tuple[str, float, Band]


@dataclass(frozen=True)
class Form:
    """One figure of this form: its title, its axis, the factor whose levels are lines, and the points of a row."""

    title: str
    axis: str
    lines: str
    factor: Factor
    points: Callable[[Row], Sequence[Line]]
    # Whether levels of the factor are the lines, and so at least two are needed.
    by_level: bool = True


def second_epoch_rate(row: Row) -> Band | None:
    """Samples per second of the second epoch, free of first-epoch costs."""
    return row.epochs[1].samples_per_second if len(row.epochs) > 1 else None


def level_points(factor: Factor, value: Callable[[Row], Band | None]) -> Callable[[Row], Sequence[Line]]:
    """A function that gives a row one point, on the line of its level."""

    def points(row: Row) -> Sequence[Line]:
        band = value(row)
        return [] if band is None else [(factor.label(factor.level(row)), factor.level(row), band)]

    return points


def applies_to(form: Form) -> Callable[[Sequence[Row]], bool]:
    """A function that says whether some rows differ only in the factor and in workers."""

    def applies(rows: Sequence[Row]) -> bool:
        return bool(_usable(rows, form))

    what = f"two levels of {form.factor.name} size" if form.by_level else "two epochs"
    applies.__doc__ = f"When one strategy has {what} and two worker counts, all else the same."
    return applies


def draw_as(form: Form) -> Callable[[Sequence[Row]], altair.TopLevelMixin]:
    """A function that draws rows in this form."""

    def draw(rows: Sequence[Row]) -> altair.TopLevelMixin:
        usable = _usable(rows, form)
        shown = [row for members in usable.values() for row in members]
        knobs = [name for name in varying_fields(shown) if name.startswith("knobs.")]
        values = {title: _values(members, form, knobs) for title, members in usable.items()}
        everything = [value for members in values.values() for value in members]
        wide = is_wide([value["value"] for value in values[fullest(values)]])
        names = [name for _, name in sorted({(value["order"], value["series"]) for value in everything})]
        kinds = _fastest_panels(everything)
        makers = [partial(_panel, name=name, form=form, names=names, wide=wide) for name in kinds]
        drawing = per_setting(values, *makers)
        how = [form.lines, f"Dots: median of repeats, {RANGE_NOTE}", *oversubscribed_notes(shown)]
        how += ["Logarithmic axis"] if wide else []
        left_out = len({value["panel"] for value in everything}) - len(kinds)
        how += [f"The {MOST_PANELS} fastest; {left_out} more are in the table"] if left_out else []
        return compose_chart(drawing, shown, form.title, how, columns=min(COLUMNS, len(kinds)), share=("y",))

    return draw


def _usable(rows: Sequence[Row], form: Form) -> dict[str, list[Row]]:
    wanted = 2 if form.by_level else 1
    groups = {
        title: [row for row in members if form.points(row)]
        for title, members in groups_varying(rows, form.factor).items()
    }
    return {
        title: kept
        for title, members in groups.items()
        if (kept := with_enough_levels(members, form.factor, levels=wanted))
    }


def _values(rows: Sequence[Row], form: Form, knobs: Sequence[str]) -> list[Value]:
    points = [
        {
            "panel": series_name(row, knobs), "workers": row.spec.workers, "series": series, "order": order,
            "value": band.median, "low": band.low, "high": band.high, "runs": row.runs, "machine": machine_state(row),
        }
        for row in rows
        for series, order, band in form.points(row)
    ]  # fmt: skip
    return _labelled(points)


def _labelled(values: list[Value]) -> list[Value]:
    """Adds a label to the last point of each line, spaced from the other labels of its panel."""
    every = [value["value"] for value in values]
    wide = is_wide(every)
    span = (min(every), max(every)) if wide else (0.0, max(every))
    labels: dict[tuple[str, str, int], float] = {}
    for panel in dict.fromkeys(value["panel"] for value in values):
        members = sorted((value for value in values if value["panel"] == panel), key=lambda value: value["workers"])
        last = {value["series"]: value for value in members}
        apart = space_labels({name: value["value"] for name, value in last.items()}, SMALL_HEIGHT, span, wide)
        labels |= {(panel, name, last[name]["workers"]): at for name, at in apart.items()}
    return [{**value, "label_at": labels.get((value["panel"], value["series"], value["workers"]))} for value in values]


def _fastest_panels(values: Sequence[Value]) -> list[str]:
    """The fastest panels, as many as a reader can compare, in the order of the rows."""
    best: dict[str, float] = {}
    for value in values:
        best[value["panel"]] = max(best.get(value["panel"], 0.0), value["value"])
    kept = sorted(best, key=lambda name: -best[name])[:MOST_PANELS]
    return [name for name in best if name in kept]


def _panel(
    base: altair.Chart, setting: str, name: str, form: Form, names: Sequence[str], wide: bool
) -> altair.LayerChart:
    scale = altair.Scale(type="log", nice=False) if wide else altair.Scale(zero=True)
    y = altair.Y("value:Q", title=form.axis, scale=scale)
    base = base.transform_filter(altair.FieldEqualPredicate(field="panel", equal=name))
    base = base.encode(x=workers_axis(), color=colours(names, legend=None))
    line = base.mark_line(strokeWidth=2).encode(y=y)
    dots = base.mark_point(size=60, filled=True, opacity=1).encode(
        y=y, shape=machine_shape(),
        tooltip=["panel:N", "series:N", "workers:O", altair.Tooltip("value:Q", format=",.4~g"), "runs:Q", "machine:N"],
    )  # fmt: skip
    labels = (
        base.transform_filter("isValid(datum.label_at)")
        .mark_text(align="left", dx=9, fontSize=11, fontWeight="bold")
        .encode(y=altair.Y("label_at:Q", scale=scale), text="series:N")
    )
    title = altair.TitleParams(name, subtitle=wrap_lines(setting, SMALL_SUBTITLE_CHARACTERS), subtitleFontSize=11)
    layers = altair.layer(line, *interval(base, "low", "high"), dots, labels)
    return layers.properties(width=SMALL_WIDTH, height=SMALL_HEIGHT, title=title)
