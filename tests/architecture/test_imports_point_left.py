"""A module imports only what stands left of it in the flow; frameworks come in last, and inside functions."""

import ast
from collections.abc import Iterator
from pathlib import Path

from architecture.conftest import PACKAGE, modules, parsed

# From left to right: files and folders of the package.
ORDER = (
    "errors", "units", "user_input", "catalogue",
    "spans", "breakdown", "warm_up", "layout", "link", "membership", "recipe", "source_files", "spec", "fleet", "study",
    "record",
    "costs", "data", "workloads", "systems", "contract", "frameworks", "strategies", "callbacks",
    "refusals", "plan", "typical", "scale", "runs", "store", "execute", "estimate",
    "analysis", "predict", "calibrate", "recommend", "figures", "report", "export", "api", "web", "cli",
    "__init__", "__main__",
)  # fmt: skip
FRAMEWORKS = ("torch", "tensorflow", "keras", "jax", "flax", "optax")
# What declarations of strategies share; it can be imported without its framework.
DECLARED = tuple(f"frameworks.{framework}.declared" for framework in ("torch", "tensorflow", "jax"))


def dotted(path: Path) -> str:
    """A module's name without `paceline.`; a package's own file has the name of the package."""
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")


def place(name: str) -> str:
    """The entry of `ORDER` that a module belongs to."""
    return name.split(".", maxsplit=1)[0]


def needs_its_framework(name: str) -> bool:
    """Whether importing it imports a framework."""
    measures = place(name) == "calibrate" and name.endswith("_gauge")
    return (place(name) == "frameworks" and name not in DECLARED) or measures


def is_declaration(name: str) -> bool:
    """Whether it is a strategy's own file, or its package's first; other files of the package may need a framework."""
    return place(name) == "strategies" and name.count(".") < 3


def imported(tree: ast.AST) -> Iterator[str]:
    """Dotted names of what is imported; a name that is a module of Paceline counts as that module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                file = PACKAGE.parent / name.replace(".", "/")
                is_module = file.with_suffix(".py").is_file() or (file / "__init__.py").is_file()
                yield name if is_module else str(node.module)


def of_paceline(names: Iterator[str] | list[str]) -> set[str]:
    return {name.removeprefix("paceline.") for name in names if name.startswith("paceline.")}


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
    assert {place(dotted(path)) or "__init__" for path in modules()} == set(ORDER)


def test_a_module_imports_only_from_its_own_folder_and_from_the_left() -> None:
    wrong = []
    for path in modules():
        here = dotted(path) or "__init__"
        allowed = set(ORDER[: ORDER.index(place(here)) + 1])
        wrong += [
            f"{here} imports {name}" for name in of_paceline(imported(parsed(path))) if place(name) not in allowed
        ]
    assert wrong == []


def test_what_needs_no_framework_imports_none_outside_functions() -> None:
    wrong = []
    for path in modules():
        here = dotted(path)
        if not needs_its_framework(here) and (place(here) != "strategies" or is_declaration(here)):
            names = at_module_level(parsed(path))
            wrong += [f"{here} imports {name}" for name in names if name.split(".")[0] in FRAMEWORKS]
            wrong += [f"{here} imports {name}" for name in of_paceline(names) if needs_its_framework(name)]
    assert sorted(set(wrong)) == []


def test_a_strategy_imports_nothing_of_another_strategys_package() -> None:
    wrong = []
    for path in (path for path in modules() if place(dotted(path)) == "strategies"):
        package = ".".join(dotted(path).split(".")[:3])
        for name in of_paceline(imported(parsed(path))):
            if place(name) == "strategies" and name.count(".") >= 2 and not name.startswith(package):
                wrong.append(f"{dotted(path)} imports {name}")
    assert wrong == []


def test_only_the_command_line_knows_the_terminal_libraries() -> None:
    users = {
        place(dotted(path))
        for path in modules()
        if {name.split(".")[0] for name in imported(parsed(path))} & {"typer", "rich", "click"}
    }
    assert users == {"cli"}
