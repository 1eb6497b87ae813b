"""Texts of users and programs made fit to print: no character that a terminal, a renderer or a file format obeys."""

import unicodedata
from typing import Any

# Unicode's general categories of controls and of lone halves of surrogate pairs.
_UNPRINTABLE = frozenset({"Cc", "Cs"})
# Marks that end a line or turn the direction of writing, by which a name could pretend to be another.
_MARKS = frozenset("\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
# The last two code points of each plane are no characters, and XML does not allow them.
_LAST_TWO = 0xFFFE
# What makes a spreadsheet compute a cell.
_FORMULAS = ("=", "+", "-", "@", "\t")


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
