"""Files that users name: paths as they are typed, and what TOML files say; what is wrong with either, in words."""

import tomllib
from pathlib import Path
from typing import Any

from paceline.errors import UserError

# Deeper than anything that is written by hand; what walks through values calls itself at each level.
MOST_LEVELS = 32


def home_path(text: str, what: str) -> Path:
    """The path, with `~` as a home folder."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        user = Path(text).parts[0]
        raise UserError(f"{what} {text!r}: there is no home folder {user} here; write the path in full") from None


def user_path(text: str, what: str) -> Path:
    """The same, in full."""
    path = home_path(text, what)
    try:
        return path.resolve()
    except (RuntimeError, OSError, ValueError) as error:
        raise UserError(f"{what} {text!r} is no path: {error}; name a file") from None


def is_file(path: Path) -> bool:
    """Whether there is a file at a path; not where no file can have such a name."""
    try:
        return path.is_file()
    except OSError:
        return False


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
