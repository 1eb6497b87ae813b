"""Sizes, docstrings, names and words that the house style fixes."""

import ast
import re
from pathlib import Path

from architecture.conftest import PACKAGE, ROOT, functions, modules, named, own_files, parsed

MOST_LINES_OF_A_FILE = 400
MOST_LINES_OF_A_FUNCTION = 60
MOST_FILES_OF_A_FOLDER = 25
WITHOUT_A_SUBJECT = (
    "Of ", "Up to ", "Until ", "Behind ", "That of ", "Those of ", "That the ", "Nor ", "As after ", "From here on ",
)  # fmt: skip
FORBIDDEN_NAMES = {"utils", "util", "helpers", "helper", "common", "core", "manager", "handler", "misc"}
# Put together here, so that this file does not contain them.
UNFINISHED = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X")) + r")\b")
TEXTS = ("*.py", "*.md", "*.toml", "*.txt", "*.j2", "Makefile")
FOLDERS = ("src", "tests", "benchmarks", "tools", "docs", "studies")
# How their answers travel.
MAY_PRINT_OR_EXIT = {(f"src/paceline/runs/{name}.py", "print") for name in ("probe", "trace")}
WRITTEN_BY_US = own_files("src", "tests", "benchmarks", "tools")


def texts() -> list[Path]:
    found = [path for kind in TEXTS for folder in FOLDERS for path in (ROOT / folder).rglob(kind)]
    found += [path for kind in TEXTS for path in ROOT.glob(kind)]
    return sorted(path for path in found if "__pycache__" not in path.parts)


def test_no_file_is_longer_than_its_readers_patience() -> None:
    lengths = {named(path): len(path.read_text().splitlines()) for path in WRITTEN_BY_US}
    assert {name: lines for name, lines in lengths.items() if lines > MOST_LINES_OF_A_FILE} == {}


def test_no_function_is_longer_than_a_screen() -> None:
    long = {
        (named(path), function.name)
        for path in WRITTEN_BY_US
        for function in functions(parsed(path))
        if (function.end_lineno or 0) - function.lineno + 1 > MOST_LINES_OF_A_FUNCTION
    }
    assert long == set()


def test_no_folder_is_several_rooms_in_one() -> None:
    folders = [path for path in (ROOT / "src").rglob("*") if path.is_dir() and path.name != "__pycache__"]
    crowds = {named(path): sum(entry.is_file() for entry in path.iterdir()) for path in folders}
    assert {name: files for name, files in crowds.items() if files > MOST_FILES_OF_A_FOLDER} == {}


def test_every_module_says_what_it_is() -> None:
    silent = [named(path) for path in own_files("src", "benchmarks", "tools") if not ast.get_docstring(parsed(path))]
    assert silent == []


def test_docstrings_name_what_they_are_about() -> None:
    """One that begins with `Of all ranks` says of what, and not what."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [(path, node) for path in modules() for node in ast.walk(parsed(path)) if isinstance(node, kinds)]
    headless = [
        (named(path), docstring)
        for path, node in nodes
        if (docstring := ast.get_docstring(node) or "").startswith(WITHOUT_A_SUBJECT)
    ]
    assert headless == []


def test_no_file_is_named_after_nothing_in_particular() -> None:
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*")]
    assert [named(path) for path in files if path.stem.lower() in FORBIDDEN_NAMES] == []


def test_nothing_is_left_unfinished_in_words() -> None:
    assert len(texts()) > 50
    assert [named(path) for path in texts() if UNFINISHED.search(path.read_text())] == []


def ends_or_prints(node: ast.AST) -> str | None:
    """How this piece of code prints or ends the process, if it does."""
    if isinstance(node, ast.Raise):
        raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
        return "SystemExit" if isinstance(raised, ast.Name) and raised.id == "SystemExit" else None
    if not isinstance(node, ast.Call):
        return None
    called = ast.unparse(node.func)
    return called if called in {"print", "sys.exit", "exit", "quit", "sys.stdout.write", "sys.stderr.write"} else None


def test_only_the_command_line_prints_or_ends_the_process() -> None:
    found = {
        (named(path), how)
        for path in modules()
        if PACKAGE / "cli" not in path.parents
        for node in ast.walk(parsed(path))
        if (how := ends_or_prints(node))
    }
    assert found <= MAY_PRINT_OR_EXIT
