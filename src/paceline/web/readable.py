"""Settings and surroundings of a run as lines for people: words for names, no braces, nothing that is empty."""

from collections.abc import Mapping
from typing import Any

from paceline.units import format_bytes

_BYTES = "_bytes"


def readable(fields: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Name and value of each field that has one; whole numbers of bytes with their unit."""
    lines = []
    for name, value in fields.items():
        text = format_bytes(value) if name.endswith(_BYTES) and isinstance(value, int) else _text(value)
        if text:
            lines.append((name.removesuffix(_BYTES).replace("_", " ").replace(".", " "), text))
    return lines


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_text(inner)}" for name, inner in value.items())
    return ", ".join(map(_text, value)) if isinstance(value, list | tuple) else str(value)
