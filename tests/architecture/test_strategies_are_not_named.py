"""No code outside `strategies/` knows a strategy by its name: what others must know of it, it declares as a trait."""

import ast
from collections.abc import Iterator

import pytest

from architecture.conftest import PACKAGE, modules, parsed
from paceline.strategies import strategies

# These are about single strategies by their nature: declarations, built-in studies, scripts to train with.
MAY_NAME = ("strategies", "studies", "recommend/scripts")
# Defaults that a user sees and can change; nothing is decided by them.
DEFAULTS = {("spec.py", "torch-single"), ("cli/predict.py", "torch-ddp")}
# The name of the strategy that is none is also that of its family.
NAMES = {name for name in strategies() if "-" in name}
WORDS = {word for name in NAMES for word in name.split("-")}
TAKES_APART = {
    "endswith", "startswith", "removeprefix", "removesuffix", "split", "rsplit", "partition", "rpartition", "fnmatch",
    "fnmatchcase", "match", "fullmatch", "search", "find", "index",
}  # fmt: skip


def docstrings(tree: ast.AST) -> set[ast.AST]:
    """Constants that are sentences about the code."""
    return {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}


def is_of_a_strategy(node: ast.AST) -> bool:
    """Whether an expression looks like a strategy's name: `chosen.name`, `spec.strategy`, `name`."""
    label = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return label in ("name", "strategy")


def is_a_part_of_a_name(text: str) -> bool:
    """Whether names of strategies begin, end or go on with it: `torch-`, `-tensor`, `torch-*`."""
    bare = text.strip("^$*.?")
    inner = bare.strip("-")
    return "-" in bare and all(word in WORDS for word in inner.split("-"))


def texts(nodes: list[ast.expr]) -> Iterator[str]:
    """Strings among arguments, also within tuples."""
    for node in nodes:
        for part in ast.walk(node):
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                yield part.value


def takes_a_name_apart(node: ast.AST) -> bool:
    """Whether it asks how a name begins or ends, or for a word in it."""
    if isinstance(node, ast.Call):
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        at_dashes = isinstance(node.func, ast.Attribute) and is_of_a_strategy(node.func.value)
        parts = list(texts(node.args))
        return called in TAKES_APART and (any(map(is_a_part_of_a_name, parts)) or (at_dashes and "-" in parts))
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
        inside = is_of_a_strategy(node.comparators[0]) and isinstance(node.left, ast.Constant)
        return inside and any(text.strip("-") in WORDS for text in texts([node.left]))
    return False


def named_in(tree: ast.AST) -> set[str]:
    """Every place of a module at which a strategy's name, or a part of one, stands."""
    prose = docstrings(tree)
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node.value in NAMES and node not in prose:
            found.add(str(node.value))
        elif takes_a_name_apart(node):
            found.add(ast.unparse(node))
    return found


def test_no_module_goes_by_the_name_of_a_strategy() -> None:
    wrong = set()
    for path in modules():
        place = path.relative_to(PACKAGE).as_posix()
        if not place.startswith(tuple(f"{folder}/" for folder in MAY_NAME)):
            wrong |= {(place, name) for name in named_in(parsed(path))}
    assert wrong - DEFAULTS == set()


@pytest.mark.parametrize(
    "code",
    [
        'if chosen.name == "torch-ddp": pass',
        'if spec.strategy in ("tf-mirrored", "jax-data"): pass',
        'STAND_INS = {"torch": "torch-ddp"}',
        'chosen.name.endswith("-tensor")',
        'name.startswith(("torch-", "jax-"))',
        'chosen.name.rpartition("-")[2]',
        'fnmatchcase(name, "*-tensor")',
        '"tensor" in chosen.name',
        'match spec.strategy:\n    case "torch-fsdp": pass',
    ],
)
def test_what_goes_by_a_name_is_seen(code: str) -> None:
    assert named_in(ast.parse(code))


@pytest.mark.parametrize(
    "code",
    [
        'def f():\n    """torch-ddp"""',
        'raise UserError("use another optimizer, or torch-single")',
        'if chosen.family == "data": pass',
        'line.partition(":")',
        '"tensor" in knobs',
    ],
)
def test_what_only_speaks_of_a_strategy_may_stay(code: str) -> None:
    assert not named_in(ast.parse(code))
