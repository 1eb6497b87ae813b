"""Memory of each process above what its framework holds: its parts, and the measured peak."""

from collections.abc import Sequence

import altair

from paceline.analysis.factors import settings_where
from paceline.analysis.labels import series_name, varying_fields
from paceline.analysis.memory import RankMemory
from paceline.analysis.rows import Row
from paceline.figures.base import INK, OTHERS, PALETTE, Figure, Value, compose_chart, per_setting
from paceline.figures.marks import MOST_BARS, bar_notes, bars_panel, interval, stacked_bars
from paceline.units import format_bytes

MEGABYTE = 1e6
# The part, what to call it, its colour. What strategies hold by design is computed; the rest is measured.
PARTS = (
    ("parameter_bytes", "parameters", PALETTE[0]),
    ("optimizer_bytes", "optimizer state", PALETTE[3]),
    ("gradient_bytes", "gradients (computed)", PALETTE[1]),
    ("activation_bytes", "activations (computed)", PALETTE[2]),
)
REST = ("data, buffers, Python", OTHERS)
PARTS_OF_A_BAR = len(PARTS) + 1


def applies(rows: Sequence[Row]) -> bool:
    """Runs in which the memory of processes was measured."""
    return any(rank.most for row in rows for rank in row.memory)


def draw(rows: Sequence[Row]) -> altair.TopLevelMixin:
    """A stacked bar per process, with a mark at the measured peak."""
    settings = settings_where(rows, lambda row: row.memory)
    bars = {title: _values(members) for title, members in settings.items()}
    values = {title: _largest(members) for title, members in bars.items()}
    drawing = per_setting(values, _panel)
    how = [
        *bar_notes((len(members) // PARTS_OF_A_BAR for members in bars.values()), "that hold most"),
        "Upright mark: measured peak above what the framework holds after its import",
        "Thin line across it: lowest to highest repeat",
        "Parameters and optimizer state: measured tensors",
        "Gradients and activations: computed from what the strategy holds by design",
    ]
    return compose_chart(drawing, [row for row in rows if row.memory], "Memory of each process", how)


def _values(rows: list[Row]) -> list[Value]:
    varying = varying_fields(rows)
    bars: list[Value] = []
    for row in rows:
        name = f"{series_name(row, varying)} x{row.spec.workers}"
        bars += [
            value
            for rank in _distinct(row.memory)
            for value in _parts(rank, f"{name}, {_rank_names(rank, row.memory)}")
        ]
    return bars


def _largest(values: list[Value]) -> list[Value]:
    """The bars with the highest peaks, in the order in which they were."""
    peaks = {value["name"]: float(value["peak"]) for value in values if "peak" in value}
    largest = set(sorted(peaks, key=lambda name: -peaks[name])[:MOST_BARS])
    return [value for value in values if value["name"] in largest]


def _distinct(ranks: Sequence[RankMemory]) -> list[RankMemory]:
    """One rank for each role and amount of memory: ranks that hold the same share a bar."""
    distinct: dict[tuple[str, str], RankMemory] = {}
    for rank in ranks:
        distinct.setdefault((rank.role, f"{rank.most / MEGABYTE:.0f} {rank.parameter_bytes}"), rank)
    return list(distinct.values())


def _rank_names(rank: RankMemory, ranks: Sequence[RankMemory]) -> str:
    alike = [str(other.rank) for other in ranks if _distinct([rank, other]) == [rank]]
    return f"{rank.role} {', '.join(alike)}"


def _parts(rank: RankMemory, name: str) -> list[Value]:
    parts = [(words, getattr(rank, field) or 0.0) for field, words, _ in PARTS]
    rest = max(0.0, rank.most - sum(size for _, size in parts))
    bars = [
        {"name": name, "part": words, "place": place, "megabytes": size / MEGABYTE}
        for place, (words, size) in enumerate([*parts, (REST[0], rest)])
    ]
    low, high = rank.most_range
    end = max(high, rank.most, sum(size for _, size in parts))
    bars[-1] |= {"peak": rank.most / MEGABYTE, "label": format_bytes(rank.most), "end": end / MEGABYTE,
                 "low": low / MEGABYTE, "high": high / MEGABYTE}  # fmt: skip
    return bars


def _panel(base: altair.Chart, title: str) -> altair.LayerChart:
    parts = {words: colour for _, words, colour in PARTS} | dict([REST])
    bars, ends = stacked_bars(base, "megabytes", "MB above the framework's own", parts, 3)
    marks = ends.mark_tick(thickness=2.5, size=16, color=INK).encode(x="peak:Q")
    labels = ends.mark_text(align="left", dx=6).encode(x="end:Q", text="label:N")
    ranges = interval(ends, "low", "high", across=True, color=altair.value(INK))
    return bars_panel([bars, *ranges, marks, labels], title)


FIGURE = Figure("memory", "What does each process hold?", applies, draw, place=8)
