"""Figures as pictures: each is drawn once and kept until the results change."""

import json
from collections import OrderedDict
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any

from paceline.analysis.rows import Row
from paceline.figures import Figure, figures

EXPLORE = Path(__file__).parent / "static" / "explore.js"
MOST_KEPT = 64
PNG_SCALE = 2.0
_kept: OrderedDict[tuple[str, ...], bytes] = OrderedDict()
# One picture at a time: drawing is what the processor is busy with, and a study may be running.
_lock = Lock()


def applicable_figures(rows: Sequence[Row]) -> list[Figure]:
    """Every figure that these rows can be drawn as, in the order of the report."""
    return [figure for figure in figures().values() if figure.applies(rows)]


def vega_lite(figure: Figure, rows: Sequence[Row]) -> dict[str, Any]:
    """The figure as Vega-Lite."""
    chart = figure.draw(rows).to_dict()
    assert isinstance(chart, dict)
    return chart


def rendered(figure: Figure, rows: Sequence[Row], kind: str, results_key: tuple[str, ...]) -> bytes:
    """The figure as SVG, PNG or Vega-Lite; `results_key` identifies the results and filters."""
    name = (figure.name, kind, *results_key)
    with _lock:
        if name not in _kept:
            _kept[name] = _render(vega_lite(figure, rows), kind)
        _kept.move_to_end(name)
        while len(_kept) > MOST_KEPT:
            _kept.popitem(last=False)
        return _kept[name]


def _render(values: dict[str, Any], kind: str) -> bytes:
    import vl_convert

    if kind == "svg":
        return str(vl_convert.vegalite_to_svg(values)).encode()
    if kind == "png":
        return bytes(vl_convert.vegalite_to_png(values, scale=PNG_SCALE))
    return json.dumps(values).encode()


@cache
def vega_script() -> bytes:
    """The script that draws a figure in the browser (it sets `vegaEmbed`), from the package that draws them here."""
    import vl_convert

    # Without a snippet of one's own it has everything; its type hints ask for one all the same.
    library = str(vl_convert.javascript_bundle(None))  # type: ignore[arg-type]
    return (library + "\n" + EXPLORE.read_text()).encode()
