"""What a calibration has measured so far, in a file: one that is interrupted goes on from there."""

import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paceline.record import Record

# Older measurements are of a machine that may have changed since.
MOST_AGE_SECONDS = 24 * 3600.0


class Journal:
    """Measurements by name, each written the moment it is made.

    `identity` says what is measured and with what; a file about anything else, or an old one, is begun anew.
    """

    def __init__(self, path: Path | None = None, identity: str = "", fresh: bool = False) -> None:
        self.path = path
        self._counts = Counter[str]()
        self._known: dict[str, Any] = {}
        if path is None:
            return
        lines = [] if fresh else _lines(path)
        if lines and lines[0] == {"identity": identity}:
            self._known = {line["name"]: line["value"] for line in lines[1:]}
        else:
            path.write_text(json.dumps({"identity": identity}) + "\n")

    @property
    def known(self) -> int:
        """How many measurements an interrupted calibration has left."""
        return len(self._known)

    def measured(self, name: str, measure: Callable[[], Any]) -> Any:
        """What was measured under a name, now or before; the second measurement of a name is another one."""
        self._counts[name] += 1
        numbered = f"{name} #{self._counts[name]}"
        if numbered in self._known:
            return self._known[numbered]
        value = measure()
        if self.path is not None:
            with self.path.open("a") as file:
                file.write(json.dumps({"name": numbered, "value": value}) + "\n")
        return value

    def record(self, name: str, run: Callable[[], Record]) -> Record:
        """The record of a run that was kept; else it is made now, and kept."""
        return Record.model_validate_json(self.measured(name, lambda: run().model_dump_json(by_alias=True)))

    def leave(self) -> None:
        """Keeps the file of a calibration that did not come to its end, unless nothing was measured."""
        if not self._known and not self._counts:
            self.close()

    def close(self) -> None:
        """The calibration is whole, and its file no longer needed."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)


def _lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a journal; a last one that was cut off does not count."""
    try:
        if time.time() - path.stat().st_mtime > MOST_AGE_SECONDS:
            return []
        texts = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return []
    lines = []
    for text in texts:
        try:
            lines.append(json.loads(text))
        except json.JSONDecodeError:
            break
    return lines
