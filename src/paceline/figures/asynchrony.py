"""What asynchrony loses per step and gains per second: steps to a target against staleness, and against steps/s."""

from collections.abc import Sequence

import altair

from paceline.analysis.batches.asynchrony import Asynchrony, Way, asynchronous_searches, describe_asynchrony
from paceline.analysis.rows import Row
from paceline.figures.base import (
    FAINT,
    INK,
    PALETTE,
    WIDE_SUBTITLE_CHARACTERS,
    Drawing,
    Figure,
    Value,
    colours,
    compose_chart,
    inline_data,
    wrap_lines,
)

WIDTH, HEIGHT = 380, 300
# Room around what is drawn, as a factor on logarithmic axes.
MARGIN = 1.25
# Where the axis of staleness has numbers.
PLACES = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500)
SOONER, LATER = PALETTE[2], PALETTE[1]


def applies(rows: Sequence[Row]) -> list[Asynchrony]:
    """Searches for a target with a synchronous strategy and an asynchronous one that came to it."""
    return asynchronous_searches(rows)


def draw(rows: Sequence[Row]) -> altair.TopLevelMixin:
    """Two panels per search."""
    searches = applies(rows)
    how = [
        "Each dot has the learning rate with which it came to the target in the fewest steps; bars reach over seeds",
        "Left: staleness is the mean number of steps of others that a gradient knows nothing of, counted in the runs "
        "or as the settings have it",
        "Right: below the diagonal the faster steps make up for being more",
    ]
    shown = [row for search in searches for row in search.rows]
    panels = [_pair(search) for search in searches]
    return compose_chart(Drawing(panels), shown, "What asynchrony gains and loses", how)


def _pair(search: Asynchrony) -> altair.HConcatChart:
    ways = (search.baseline, *search.ways)
    names = list(dict.fromkeys(map(_series, ways)))
    title = altair.TitleParams(
        search.title, subtitle=wrap_lines(" ".join(describe_asynchrony(search)), WIDE_SUBTITLE_CHARACTERS)
    )
    values = [_value(search, way) for way in ways]
    return altair.hconcat(_losses(search, values, names), _gains(values, names), spacing=50).properties(title=title)


def _series(way: Way) -> str:
    """The strategy, with the knobs whose values its dots are labelled with."""
    return " by ".join([way.strategy, *([", ".join(knob for knob, _ in way.knobs)] if way.knobs else [])])


def _value(search: Asynchrony, way: Way) -> Value:
    return {
        "series": _series(way), "way": way.name, "label": " ".join(str(value) for _, value in way.knobs),
        "staleness": way.staleness, "steps": way.middle_steps, "low": min(way.steps), "high": max(way.steps),
        "rate": way.rate, "speed": search.speed(way), "more": search.more_steps(way), "seconds": way.seconds,
    }  # fmt: skip


def _losses(search: Asynchrony, values: Sequence[Value], names: Sequence[str]) -> altair.LayerChart:
    """Steps to the target against staleness, with those of the synchronous strategy as a line."""
    known = [value for value in values if value["staleness"] is not None]
    lowest, highest = min(value["low"] for value in known), max(value["high"] for value in known)
    # Logarithmic but near zero, which synchronous strategies have.
    scale = altair.Scale(type="symlog", constant=1, nice=False)
    x = altair.X("staleness:Q", title="staleness, steps of others", scale=scale, axis=altair.Axis(values=[*PLACES]))
    title = f"steps to {search.target}"
    y = altair.Y("steps:Q", title=title,
                 scale=altair.Scale(type="log", nice=False, domain=[lowest / MARGIN, highest * MARGIN]))  # fmt: skip
    base = altair.Chart(inline_data(known)).encode(x=x, color=colours(names, legend=altair.Legend(orient="top")))
    even = altair.Chart(inline_data([{"steps": search.baseline.middle_steps}]))
    return altair.layer(
        even.mark_rule(strokeDash=[5, 4], color=INK).encode(y=y),
        base.mark_line(strokeWidth=2).encode(y=y),
        base.mark_rule(strokeWidth=1.2, opacity=0.6).encode(y=altair.Y("low:Q", title=title), y2="high:Q"),
        base.mark_point(size=70, filled=True, opacity=1).encode(y=y, tooltip=_tooltip()),
        base.mark_text(dy=-12, fontSize=11).encode(y=y, text="label:N"),
    ).properties(width=WIDTH, height=HEIGHT, title="Lost per step")


def _gains(values: Sequence[Value], names: Sequence[str]) -> altair.LayerChart:
    """Steps to the target against steps per second, both as multiples of the synchronous strategy's."""
    ends = [min(min(value["speed"], value["more"]) for value in values) / MARGIN,
            max(max(value["speed"], value["more"]) for value in values) * MARGIN]  # fmt: skip
    scale = altair.Scale(type="log", nice=False, domain=ends)
    x = altair.X("speed:Q", title="steps/s, times those of the synchronous", scale=scale)
    y = altair.Y("more:Q", title="steps to the target, times", scale=scale)
    corners = altair.Chart(inline_data([{"speed": end, "more": end} for end in ends]))
    base = altair.Chart(inline_data(values)).encode(x=x, y=y, color=colours(names, legend=None))
    words = altair.Chart(inline_data([
        {"speed": ends[1], "more": ends[0], "text": "sooner", "colour": SOONER},
        {"speed": ends[0], "more": ends[1], "text": "later", "colour": LATER},
    ]))  # fmt: skip
    sides = [
        words.transform_filter(altair.FieldEqualPredicate(field="text", equal=text))
        .mark_text(fontSize=13, fontWeight="bold", color=colour, align=align, baseline=baseline, dx=dx, dy=dy)
        .encode(x=x, y=y, text="text:N")
        for text, colour, align, baseline, dx, dy in (
            ("sooner", SOONER, "right", "bottom", -8, -6),
            ("later", LATER, "left", "top", 8, 6),
        )
    ]
    area = [
        corners.mark_area(opacity=0.08, color=colour).encode(x=x, y=y, y2=altair.datum(end))
        for colour, end in ((SOONER, ends[0]), (LATER, ends[1]))
    ]
    return altair.layer(
        *area,
        corners.mark_line(strokeDash=[5, 4], color=FAINT).encode(x=x, y=y),
        *sides,
        base.mark_line(strokeWidth=1, opacity=0.5).encode(order="staleness:Q"),
        base.mark_point(size=70, filled=True, opacity=1).encode(tooltip=_tooltip()),
        base.mark_text(dx=8, dy=-8, align="left", fontSize=11).encode(text="label:N"),
    ).properties(width=WIDTH, height=HEIGHT, title="Gained per second")


def _tooltip() -> list[altair.Tooltip]:
    formats = {"staleness": ".1f", "steps": ",.0f", "rate": "g", "speed": ".2f", "more": ".2f", "seconds": ".2f"}
    return [altair.Tooltip("way:N"), *(altair.Tooltip(f"{name}:Q", format=form) for name, form in formats.items())]


FIGURE = Figure("asynchrony", "What does asynchrony gain per second and lose per step?", applies, draw, place=14)
