"""Training loss against steps: that synchronous strategies learn the same, and how asynchronous ones differ."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import altair

from paceline.analysis.convergence import is_synchronous
from paceline.analysis.curves import agreement, curve
from paceline.analysis.factors import settings_by_size
from paceline.analysis.labels import series_name, varying_within
from paceline.analysis.rows import Row
from paceline.figures.base import (
    MOST_SETTINGS,
    PALETTE,
    PANEL_HEIGHT,
    PANEL_WIDTH,
    SUBTITLE_CHARACTERS,
    Drawing,
    Figure,
    compose_chart,
    inline_data,
    wrap_lines,
)
from paceline.strategies import strategy_of_stored
from paceline.units import format_count

WIDEST, THINNEST = 8.0, 1.8
KINDS = ("synchronous", "asynchronous")
LEAST_SHOWN = 1e-4
# One dash as long as any picture: short ones without gaps between them show seams.
SOLID = [10_000, 0]


def applies(rows: Sequence[Row]) -> bool:
    """Two or more runs that have losses."""
    return sum(bool(row.losses) for row in rows) >= 2


def draw(rows: Sequence[Row]) -> altair.TopLevelMixin:
    """A panel per setting, a line per run; colours are frameworks, dashes are asynchronous strategies."""
    trained = [row for row in rows if row.losses]
    groups, frameworks = settings_by_size(trained), list(dict.fromkeys(map(_framework, trained)))
    varying = varying_within(groups.values())
    comparable = {title: members for title, members in groups.items() if applies(members)} or groups
    fullest = sorted(comparable, key=lambda title: (-len(comparable[title]), -len(comparable[title][0].losses)))[
        :MOST_SETTINGS
    ]
    panels = [_panel(title, comparable[title], varying, frameworks) for title in comparable if title in fullest]
    how = ["A line per run; dashes are asynchronous strategies"] if _has_both(trained) else ["A line per run"]
    how += (
        [f"The {MOST_SETTINGS} of {len(comparable)} settings with most runs"] if len(comparable) > MOST_SETTINGS else []
    )
    return compose_chart(
        Drawing(panels), [row for title in fullest for row in comparable[title]], "Training loss, step by step", how
    )


def _framework(row: Row) -> str:
    chosen = strategy_of_stored(row.spec.strategy)
    return str(chosen.framework or chosen.name) if chosen else row.spec.strategy


def _panel(title: str, rows: list[Row], varying: list[str], frameworks: list[str]) -> altair.TopLevelMixin:
    # The last to be drawn is the thinnest, so that all of a bundle can be seen.
    ordered = sorted(rows, key=lambda row: (not is_synchronous(row.spec), frameworks.index(_framework(row))))
    lines = [
        _lines(list(alike), varying, frameworks, _has_both(rows)).mark_line(opacity=1, strokeWidth=width)
        for width, alike in groupby(ordered, key=lambda row: _width(row, frameworks))
    ]
    return altair.layer(*lines).properties(
        width=PANEL_WIDTH, height=PANEL_HEIGHT,
        title=altair.TitleParams(title, subtitle=wrap_lines(_subtitle(rows), SUBTITLE_CHARACTERS)),
    )  # fmt: skip


def _lines(rows: Sequence[Row], varying: list[str], frameworks: list[str], both: bool) -> altair.Chart:
    return altair.Chart(inline_data(point for row in rows for point in _points(row, varying))).encode(
        x=altair.X("step:Q", title="optimizer step", axis=altair.Axis(format="d", tickMinStep=1)),
        y=altair.Y("loss:Q", title="training loss", scale=altair.Scale(zero=False)),
        color=altair.Color("framework:N", title=None, legend=altair.Legend(orient="top"), scale=altair.Scale(
            domain=frameworks, range=list(PALETTE[: len(frameworks)]))),
        strokeDash=altair.StrokeDash("kind:N", title=None, legend=altair.Legend(orient="top") if both else None,
                                     scale=altair.Scale(domain=list(KINDS), range=[SOLID, [5, 3]])),
        detail="series:N",
        tooltip=[f"{name}:N" for name in ("series", "step", "loss")],
    )  # fmt: skip


def _width(row: Row, frameworks: list[str]) -> float:
    if not is_synchronous(row.spec):
        return THINNEST
    return WIDEST - (WIDEST - THINNEST) * frameworks.index(_framework(row)) / max(1, len(frameworks) - 1)


def _points(row: Row, varying: list[str]) -> list[dict[str, Any]]:
    shared = {
        "series": f"{series_name(row, varying)} x{row.spec.workers}",
        "framework": _framework(row),
        "kind": KINDS[not is_synchronous(row.spec)],
    }
    return [{**shared, "step": step, "loss": loss} for step, loss in curve(row.losses)]


def _has_both(rows: Sequence[Row]) -> bool:
    return len({is_synchronous(row.spec) for row in rows}) > 1


def _subtitle(rows: Sequence[Row]) -> str:
    agreed = agreement(rows)
    if agreed is None and any(row.own_order for row in rows):
        return "a line per run; their data came in an order of its own, so that lines need not coincide"
    if agreed is None:
        return "a line per run"
    largest = f"{agreed.largest:.2%}" if agreed.largest >= LEAST_SHOWN else f"{LEAST_SHOWN:.2%}"
    return (
        f"{format_count(agreed.compared, 'synchronous run')} within {largest} of {agreed.reference} "
        f"in each of {agreed.steps} steps; where lines coincide, thin ones lie on wide ones"
    )


FIGURE = Figure("losses", "Do they all learn the same?", applies, draw, place=30)
