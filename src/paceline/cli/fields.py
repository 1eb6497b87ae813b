"""Options of `paceline run` ─► fields of a study."""

import json
from collections.abc import Mapping
from typing import Any

from paceline.errors import SpecError
from paceline.plan import expand_strategies
from paceline.spec import Scalar
from paceline.units import parse_seconds, parse_shape, parse_whole_numbers


def fields_from(
    *,
    names: Mapping[str, str | None],
    numbers: Mapping[str, str | None],
    plain: Mapping[str, int | None],
    input_shape: str | None,
    timeout: str | None,
) -> dict[str, Any]:
    """Only what was given; comma-separated values as lists, which become factors."""
    fields: dict[str, Any] = {name: value for name, value in plain.items() if value is not None}
    fields |= {name: _words(text) for name, text in names.items() if text is not None}
    for name, text in numbers.items():
        if text is not None:
            fields[name] = parse_whole_numbers(text, "--" + name.replace("_", "-"))
    if "strategy" in fields:
        fields["strategy"] = expand_strategies(fields["strategy"])
    if input_shape is not None:
        fields["input_shape"] = parse_shape(input_shape)
    if timeout is not None:
        fields["timeout_seconds"] = parse_seconds(timeout)
    return fields


def parse_pairs(pairs: list[str] | None, option: str) -> dict[str, list[Scalar]]:
    """`bucket_mb=1,25` as {"bucket_mb": [1, 25]}."""
    values: dict[str, list[Scalar]] = {}
    for pair in pairs or []:
        name, equals, text = pair.partition("=")
        if not equals or not name.strip() or not text.strip():
            raise SpecError(f"{option} {pair!r} is not understood; write name=value, such as {option} name=1")
        values[name.strip()] = [_scalar(word) for word in _words(text)]
    return values


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _scalar(word: str) -> Scalar:
    try:
        value = json.loads(word.lower() if word.lower() in ("true", "false") else word)
    except json.JSONDecodeError:
        return word
    return value if isinstance(value, bool | int | float | str) else word
