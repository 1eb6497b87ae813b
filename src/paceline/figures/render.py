"""Figures as pictures, drawn in a process of their own: a renderer that breaks down takes nobody along.

Names of users are made fit to print first; what still breaks the renderer is an error in words, and the next picture is
drawn by a new process.
"""

import atexit
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from threading import Lock, Timer
from typing import Any, Literal

from paceline.analysis.rows import Row
from paceline.errors import UserError
from paceline.figures.base import Figure
from paceline.user_input.printable import printable

Kind = Literal["svg", "png", "script"]
PROGRAM = Path(__file__).with_name("vega_process.py")
# Longer than the largest figure takes on a busy machine.
PATIENCE_SECONDS = 120.0
# What a process that broke down takes to be gone.
LAST_SECONDS = 5.0


def vega_lite(figure: Figure, rows: Sequence[Row]) -> dict[str, Any]:
    """The figure as Vega-Lite, without a character that a renderer could stumble over."""
    # Tests check all figures by the schema; here that would take longer than to draw them.
    chart = _printable(figure.draw(rows).to_dict(validate=False))
    assert isinstance(chart, dict)
    return chart


def _printable(node: Any) -> Any:
    if isinstance(node, str):
        return printable(node)
    if isinstance(node, dict):
        return {printable(name): _printable(inner) for name, inner in node.items()}
    return [_printable(inner) for inner in node] if isinstance(node, list) else node


class Renderer:
    """Draws one picture at a time in a process that is started when it is needed, and anew after it broke down."""

    def __init__(self, program: Path = PROGRAM) -> None:
        self._program = program
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = Lock()

    def draw(self, kind: Kind, chart: dict[str, Any] | None = None) -> bytes:
        """The chart as a picture, or the script that draws them; `UserError` if it cannot be drawn."""
        with self._lock:
            process = self._process = self._running()
            late = Timer(PATIENCE_SECONDS, process.kill)
            late.start()
            try:
                return self._answer(process, json.dumps({"kind": kind, "chart": chart or {}}).encode() + b"\n")
            finally:
                late.cancel()

    def close(self) -> None:
        """Ends the process."""
        with self._lock:
            process, self._process = self._process, None
            if process is not None:
                process.kill()
                _end(process)

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        # -P: a file in the user's folder must not stand in for a module of the same name.
        words = [sys.executable, "-P", str(self._program)]
        pipe, quiet = subprocess.PIPE, subprocess.DEVNULL
        # A session of its own: Ctrl-C in the terminal is for the command, which then ends this.
        return subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=quiet, start_new_session=True)

    def _answer(self, process: subprocess.Popen[bytes], question: bytes) -> bytes:
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(question)
            process.stdin.flush()
            header = json.loads(process.stdout.readline())
            picture = process.stdout.read(header["bytes"])
        except (OSError, ValueError):
            header = None
        if header is None or len(picture) < header["bytes"]:
            code = _end(process)
            self._process = None
            raise UserError(f"a figure cannot be drawn: the renderer ended with code {code}; others can be drawn")
        if header["error"]:
            raise UserError(f"a figure cannot be drawn: {header['error']}")
        return picture


def _end(process: subprocess.Popen[bytes]) -> int:
    """Waits a moment for a process that is about to end, ends it otherwise, and gives its exit code."""
    try:
        process.wait(LAST_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
    process.communicate()
    return process.returncode


RENDERER = Renderer()
atexit.register(RENDERER.close)
