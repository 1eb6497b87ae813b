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
    finished,
    fullest,
    per_setting,
    wrapped,
)
from paceline.figures.marks import (
    RANGE_NOTE,
    crowded_notes,
    interval,
    is_wide,
    kept_apart,
    machine,
    machine_shape,
    workers_axis,
)

COLUMNS = 3
MOST_PANELS = 9
# A line: how it is called, its place among the others, its value.
Line = tuple[str, float, Band]


@dataclass(frozen=True)
class Form:
    """What is drawn: the factor whose levels are lines, the lines that a row gives points to, the axis, the words."""

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


def levels(factor: Factor, value: Callable[[Row], Band | None]) -> Callable[[Row], Sequence[Line]]:
    """One point per row, on the line of its level."""

    def points(row: Row) -> Sequence[Line]:
        found = value(row)
        return [] if found is None else [(factor.label(factor.level(row)), factor.level(row), found)]

    return points


def applies_to(form: Form) -> Callable[[Sequence[Row]], bool]:
    """Whether some rows differ only in the factor and in workers."""

    def applies(rows: Sequence[Row]) -> bool:
        return bool(_usable(rows, form))

    what = f"two levels of {form.factor.name} size" if form.by_level else "two epochs"
    applies.__doc__ = f"When one strategy has {what} and two worker counts, all else the same."
    return applies


def drawn_as(form: Form) -> Callable[[Sequence[Row]], altair.TopLevelMixin]:
    """The figure of this form."""

    def draw(rows: Sequence[Row]) -> altair.TopLevelMixin:
        usable = _usable(rows, form)
        shown = [row for own in usable.values() for row in own]
        knobs = [name for name in varying_fields(shown) if name.startswith("knobs.")]
        values = {title: _values(own, form, knobs) for title, own in usable.items()}
        everything = [value for own in values.values() for value in own]
        wide = is_wide([value["value"] for value in values[fullest(values)]])
        names = [name for _, name in sorted({(value["order"], value["series"]) for value in everything})]
        kinds = _fastest_panels(everything)
        makers = [partial(_panel, name=name, form=form, names=names, wide=wide) for name in kinds]
        drawing = per_setting(values, *makers)
        how = [form.lines, f"Dots: median of repeats, {RANGE_NOTE}", *crowded_notes(shown)]
        how += ["Logarithmic axis"] if wide else []
        left_out = len({value["panel"] for value in everything}) - len(kinds)
        how += [f"The {MOST_PANELS} fastest; {left_out} more are in the table"] if left_out else []
        return finished(drawing, shown, form.title, how, columns=min(COLUMNS, len(kinds)), share=("y",))

    return draw


def _usable(rows: Sequence[Row], form: Form) -> dict[str, list[Row]]:
    wanted = 2 if form.by_level else 1
    found = {
        title: [row for row in own if form.points(row)] for title, own in groups_varying(rows, form.factor).items()
    }
    return {
        title: kept for title, own in found.items() if (kept := with_enough_levels(own, form.factor, levels=wanted))
    }


def _values(rows: Sequence[Row], form: Form, knobs: Sequence[str]) -> list[Value]:
    made = [
        {
            "panel": series_name(row, knobs), "workers": row.spec.workers, "series": series, "order": order,
            "value": band.median, "low": band.low, "high": band.high, "runs": row.runs, "machine": machine(row),
        }
        for row in rows
        for series, order, band in form.points(row)
    ]  # fmt: skip
    return _labelled(made)


def _labelled(values: list[Value]) -> list[Value]:
    """With a label at the last point of each line, kept apart from those of its panel."""
    every = [value["value"] for value in values]
    wide = is_wide(every)
    span = (min(every), max(every)) if wide else (0.0, max(every))
    labels: dict[tuple[str, str, int], float] = {}
    for panel in dict.fromkeys(value["panel"] for value in values):
        own = sorted((value for value in values if value["panel"] == panel), key=lambda one: one["workers"])
        last = {value["series"]: value for value in own}
        apart = kept_apart({name: one["value"] for name, one in last.items()}, SMALL_HEIGHT, span, wide)
        labels |= {(panel, name, last[name]["workers"]): at for name, at in apart.items()}
    return [{**value, "label_at": labels.get((value["panel"], value["series"], value["workers"]))} for value in values]


def _fastest_panels(values: Sequence[Value]) -> list[str]:
    """As many as can be looked at, in the order of the rows."""
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
    title = altair.TitleParams(name, subtitle=wrapped(setting, SMALL_SUBTITLE_CHARACTERS), subtitleFontSize=11)
    layers = altair.layer(line, *interval(base, "low", "high"), dots, labels)
    return layers.properties(width=SMALL_WIDTH, height=SMALL_HEIGHT, title=title)
