"""What a page contains: pictures, their data for the browser, the library that draws them, downloads."""

import base64
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from typing import Any

from paceline.analysis.rows import Row
from paceline.errors import UserError

# Characters with which a text could end the script element that it is in.
_UNSAFE = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"})


@dataclass(frozen=True)
class Picture:
    """One figure: still, for print and for browsers without scripts, and as data for those with."""

    name: str
    question: str
    svg: str
    spec: dict[str, Any]


def pictures(rows: Sequence[Row]) -> list[Picture]:
    """Every figure that these rows can be drawn as."""
    from paceline.figures import figures
    from paceline.figures.render import RENDERER, vega_lite

    drawn = []
    for figure in figures().values():
        if figure.applies(rows):
            spec = vega_lite(figure, rows)
            spec["config"]["background"] = "transparent"
            try:
                still = RENDERER.draw("svg", spec).decode()
            except UserError as error:
                still = f"<p>{escape(str(error))}</p>"
            drawn.append(Picture(figure.name, figure.question, still, spec))
    return drawn


def script_data(value: Any) -> str:
    """JSON that is safe inside a script element, whatever users wrote into it."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False).translate(_UNSAFE)


@cache
def library() -> str:
    """Vega, Vega-Lite and Vega-Embed in one script, from the package that also draws the still pictures."""
    import altair
    import vl_convert

    version = ".".join(altair.SCHEMA_VERSION.lstrip("v").split(".")[:2])
    snippet = "window.vegaEmbed = vegaEmbed;"
    return re.sub("</(?=script)", r"<\\/", str(vl_convert.javascript_bundle(snippet, version)), flags=re.IGNORECASE)


def download(text: str, kind: str) -> str:
    """The text as a link that downloads it."""
    return f"data:{kind};base64,{base64.b64encode(text.encode()).decode()}"
