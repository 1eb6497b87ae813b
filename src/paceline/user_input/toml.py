"""TOML files of users: whatever is wrong with one is a `TOMLDecodeError`."""

import tomllib
from typing import Any

# Deeper than anything that is written by hand; what walks through values calls itself at each level.
MOST_LEVELS = 32


def parse_toml(text: str) -> dict[str, Any]:
    """The values of a TOML text; whatever is wrong with it is a `TOMLDecodeError`."""
    try:
        values = tomllib.loads(text)
    except RecursionError:
        raise tomllib.TOMLDecodeError("its lists or tables are nested too deeply") from None
    except ValueError as error:  # a number of thousands of digits is a plain one
        raise tomllib.TOMLDecodeError(str(error)) from None
    level: list[Any] = [values]
    for _ in range(MOST_LEVELS):
        level = [inner for value in level for inner in _inner_values(value)]
        if not level:
            return values
    raise tomllib.TOMLDecodeError(f"its tables are nested more than {MOST_LEVELS} deep")


def _inner_values(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []
