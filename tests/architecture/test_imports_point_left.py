"""A module imports only what stands left of it in the flow; frameworks come in last, and inside functions."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from architecture.conftest import PACKAGE, functions, modules, named, parsed

# From left to right. `facts` are the files of `frameworks` that can be imported without any framework; `contract` is
# what strategies and those share, `strategies/base.py`.
ORDER = (
    "errors", "units", "metrics", "catalogue",
    "spans", "breakdown", "warm_up", "spec", "study", "record", "footprint",
    "data", "workloads", "systems", "contract", "facts", "strategies",
    "plan", "typical", "scale", "frameworks", "runs", "store", "execute", "estimate",
    "analysis", "predict", "recommend", "figures", "report", "export", "api", "web", "cli",
    "__init__", "__main__",
)  # fmt: skip
FRAMEWORKS = ("torch", "tensorflow", "keras", "jax", "flax", "optax")
# What may reach to the right for a framework, and then only inside a function.
REACHES_FRAMEWORKS = ("strategies", "runs/probe.py")


@cache
def facts() -> frozenset[str]:
    """Files of `frameworks` that name no framework outside functions, nor a file there that does."""
    needs = {
        f"frameworks.{path.stem}": set(at_module_level(parsed(path)))
        for path in (PACKAGE / "frameworks").glob("*.py")
        if path.stem != "__init__"
    }
    free = {name for name, found in needs.items() if not {one.split(".")[0] for one in found} & set(FRAMEWORKS)}
    while bound := {name for name in free if {f"paceline.{one}" for one in needs.keys() - free} & needs[name]}:
        free -= bound
    return frozenset(free)


def place(name: str) -> str:
    """The entry of `ORDER` that a dotted name, without `paceline.`, belongs to."""
    if name == "strategies.base":
        return "contract"
    return "facts" if name in facts() else name.split(".", maxsplit=1)[0]


def place_of(path: Path) -> str:
    return place(".".join(path.relative_to(PACKAGE).with_suffix("").parts))


def imported(tree: ast.AST) -> Iterator[str]:
    """Dotted names of what is imported; `from paceline.frameworks import torch_facts` counts as the module it names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from names if node.module in ("paceline", "paceline.frameworks") else [str(node.module)]


def of_paceline(tree: ast.AST) -> set[str]:
    return {name.removeprefix("paceline.") for name in imported(tree) if name.startswith("paceline.")}


def inside_functions(tree: ast.Module) -> set[str]:
    return {name for function in functions(tree) for name in of_paceline(function)}


def at_module_level(tree: ast.Module) -> list[str]:
    """What importing the file imports: everything outside functions."""
    found: list[str] = []
    waiting: list[ast.AST] = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            found += imported(ast.Module([node], []))
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            waiting += ast.iter_child_nodes(node)
    return found


def test_the_order_names_exactly_what_there_is() -> None:
    assert {place_of(path) for path in modules()} == set(ORDER)


@pytest.mark.parametrize("path", modules(), ids=named)
def test_a_module_imports_only_from_its_own_folder_and_from_the_left(path: Path) -> None:
    here, tree = place_of(path), parsed(path)
    allowed = set(ORDER[: ORDER.index(here) + 1])
    name = path.relative_to(PACKAGE).as_posix()
    reaching = inside_functions(tree) if name.startswith(REACHES_FRAMEWORKS) else set()
    wrong = {
        found
        for found in of_paceline(tree)
        if place(found) not in allowed and not (place(found) == "frameworks" and found in reaching)
    }
    assert not wrong, f"{name} imports to the right: {', '.join(sorted(wrong))}"


@pytest.mark.parametrize("path", modules(), ids=named)
def test_frameworks_are_imported_only_by_strategies_and_the_probe_and_inside_functions(path: Path) -> None:
    here, name = place_of(path), path.relative_to(PACKAGE).as_posix()
    if here == "frameworks":
        return
    wanted = {found for found in of_paceline(parsed(path)) if place(found) == "frameworks"}
    outside = {found.removeprefix("paceline.") for found in at_module_level(parsed(path))} & wanted
    assert not outside
    assert not wanted or name.startswith(REACHES_FRAMEWORKS)


@pytest.mark.parametrize("path", modules(), ids=named)
def test_no_module_outside_frameworks_needs_a_framework_to_be_imported(path: Path) -> None:
    if place_of(path) == "frameworks":
        return
    needed = {name.split(".")[0] for name in at_module_level(parsed(path))} & set(FRAMEWORKS)
    assert not needed


@pytest.mark.parametrize("path", modules(), ids=named)
def test_only_the_command_line_knows_the_terminal_libraries(path: Path) -> None:
    used = {name.split(".")[0] for name in imported(parsed(path))} & {"typer", "rich", "click"}
    assert not used or place_of(path) == "cli"
