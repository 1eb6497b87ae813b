"""Figures as pictures: each is drawn once and kept until the results change."""

import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any

from paceline.analysis.rows import Row
from paceline.figures import Figure, figures
from paceline.figures.render import RENDERER, vega_lite
from paceline.figures.variants import in_dark, narrowed, with_margins

EXPLORE = Path(__file__).parent / "static" / "explore.js"
MOST_KEPT = 64
# What a figure may take of a phone that is 390 pixels wide.
PHONE_WIDTH = 340
_kept: OrderedDict[tuple[str, ...], bytes] = OrderedDict()
# One picture at a time: drawing is what the processor is busy with, and a study may be running.
_lock = Lock()


@dataclass(frozen=True)
class Look:
    """How a figure is drawn: as a file with white paper, or for a page; for a phone; for a dark page."""

    on_page: bool = False
    narrow: bool = False
    dark: bool = False

    def chart(self, figure: Figure, rows: Sequence[Row], still: bool = False) -> dict[str, Any]:
        """The figure as Vega-Lite; its colours are those of a light page."""
        chart = vega_lite(figure, rows)
        if self.on_page:
            chart["config"]["background"] = "transparent"
        return narrowed(chart, PHONE_WIDTH, still) if self.narrow else chart


def applicable_figures(rows: Sequence[Row]) -> list[Figure]:
    """Every figure that these rows can be drawn as, in the order of the report."""
    return [figure for figure in figures().values() if figure.applies(rows)]


def rendered(figure: Figure, rows: Sequence[Row], kind: str, results_key: tuple[str, ...], look: Look) -> bytes:
    """The figure as SVG, PNG or Vega-Lite; `results_key` identifies the results and filters."""
    name = (figure.name, kind, str(look), *results_key)
    with _lock:
        if name not in _kept:
            _kept[name] = _render(look.chart(figure, rows, still=True), kind, look)
        _kept.move_to_end(name)
        while len(_kept) > MOST_KEPT:
            _kept.popitem(last=False)
        return _kept[name]


def _render(chart: dict[str, Any], kind: str, look: Look) -> bytes:
    if kind == "json":
        return json.dumps(chart).encode()
    picture = RENDERER.draw("png" if kind == "png" else "svg", chart)
    if kind == "png" or not look.on_page:
        return picture
    svg = with_margins(picture.decode(), PHONE_WIDTH if look.narrow else 0.0)
    return (in_dark(svg) if look.dark else svg).encode()


@cache
def vega_script() -> bytes:
    """The script that draws a figure in the browser (it sets `vegaEmbed`), from the package that draws them here."""
    return RENDERER.draw("script") + b"\n" + EXPLORE.read_bytes()
