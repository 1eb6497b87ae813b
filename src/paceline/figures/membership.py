"""Samples per second and loss over the time of a run, with departures and arrivals of workers marked."""

from collections.abc import Sequence

import altair

from paceline.analysis.labels import series_name, varying_fields
from paceline.analysis.rows import Row
from paceline.figures.base import FAINT, PALETTE, SOFT, Drawing, Figure, Value, compose_chart, inline_data

WIDTH, HEIGHT = 330, 150
# A line has no more points than this.
MOST_POINTS = 150
COLOURS = {"leave": PALETTE[1], "join": PALETTE[2], "trains": PALETTE[0]}
WORDS = {"leave": "a worker is killed", "join": "another is started", "trains": "it trains"}


def applies(rows: Sequence[Row]) -> list[Row]:
    """Runs in which workers left or joined."""
    return [row for row in rows if row.membership is not None]


def draw(rows: Sequence[Row]) -> altair.TopLevelMixin:
    """Two panels for each run, one above the other: samples per second on the left, the loss on the right."""
    changed = applies(rows)
    varying = varying_fields(changed)
    panels = [panel for row in changed for panel in _panels(row, f"{series_name(row, varying)} x{row.spec.workers}")]
    how = [
        f"Lines across: {', '.join(f'{WORDS[kind]} ({name})' for kind, name in _COLOUR_NAMES.items())}",
        "New samples only: what is made again after a restart does not count",
    ]
    return compose_chart(Drawing(panels), changed, "When workers leave and join", how, columns=2)


_COLOUR_NAMES = {"leave": "red", "join": "green", "trains": "blue"}


def _panels(row: Row, name: str) -> list[altair.LayerChart]:
    assert row.membership is not None
    rates: list[Value] = [{"series": name, "seconds": at, "rate": rate} for at, rate in row.membership.rates]
    size = -(-len(row.membership.losses) // MOST_POINTS) or 1
    losses: list[Value] = [{"series": name, "seconds": at, "loss": loss} for at, loss in row.membership.losses[::size]]
    end = float(max(value["seconds"] for value in (*rates, *losses)))
    return [
        _panel(rates, _marks(row, name), "rate", "samples/s", name, end).properties(width=WIDTH, height=HEIGHT),
        _panel(losses, _marks(row, name), "loss", "training loss", "", end).properties(width=WIDTH, height=HEIGHT),
    ]


def _marks(row: Row, name: str) -> list[Value]:
    """The moments to mark: each change, and when a newcomer trained."""
    assert row.membership is not None
    marks: list[Value] = []
    for change in row.membership.changes:
        marks.append({"series": name, "seconds": change.at_seconds, "change": change.kind})
        if change.until_training_seconds is not None:
            at = change.at_seconds + change.until_training_seconds
            marks.append({"series": name, "seconds": at, "change": "trains"})
    return marks


def _panel(
    values: Sequence[Value], marks: Sequence[Value], quantity: str, words: str, title: str, end: float
) -> altair.LayerChart:
    x = altair.X("seconds:Q", title="seconds from the first step", scale=altair.Scale(domain=[0, end], nice=False))
    y = altair.Y(f"{quantity}:Q", title=words, scale=altair.Scale(zero=quantity == "rate"))
    lines = altair.Chart(inline_data(values)).mark_line(
        color=SOFT, interpolate="step" if quantity == "rate" else "linear"
    )
    rules = altair.Chart(inline_data(marks)).mark_rule(strokeWidth=2)
    colour = altair.Color(
        "change:N", legend=None, scale=altair.Scale(domain=list(COLOURS), range=list(COLOURS.values()))
    )
    tooltip = ["series:N", altair.Tooltip("seconds:Q", format=".1f"), altair.Tooltip(f"{quantity}:Q", format=".4~g")]
    return altair.layer(
        lines.encode(x=x, y=y, tooltip=tooltip),
        rules.encode(x="seconds:Q", color=colour, tooltip=["change:N", altair.Tooltip("seconds:Q", format=".1f")]),
    ).properties(title=altair.TitleParams(title, color=FAINT if not title else SOFT))


FIGURE = Figure("membership", "What happens when workers leave and join?", applies, draw, place=10)
