"""Generated docs are up to date, ARCHITECTURE's tree is the real one, links lead somewhere, the README stays short."""

import importlib.util
import re
from dataclasses import fields
from types import ModuleType

import pytest

from architecture.conftest import PACKAGE, ROOT
from paceline.cli.app import COMMANDS
from paceline.contract import strategy as contract
from paceline.strategies import strategies

ARCHITECTURE = ROOT / "ARCHITECTURE.md"
README_LINES = 150
FENCED = re.compile(r"^#+ [^\n]*\btree\b[^\n]*$.*?^```[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE | re.IGNORECASE)
# A command in a block or between backticks, with what follows it up to the end of the line or of the code.
COMMAND_LINE = re.compile(r"(?:^\$? *|`|-m |&& )paceline ([a-z]+)([^`\n&]*)", re.MULTILINE)
# A file of the project between backticks, from its root or from that of the package.
CODE_PATH = re.compile(r"`((?:[\w-]+/)+[\w-]+\.(?:py|toml|json|txt|sh))`")
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


def test_the_table_of_strategies_is_what_make_docs_writes(write_docs: ModuleType) -> None:
    begin, end = write_docs.STRATEGIES
    between = (ROOT / "docs" / "strategies.md").read_text().partition(begin)[2].partition(end)[0]
    assert between.strip() == write_docs.strategy_table().strip()


def test_the_table_of_fields_is_what_make_docs_writes(write_docs: ModuleType) -> None:
    begin, end = write_docs.FIELDS
    between = (ROOT / "docs" / "strategies.md").read_text().partition(begin)[2].partition(end)[0]
    assert between.strip() == write_docs.field_table().strip()


def test_the_table_of_figures_is_what_make_docs_writes(write_docs: ModuleType) -> None:
    begin, end = write_docs.FIGURES
    between = (ROOT / "docs" / "figures.md").read_text().partition(begin)[2].partition(end)[0]
    assert between.strip() == write_docs.figure_table().strip()


def test_the_page_on_strategies_has_every_field_that_one_declares() -> None:
    page = (ROOT / "docs" / "adding-a-strategy.md").read_text()
    groups = (contract.Strategy, contract.Needs, contract.Traits, contract.Testing)
    declared = {field.name for group in groups for field in fields(group)}
    assert sorted(name for name in declared if not re.search(rf"`{name}\b|\b{name}=", page)) == []
    heeded = set().union(*(strategy.needs.heeds for strategy in strategies().values()))
    assert sorted(name for name in heeded if f"`{name}`" not in page) == []


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


@pytest.fixture(scope="module")
def drawn_paths() -> list[str]:
    """The paths of the tree that ARCHITECTURE.md draws."""
    blocks = FENCED.findall(ARCHITECTURE.read_text())
    assert blocks, "ARCHITECTURE.md has no fenced block after a heading with the word tree"
    return tree_paths(blocks[0])


def test_every_path_of_the_tree_exists(drawn_paths: list[str]) -> None:
    assert len(drawn_paths) > 20
    assert [path for path in drawn_paths if not list(ROOT.glob(path.rstrip("/")))] == []


def test_no_path_stands_in_the_tree_twice(drawn_paths: list[str]) -> None:
    assert sorted(path for path in set(drawn_paths) if drawn_paths.count(path) > 1) == []


def test_every_part_of_the_package_stands_in_the_tree(drawn_paths: list[str]) -> None:
    parts = {path for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    shown = {f"src/paceline/{path.name}" for path in parts if not path.name.startswith("__")}
    assert sorted(shown - {path.rstrip("/") for path in drawn_paths}) == []


def test_every_room_of_the_package_stands_in_the_tree(drawn_paths: list[str]) -> None:
    """A strategy's own package is a member of its room and not a room."""
    rooms = {path.parent for path in PACKAGE.rglob("*.py")} - {PACKAGE}
    strategies = {path for folder in (PACKAGE / "strategies").iterdir() if folder.is_dir() for path in folder.iterdir()}
    shown = {path.relative_to(ROOT).as_posix() for path in rooms - strategies}
    assert sorted(shown - {path.rstrip("/") for path in drawn_paths}) == []


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= README_LINES


PAGES = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"]
PAGES += sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))


@pytest.mark.parametrize("name", PAGES)
def test_links_inside_the_project_lead_somewhere(name: str) -> None:
    page = ROOT / name
    assert [link for link in LINK.findall(page.read_text()) if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("name", PAGES)
def test_files_that_a_page_names_exist(name: str) -> None:
    """A file called something is the reader's to write."""
    paths = {path for path in CODE_PATH.findall((ROOT / name).read_text()) if "something" not in path}
    assert [path for path in sorted(paths) if not any((place / path).exists() for place in (ROOT, PACKAGE))] == []


@pytest.mark.parametrize("name", PAGES)
def test_commands_on_a_page_exist_and_have_the_options_it_gives_them(name: str) -> None:
    sections = (ROOT / "docs" / "cli.md").read_text().split("\n## paceline ")[1:]
    options = {section.split("\n")[0]: set(re.findall(r"--[a-z-]+", section)) for section in sections}
    lines = COMMAND_LINE.findall((ROOT / name).read_text())
    wrong = {(command, option) for command, rest in lines for option in re.findall(r"--[a-z-]+", rest)
             if option not in options.get(command, {"--help"})}  # fmt: skip
    assert wrong == set()
    assert {command for command, _ in lines} - set(options) == set()
