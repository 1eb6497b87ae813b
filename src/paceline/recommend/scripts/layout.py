"""Python source as a formatter would lay it out: calls that fit a line or are spread, prose, imports that are used."""

import ast
import textwrap
from collections.abc import Sequence
from itertools import groupby

# What ruff and black do when nobody tells them otherwise.
WIDTH = 88
INDENT = " " * 4
FEWEST_REPEATS = 3


def call(before: str, arguments: Sequence[str], after: str = ")", indent: int = 0) -> str:
    """`before` with its open bracket, arguments, `after`: on one line, on three, or on one for each argument."""
    margin, joined = " " * indent, ", ".join(arguments)
    if len(margin + before + joined + after) <= WIDTH:
        return margin + before + joined + after
    inner = margin + INDENT
    body = inner + joined if len(inner + joined) <= WIDTH else "\n".join(f"{inner}{each}," for each in arguments)
    return f"{margin}{before}\n{body}\n{margin}{after}"


def listed(before: str, items: Sequence[str], after: str, indent: int = 0) -> str:
    """One line for each item, whatever their length; an item of several lines is moved in with its own layout."""
    margin = " " * indent
    body = "\n".join(textwrap.indent(item, margin + INDENT) + "," for item in items)
    return f"{margin}{before}\n{body}\n{margin}{after}"


def repeated_items(items: Sequence[str]) -> list[str]:
    """Three or more equal items in a row as one that unpacks a generator."""
    lines: list[str] = []
    for item, group in groupby(items):
        count = len(list(group))
        lines += [f"*({item} for _ in range({count}))"] if count >= FEWEST_REPEATS else [item] * count
    return lines


def assignment(name: str, literal: str) -> str:
    """`name = literal`, in brackets where only that makes it fit."""
    plain = f"{name} = {literal}"
    return plain if len(plain) <= WIDTH or len(INDENT + literal) > WIDTH else f"{name} = (\n{INDENT}{literal}\n)"


def prose(text: str) -> str:
    """Sentences broken into lines."""
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def without_unused_imports(source: str) -> str:
    """The source with only those imports at its top that its code uses."""
    tree = ast.parse(source)
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    lines: list[str | None] = list(source.split("\n"))
    for node in tree.body:
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        aliases = [alias for alias in node.names if (alias.asname or alias.name.partition(".")[0]) in used]
        first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
        lines[first : last + 1] = [_import(node, aliases) if aliases else None, *[None] * (last - first)]
    return _without_gaps([line for line in lines if line is not None])


def _import(node: ast.Import | ast.ImportFrom, aliases: list[ast.alias]) -> str:
    names = [f"{alias.name} as {alias.asname}" if alias.asname else alias.name for alias in aliases]
    if isinstance(node, ast.Import):
        return f"import {names[0]}"
    plain = f"from {node.module} import {', '.join(names)}"
    return plain if len(plain) <= WIDTH else listed(f"from {node.module} import (", names, ")")


def _without_gaps(lines: list[str]) -> str:
    """At most two empty lines in a row, which is what stands between functions."""
    spaced: list[str] = []
    for line in lines:
        if line or spaced[-2:] != ["", ""]:
            spaced.append(line)
    return "\n".join(spaced)
