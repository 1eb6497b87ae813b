"""A quantity against workers, a panel per strategy, a line per level of a factor: Ramkeesoon's figures 5a to 5e."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import altair

from paceline.analysis.epochs import EpochSummary
from paceline.analysis.factors import BATCH, DATA, MODEL, NO_FACTOR, Factor, groups_varying, with_enough_levels
from paceline.analysis.labels import series_name, varying_fields
from paceline.analysis.rows import Row
from paceline.analysis.statistics import Band
from paceline.figures.base import (
    MOST_SETTINGS,
    SMALL_HEIGHT,
    SMALL_SUBTITLE_CHARACTERS,
    SMALL_WIDTH,
    Figure,
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
    line_labels,
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

    def draw(self, rows: Sequence[Row]) -> altair.TopLevelMixin:
        """Draws the rows in this form."""
        usable = self._usable(rows)
        shown = [row for members in usable.values() for row in members]
        knobs = [name for name in varying_fields(shown) if name.startswith("knobs.")]
        values = {title: _values(members, self, knobs) for title, members in usable.items()}
        everything = [value for members in values.values() for value in members]
        wide = is_wide([value["value"] for value in values[fullest(values)]])
        names = [name for _, name in sorted({(value["order"], value["series"]) for value in everything})]
        kinds = _fastest_panels(everything)
        shared = wide or len(values) == 1 or len(values) > MOST_SETTINGS
        makers = [partial(_panel, name=name, form=self, names=names, wide=wide, shared=shared) for name in kinds]
        drawing = per_setting(values, *makers)
        how = [self.lines, f"Dots: median of repeats, {RANGE_NOTE}", *oversubscribed_notes(shown)]
        how += ["Logarithmic axis"] if wide else []
        left_out = len({value["panel"] for value in everything}) - len(kinds)
        how += [f"The {MOST_PANELS} fastest; {left_out} more are in the table"] if left_out else []
        # Panels of one setting have one axis; rates of other settings may be far from theirs.
        share = ("y",) if shared else ()
        return compose_chart(drawing, shown, self.title, how, columns=min(COLUMNS, len(kinds)), share=share)

    def figure(self, name: str, question: str, place: int) -> Figure:
        """The figure with this name."""

        def applies(rows: Sequence[Row]) -> object:
            return self._usable(rows)

        what = f"two levels of {self.factor.name} size" if self.by_level else "two epochs"
        applies.__doc__ = f"Settings in which one strategy has {what} and two worker counts, all else the same."
        return Figure(name, question, applies, self.draw, place)

    def _usable(self, rows: Sequence[Row]) -> dict[str, list[Row]]:
        levels = 2 if self.by_level else 1
        return {
            title: usable
            for title, members in groups_varying(rows, self.factor).items()
            if (usable := with_enough_levels(list(filter(self.points, members)), self.factor, levels))
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
    fastest = sorted(best, key=lambda name: -best[name])[:MOST_PANELS]
    return [name for name in best if name in fastest]


def _panel(
    base: altair.Chart, setting: str, name: str, form: Form, names: Sequence[str], wide: bool, shared: bool
) -> altair.LayerChart | None:
    if all(value["panel"] != name for value in base.data.values):
        return None
    scale = altair.Scale(type="log", nice=False) if wide else altair.Scale(zero=True)
    if not shared:
        scale = altair.Scale(zero=True, nice=True, domainMax=max(value["high"] for value in base.data.values))
    y = altair.Y("value:Q", title=form.axis, scale=scale)
    base = base.transform_filter(altair.FieldEqualPredicate(field="panel", equal=name))
    base = base.encode(x=workers_axis(), color=colours(names, legend=None))
    line = base.mark_line(strokeWidth=2).encode(y=y)
    dots = base.mark_point(size=60, filled=True, opacity=1).encode(
        y=y, shape=machine_shape(),
        tooltip=["panel:N", "series:N", "workers:O", altair.Tooltip("value:Q", format=",.4~g"), "runs:Q", "machine:N"],
    )  # fmt: skip
    labels = line_labels(base, "label_at", "series", scale)
    title = altair.TitleParams(name, subtitle=wrap_lines(setting, SMALL_SUBTITLE_CHARACTERS), subtitleFontSize=11)
    layers = altair.layer(line, *interval(base, "low", "high"), dots, labels)
    return layers.properties(width=SMALL_WIDTH, height=SMALL_HEIGHT, title=title)


def _by_level(factor: Factor, value: Callable[[EpochSummary], Band]) -> Callable[[Row], Sequence[Line]]:
    """A function that gives a row one point, on the line of its level: its second epoch, free of first-epoch costs."""

    def points(row: Row) -> Sequence[Line]:
        level = factor.level(row)
        return [(factor.label(level), level, value(row.epochs[1]))] if len(row.epochs) > 1 else []

    return points


def _rate(epoch: EpochSummary) -> Band:
    return epoch.samples_per_second


def _first_two_epochs(row: Row) -> Sequence[Line]:
    if len(row.epochs) < 2:
        return []
    return [("first", 0.0, row.epochs[0].samples_per_second), ("second", 1.0, row.epochs[1].samples_per_second)]


RATE, COPIES = "samples/s, second epoch", "Lines: the data so many times over"
BATCHES = "Lines: batch (of all workers in strong scaling, of each in weak scaling)"
FIRST = "Lines: epoch; the first carries compiling, tracing and filling of pools"
FIGURES = (
    Form(
        "Samples per second by model size, second epoch", RATE, "Lines: parameters of the model", MODEL,
        _by_level(MODEL, _rate),
    ).figure("model-size", "Do larger models scale better?", place=20),
    Form(
        "Samples per second by batch size, second epoch", RATE, BATCHES, BATCH, _by_level(BATCH, _rate)
    ).figure("batch-size", "Do larger batches scale better?", place=21),
    Form(
        "Seconds of the second epoch by data size", "seconds, second epoch", COPIES, DATA,
        _by_level(DATA, lambda epoch: epoch.seconds),
    ).figure("data-seconds", "How much time do workers save on more data?", place=22),
    Form(
        "Samples per second of the first epoch and of the second", "samples/s", FIRST, NO_FACTOR, _first_two_epochs,
        by_level=False,
    ).figure("first-epoch", "What does the first epoch cost?", place=23),
    Form(
        "Samples per second by data size, second epoch", RATE, COPIES, DATA, _by_level(DATA, _rate)
    ).figure("data-size", "Does more data change the speed?", place=24),
)  # fmt: skip
