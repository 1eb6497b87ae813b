"""The same figure for a phone, with its panels one below the other, and for a dark page, with light ink."""

import json
import re
import textwrap
from copy import deepcopy
from typing import Any

from paceline.figures.base import CHOICE, FAINT, GRID, INK, OTHERS, PALETTE, SOFT

# What axes, names and legends of a figure take beside its panels, and the least that a panel can do with.
BESIDE_PANELS, LEAST_PANEL = 175, 150
# Pixels of a letter of a subtitle, and of the larger ones of a title.
LETTER, TITLE_LETTER = 7, 9
# What words may stick out at the sides where a browser has a wider font than the one that the figure was laid out with.
MARGIN = 14
NARROW_LABELS = 130
DARK = {
    INK: "#ececec", "#000000": "#ececec", "black": "#ececec", SOFT: "#b0b0b0", FAINT: FAINT, GRID: "#33373b",
    PALETTE[0]: "#3d9fdb", OTHERS: "#666c72",
}  # fmt: skip
_CHOSEN_TITLE = re.compile(r'^\[(".*"), (\w+)\]$')
_ROOT = re.compile(r"<svg [^>]*?>")
_SIZE = re.compile(r' (width|height|viewBox)="[^"]*"')
_COLOURS = re.compile(r'(fill|stroke)="([^"]+)"')


def narrowed(chart: dict[str, Any], width: int, still: bool = False) -> dict[str, Any]:
    """The chart with no panel wider than a screen of that width, panels in one column, and words that fit.

    In a `still` picture the setting that stands in the title is not chosen any more and can be broken into lines.
    """
    chart = deepcopy(chart)
    _narrow(chart, width)
    if still:
        _settle_title(chart, width)
    chart["config"]["axis"]["labelLimit"] = NARROW_LABELS
    return chart


def _settle_title(chart: dict[str, Any], width: int) -> None:
    title = chart.get("title")
    chosen = next((param["value"] for param in chart.get("params", ()) if param.get("name") == CHOICE), None)
    if isinstance(title, dict) and isinstance(title.get("text"), dict) and chosen is not None:
        *lines, _ = title["text"]["expr"].strip("[]").split(", ")
        words = json.loads(f"[{', '.join(lines)}]")
        title["text"] = [*words, *textwrap.wrap(chosen, width // LETTER, break_on_hyphens=False)]


def _narrow(node: Any, width: int) -> None:
    if isinstance(node, list):
        for inner in node:
            _narrow(inner, width)
    if not isinstance(node, dict):
        return
    if "concat" in node and isinstance(node.get("columns"), int):
        node["columns"] = 1
    if isinstance(node.get("width"), int | float):
        node["width"] = min(node["width"], max(LEAST_PANEL, width - BESIDE_PANELS))
    if isinstance(node.get("title"), dict):
        node["title"] = _narrow_title(node["title"], width)
    legend = node.get("encoding", {}).get("color", {}).get("legend")
    if isinstance(legend, dict):
        legend["columns"] = 1
    for name in ("concat", "layer", "spec"):
        _narrow(node.get(name), width)


def _narrow_title(title: dict[str, Any], width: int) -> dict[str, Any]:
    title, most = dict(title), int(width / TITLE_LETTER)
    if isinstance(title.get("subtitle"), list):
        title["subtitle"] = textwrap.wrap(" ".join(title["subtitle"]), width // LETTER, break_on_hyphens=False)
    text = title.get("text")
    if isinstance(text, str):
        title["text"] = textwrap.wrap(text, most, break_on_hyphens=False)
    elif isinstance(text, dict) and (chosen := _CHOSEN_TITLE.match(text.get("expr", ""))):
        lines = [json.dumps(line) for line in textwrap.wrap(json.loads(chosen[1]), most, break_on_hyphens=False)]
        title |= {"fontSize": 12, "text": {"expr": f"[{', '.join(lines)}, {chosen[2]}]"}}
    return title


def with_margins(svg: str, least_width: float = 0.0) -> str:
    """The picture with room at its sides, and at least so wide: titles may be wider than what they stand above."""
    root = _ROOT.search(svg)
    sizes = dict(re.findall(r' (width|height)="([\d.]+)"', root[0])) if root else {}
    if root is None or len(sizes) < 2:
        return svg
    width = max(float(sizes["width"]), least_width) + 2 * MARGIN
    size = f' width="{width:g}" height="{sizes["height"]}" viewBox="{-MARGIN} 0 {width:g} {sizes["height"]}">'
    return svg[: root.start()] + _SIZE.sub("", root[0])[:-1] + size + svg[root.end() :]


def in_dark(svg: str) -> str:
    """The picture in the colours that are read on a dark page."""
    return _COLOURS.sub(lambda colour: f'{colour[1]}="{DARK.get(colour[2], colour[2])}"', svg)
