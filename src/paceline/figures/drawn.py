"""A drawn figure as files: SVG, PNG and the numbers in it as CSV, all without a network or a browser."""

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from paceline.analysis.rows import Row
from paceline.figures.base import Figure, Value

# Pixels of a PNG for each of the drawing's own: sharp in print and on good screens.
PNG_SCALE = 2.0
# What only places words in the picture.
_OF_THE_PICTURE = ("label_at", "speedup_at", "time_at", "order", "place")


def values_of(spec: dict[str, Any]) -> list[Value]:
    """Every number that the picture shows, each once, all with the same columns."""
    found: dict[str, Value] = {}
    for value in _inline(spec):
        told = {name: inner for name, inner in value.items() if name not in _OF_THE_PICTURE}
        found.setdefault(repr(sorted(told.items(), key=str)), told)
    names = dict.fromkeys(name for value in found.values() for name in value)
    return [{name: value.get(name) for name in names} for value in found.values()]


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


def as_csv(values: Sequence[Value]) -> str:
    """One line per value under a header."""
    buffer = io.StringIO()
    if values:
        writer = csv.DictWriter(buffer, list(values[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(values)
    return buffer.getvalue()


def write_figure(figure: Figure, rows: Sequence[Row], folder: Path) -> list[Path]:
    """The figure as SVG, PNG and CSV in the folder; gives the paths."""
    import vl_convert

    spec = figure.draw(rows).to_dict()
    folder.mkdir(parents=True, exist_ok=True)
    svg, png, table = (folder / f"{figure.name}.{kind}" for kind in ("svg", "png", "csv"))
    svg.write_text(vl_convert.vegalite_to_svg(spec), encoding="utf-8")
    png.write_bytes(vl_convert.vegalite_to_png(spec, scale=PNG_SCALE))
    table.write_text(as_csv(values_of(spec)), encoding="utf-8")
    return [svg, png, table]
