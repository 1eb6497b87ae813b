"""Texts of users and programs made fit to print: no character that a terminal, a renderer or a file format obeys."""

import unicodedata

# Unicode's general categories of controls and of lone halves of surrogate pairs.
_UNPRINTABLE = frozenset({"Cc", "Cs"})
# Marks that end a line or turn the direction of writing, by which a name could pretend to be another.
_MARKS = frozenset("\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
# The last two code points of each plane are no characters, and XML does not allow them.
_LAST_TWO = 0xFFFE


def printable(text: str, keep: str = "") -> str:
    r"""The text with each character that cannot be printed as its number, such as `\x01`; `keep` lists exceptions."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(character if character in keep or _fit(character) else _number(character) for character in text)


def _fit(character: str) -> bool:
    obeyed = unicodedata.category(character) in _UNPRINTABLE or character in _MARKS
    return not obeyed and ord(character) & _LAST_TWO != _LAST_TWO


def _number(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
