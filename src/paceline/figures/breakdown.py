"""Where the time of a step goes, rank by rank: computing, sending, waiting for slower ranks."""

from collections.abc import Sequence

import altair

from paceline.analysis.factors import settings_where
from paceline.analysis.labels import series_name, varying_fields
from paceline.analysis.rows import Row
from paceline.breakdown import PARTS, RankBreakdown
from paceline.figures.base import INK, OTHERS, PALETTE, SOFT, Figure, Value, compose_chart, per_setting
from paceline.figures.marks import bars_panel, interval, stacked_bars
from paceline.units import format_seconds

# Computing in blues and greens, what workers cost each other in warm colours.
COLOURS = {
    "input": PALETTE[5], "forward": PALETTE[0], "backward": PALETTE[2], "exposed": PALETTE[1], "waiting": PALETTE[4],
    "optimizer": PALETTE[3], "other": OTHERS,
}  # fmt: skip
NAMES = {"exposed": "exposed communication", "waiting": "waiting for slower ranks"}
MILLISECONDS = 1e3


def draw(rows: Sequence[Row]) -> altair.TopLevelMixin:
    """A stacked bar per rank; what transfer is hidden behind computation is written beside it."""
    values = {title: _values(members) for title, members in _usable(rows).items()}
    drawing = per_setting(values, _panel)
    slower = max(row.instrumentation_overhead or 0.0 for row in rows if row.breakdown)
    how = [
        "From instrumented runs, apart from the timed ones",
        f"Instrumented steps were up to {max(0.0, slower):.0%} longer than timed ones",
        "Lines at the ends: nine of ten steps lie between",
        "Exposed: a rank stands still for a transfer; hidden transfer runs behind computation and costs nothing",
    ]
    return compose_chart(
        drawing, [row for row in rows if row.breakdown], "Where the time of a step goes, rank by rank", how
    )


def _usable(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Instrumented runs (`--breakdown`)."""
    return settings_where(rows, lambda row: row.breakdown)


def _values(rows: list[Row]) -> list[Value]:
    varying = varying_fields(rows)
    return [
        value
        for row in rows
        for rank in row.breakdown
        for value in _parts(rank, f"{series_name(row, varying)} x{row.spec.workers}, rank {rank.rank}")
    ]


def _parts(rank: RankBreakdown, name: str) -> list[Value]:
    hidden = f", {format_seconds(rank.overlapped)} hidden" if rank.overlapped > 0 else ""
    label = f"{format_seconds(rank.step)}{hidden}"
    bars: list[Value] = []
    for place, part in enumerate(PARTS):
        milliseconds = getattr(rank, part) * MILLISECONDS
        share = milliseconds / MILLISECONDS / rank.step if rank.step else 0.0
        bars.append({"name": name, "part": NAMES.get(part, part), "place": place, "milliseconds": milliseconds,
                     "share": f"{share:.0%}"})  # fmt: skip
    low, high = (edge if edge is not None else rank.step for edge in (rank.step_low, rank.step_high))
    bars[-1] |= {"label": label, "low": low * MILLISECONDS, "high": high * MILLISECONDS}
    return bars


def _panel(base: altair.Chart, title: str) -> altair.LayerChart:
    parts = {NAMES.get(part, part): COLOURS[part] for part in PARTS}
    bars, ends = stacked_bars(base, "milliseconds", "milliseconds of a step", parts, 4, "share:N")
    labels = ends.mark_text(align="left", dx=6, color=SOFT).encode(x="high:Q", text="label:N")
    return bars_panel([bars, *interval(ends, "low", "high", across=True, color=altair.value(INK)), labels], title)


FIGURE = Figure("breakdown", "Where does the time go?", _usable, draw, place=5)
