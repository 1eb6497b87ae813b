"""What users write: paths, TOML files, and texts made fit to print; what is wrong with them is said in words."""

import tomllib
import unicodedata
from pathlib import Path
from typing import Any

from paceline.errors import UserError

# Deeper than anything that is written by hand; what walks through values calls itself at each level.
MOST_LEVELS = 32
# Unicode's general categories of controls and of lone halves of surrogate pairs.
_UNPRINTABLE = frozenset({"Cc", "Cs"})
# Marks that end a line or turn the direction of writing, by which a name could pretend to be another.
_MARKS = frozenset("\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
# The last two code points of each plane are no characters, and XML does not allow them.
_LAST_TWO = 0xFFFE
# What makes a spreadsheet compute a cell.
_FORMULAS = ("=", "+", "-", "@", "\t")


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
        return Path(str(path.resolve()).encode().decode())
    except UnicodeEncodeError:
        raise UserError(f"{what} {text!r}: its name or that of a folder above is not UTF-8; rename it") from None
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


def printable(text: str, keep: str = "") -> str:
    r"""The text with each character that cannot be printed as its number, such as `\x01`; `keep` lists exceptions.

    A terminal, a renderer or a file format obeys such characters, and a name could pretend to be another one by them.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(character if character in keep or _fit(character) else _number(character) for character in text)


def _fit(character: str) -> bool:
    obeyed = unicodedata.category(character) in _UNPRINTABLE or character in _MARKS
    return not obeyed and ord(character) & _LAST_TWO != _LAST_TWO


def _number(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def finalize(value: Any) -> Any:
    """What a template writes: texts fit to print, lines and tabs aside; markup of our own and numbers as they are."""
    return printable(value, keep="\n\r\t") if type(value) is str else value


def spreadsheet_cell(value: Any) -> Any:
    """A value for a table of another program: a text that would be computed there has an apostrophe before it."""
    if not isinstance(value, str):
        return value
    text = printable(value, keep="\n\t")
    return f"'{text}" if text.startswith(_FORMULAS) else text
