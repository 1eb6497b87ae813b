"""Generated docs are up to date, and what the README says of the tree is so."""

import importlib.util
import re
from types import ModuleType

import pytest

from architecture.conftest import PACKAGE, ROOT
from paceline.cli.app import COMMANDS

BEGIN, END = "<!-- strategies -->", "<!-- /strategies -->"
README = ROOT / "README.md"
FENCED = re.compile(r"^#+ [^\n]*\btree\b[^\n]*$.*?^```[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE | re.IGNORECASE)
LINK = re.compile(r"\]\((?!https?://|#|mailto:)([^)#\s]+)")


@pytest.fixture(scope="module")
def write_docs() -> ModuleType:
    """The tool that writes the generated docs."""
    found = importlib.util.spec_from_file_location("write_docs", ROOT / "tools" / "write_docs.py")
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_every_command_is_documented() -> None:
    text = (ROOT / "docs" / "cli.md").read_text()
    for name in COMMANDS:
        assert f"## paceline {name}\n" in text


def test_every_file_of_the_command_line_with_a_command_is_a_command() -> None:
    files = {path.stem for path in (PACKAGE / "cli").glob("*.py")}
    assert set(COMMANDS) <= files


def test_the_reference_of_commands_is_what_make_docs_writes(write_docs: ModuleType) -> None:
    assert (ROOT / "docs" / "cli.md").read_text() == write_docs.cli_reference()


def test_the_strategy_table_of_the_readme_is_what_make_docs_writes(write_docs: ModuleType) -> None:
    between = README.read_text().partition(BEGIN)[2].partition(END)[0]
    assert between.strip() == write_docs.strategy_table().strip()


def test_the_table_of_figures_is_what_make_docs_writes(write_docs: ModuleType) -> None:
    begin, end = write_docs.FIGURES
    between = (ROOT / "docs" / "figures.md").read_text().partition(begin)[2].partition(end)[0]
    assert between.strip() == write_docs.figure_table().strip()


def tree_paths(block: str) -> list[str]:
    """Paths of a tree drawn by indentation: names first, then two spaces, then what they are."""
    found: list[str] = []
    above: list[tuple[int, str]] = []
    for line in block.splitlines():
        depth = len(line) - len(line.lstrip(" │├└─"))
        names = re.split(r"\s{2,}|\s+#", line[depth:].strip(), maxsplit=1)[0].split()
        above = [(level, folder) for level, folder in above if level < depth]
        prefix = above[-1][1] if above else ""
        found += [prefix + name for name in names]
        if len(names) == 1 and names[0].endswith("/"):
            above.append((depth, prefix + names[0]))
    return found


def test_every_path_of_the_readmes_tree_exists() -> None:
    blocks = FENCED.findall(README.read_text())
    assert blocks, "README has no fenced block after a heading with the word tree"
    paths = tree_paths(blocks[0])
    assert len(paths) > 20
    assert [path for path in paths if not list(ROOT.glob(path.rstrip("/")))] == []


def test_every_part_of_the_package_stands_in_the_readmes_tree() -> None:
    named = {path.rstrip("/") for path in tree_paths(FENCED.findall(README.read_text())[0])}
    parts = {path for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    shown = {f"src/paceline/{path.name}" for path in parts if not path.name.startswith("__")}
    assert shown <= named


@pytest.mark.parametrize("name", ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", *sorted(
    path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").glob("*.md"))])  # fmt: skip
def test_links_inside_the_project_lead_somewhere(name: str) -> None:
    page = ROOT / name
    assert [link for link in LINK.findall(page.read_text()) if not (page.parent / link).exists()] == []
