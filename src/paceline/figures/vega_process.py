"""The process that draws: takes one chart per line on standard input and answers with the length of a picture and it.

Run by its path, so that it imports nothing of Paceline. Vega and the SVG library can end a process at once, without an
exception, when they meet something that they did not expect; whoever asked loses this process alone.
"""

import json
import sys
from typing import Any

# Pixels of a PNG for each of the drawing's own: sharp in print and on good screens.
PNG_SCALE = 2.0


def draw(kind: str, chart: dict[str, Any]) -> bytes:
    """The chart as SVG or PNG, or the script that draws charts in a browser."""
    import vl_convert

    if kind == "svg":
        return str(vl_convert.vegalite_to_svg(chart)).encode()
    if kind == "png":
        return bytes(vl_convert.vegalite_to_png(chart, scale=PNG_SCALE))
    # Without a snippet of one's own it has everything; its type hints ask for one all the same.
    return str(vl_convert.javascript_bundle(None)).encode()  # type: ignore[arg-type]


def main() -> None:
    """Answers until nobody asks any more."""
    for line in sys.stdin.buffer:
        request = json.loads(line)
        try:
            picture, error = draw(request["kind"], request["chart"]), ""
        except Exception as problem:
            picture, error = b"", f"{type(problem).__name__}: {problem}"
        header = json.dumps({"bytes": len(picture), "error": error}).encode()
        sys.stdout.buffer.write(header + b"\n" + picture)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
