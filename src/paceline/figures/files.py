"""Figures as files: SVG, PNG and the numbers in them as CSV, without a network or a browser."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from paceline.analysis.frame import csv_text, same_columns
from paceline.analysis.rows import Row
from paceline.figures.base import Figure, Value
from paceline.figures.render import RENDERER, vega_lite

# Fields that only place labels.
_LAYOUT_FIELDS = ("label_at", "speedup_at", "time_at", "order", "place")


def shown_values(spec: dict[str, Any]) -> list[Value]:
    """Every value that a Vega-Lite chart shows, each once, all with the same columns."""
    distinct: dict[str, Value] = {}
    for value in _inline(spec):
        shown = {name: inner for name, inner in value.items() if name not in _LAYOUT_FIELDS}
        distinct.setdefault(repr(sorted(shown.items(), key=str)), shown)
    return same_columns(list(distinct.values()))


def _inline(node: Any) -> Iterator[Value]:
    if isinstance(node, dict):
        data = node.get("data")
        if isinstance(data, dict) and isinstance(data.get("values"), list):
            yield from data["values"]
        for name, inner in node.items():
            if name != "data":
                yield from _inline(inner)
    elif isinstance(node, list):
        for inner in node:
            yield from _inline(inner)


def write_figure(figure: Figure, rows: Sequence[Row], folder: Path) -> list[Path]:
    """Writes the figure as SVG, PNG and CSV into the folder and returns the paths."""
    spec = vega_lite(figure, rows)
    folder.mkdir(parents=True, exist_ok=True)
    svg, png, table = (folder / f"{figure.name}.{kind}" for kind in ("svg", "png", "csv"))
    svg.write_bytes(RENDERER.draw("svg", spec))
    png.write_bytes(RENDERER.draw("png", spec))
    table.write_text(csv_text(shown_values(spec)), encoding="utf-8")
    return [svg, png, table]
