"""Names that make readers guess stay out of the package: a value is called what it is."""

import ast
from collections.abc import Iterator

from architecture.conftest import modules, named, parsed

# They say how a value came about, or nothing at all, and not what it is.
GUESSED = {
    "one", "found", "own", "told", "made", "given", "strange", "got", "took", "taken", "asked", "seen", "tried", "ran",
}  # fmt: skip
ADVICE = "call each what it is in the field: record, strategy, layer, prediction, candidates, step_seconds"


def bound_names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Every name that code gives to a variable, argument, attribute, field, function or class, and its line."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield name, node.lineno
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name, node.lineno
            case ast.ExceptHandler(name=str(name)) | ast.alias(asname=str(name)):
                yield name, node.lineno
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
                yield name, node.lineno


def guessed(tree: ast.AST) -> list[tuple[str, int]]:
    return [(name, line) for name, line in bound_names(tree) if name.strip("_").lower() in GUESSED]


def test_names_say_what_a_value_is() -> None:
    guesses = [f"{named(path)}:{line} {name}" for path in modules() for name, line in guessed(parsed(path))]
    assert not guesses, f"names that make readers guess; {ADVICE}:\n" + "\n".join(guesses)


def test_every_way_to_bind_a_name_counts() -> None:
    code = """
import json as own
from json import loads as told
class Found:
    made: int = 0
    def given(self, asked, *taken, **got):
        self._seen = 1
        ONE = [tried for tried in taken if (took := tried)]
        try:
            with open(asked) as ran: pass
        except OSError as strange: pass
        for one, _ in (): pass
async def _found(): return lambda own: own
match 1:
    case [1, *told]: pass
    case {"a": 1, **made}: pass
    case given: pass
"""
    assert len(guessed(ast.parse(code))) == 20
    assert guessed(ast.parse("known.found, layer = record.own, found(one, given=asked)")) == [("found", 1)]
