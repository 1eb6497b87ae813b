"""Samples per second over workers and batch: which combination is fastest."""

from collections.abc import Sequence
from functools import partial

import altair

from paceline.analysis.factors import BATCH, groups_varying, with_enough_levels
from paceline.analysis.labels import strategies_of
from paceline.analysis.rows import Row
from paceline.figures.base import SMALL_SUBTITLE_CHARACTERS, Figure, Value, compose_chart, per_setting, wrap_lines
from paceline.figures.marks import machine_state, oversubscribed_notes
from paceline.units import format_rate

CELL_WIDTH, CELL_HEIGHT = 74, 38
# How far the rate and its interval are written from the middle of a cell, in pixels.
APART = 8
COLUMNS = 3
# In colours that a dark page leaves as they are: they stand on cells, not on the page.
# Cells darker than this share of the fastest have light words.
DARK_FROM = 0.55


def draw(rows: Sequence[Row]) -> altair.TopLevelMixin:
    """A panel per strategy, a cell per worker count and batch, with its number."""
    usable = _usable(rows)
    names = strategies_of([row for members in usable.values() for row in members])
    values = {title: _values(members) for title, members in usable.items()}
    shown = [row for members in usable.values() for row in members]
    # The same rows and columns in every panel, also where a study is not finished.
    counts = sorted({row.spec.workers for row in shown})
    batches = sorted({int(BATCH.level(row)) for row in shown}, reverse=True)
    lift = APART if any(row.runs > 1 for row in shown) else 0
    drawing = per_setting(
        values, *(partial(_panel, name=name, counts=counts, batches=batches, lift=lift) for name in names)
    )
    how = ["Darker is faster; all panels share the scale"]
    if lift:
        how.append("Below each rate: half the range of its repeats")
    how += oversubscribed_notes(shown, "Star")
    return compose_chart(
        drawing, shown, "Samples per second over workers and batch, last epoch", how,
        columns=min(COLUMNS, len(names)),
    )  # fmt: skip


def _usable(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Settings in which one strategy ran with at least two batches and two worker counts."""
    return {
        title: usable
        for title, members in groups_varying(rows, BATCH).items()
        if (usable := with_enough_levels(members, BATCH))
    }


def _values(rows: list[Row]) -> list[Value]:
    fastest = max(row.samples_per_second or 0.0 for row in rows)
    return [
        {
            "strategy": row.spec.strategy, "workers": row.spec.workers, "batch": int(BATCH.level(row)),
            "rate": row.samples_per_second, "share": (row.samples_per_second or 0.0) / fastest,
            "label": format_rate(row.samples_per_second or 0.0) + ("*" if row.oversubscribed else ""),
            "range": _range(row), "machine": machine_state(row),
        }
        for row in rows
    ]  # fmt: skip


def _range(row: Row) -> str:
    """Half the range of the repeats in per cent of their median; empty with one run."""
    rate, low, high = row.samples_per_second, row.samples_per_second_low, row.samples_per_second_high
    return f"± {(high - low) / 2 / rate:.0%}" if row.runs > 1 and rate and low is not None and high is not None else ""


def _panel(
    base: altair.Chart, title: str, name: str, counts: Sequence[int], batches: Sequence[int], lift: int
) -> altair.LayerChart:
    quiet = altair.Axis(labelAngle=0, domain=False, ticks=False)
    base = base.transform_filter(altair.FieldEqualPredicate(field="strategy", equal=name)).encode(
        x=altair.X("workers:O", title="workers", axis=quiet, scale=altair.Scale(domain=list(counts))),
        y=altair.Y("batch:O", title="batch", axis=quiet, scale=altair.Scale(domain=list(batches))),
    )
    cells = base.mark_rect().encode(
        color=altair.Color("share:Q", legend=None, scale=altair.Scale(scheme="blues", domain=[0, 1])),
        tooltip=["strategy:N", "workers:O", "batch:O", altair.Tooltip("rate:Q", format=",.0f"), "machine:N"],
    )
    ink = altair.condition(f"datum.share > {DARK_FROM}", altair.value("#fefefe"), altair.value("#111111"))
    words = base.mark_text(fontSize=12, dy=-lift).encode(text="label:N", color=ink)
    ranges = base.mark_text(fontSize=10, dy=lift).encode(text="range:N", color=ink)
    heading = altair.TitleParams(name, subtitle=wrap_lines(title, SMALL_SUBTITLE_CHARACTERS), subtitleFontSize=11)
    return altair.layer(cells, words, ranges).properties(
        width={"step": CELL_WIDTH}, height={"step": CELL_HEIGHT}, title=heading
    )


FIGURE = Figure("heat-map", "Which workers and batch go together?", _usable, draw, place=9)
