"""The guide says what the advisor answers now."""

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_tables_of_the_guide_are_what_make_docs_writes() -> None:
    found = importlib.util.spec_from_file_location("write_guide", ROOT / "tools" / "write_guide.py")
    assert found is not None and found.loader is not None
    tool = importlib.util.module_from_spec(found)
    found.loader.exec_module(tool)
    assert tool.GUIDE.read_text() == tool.with_tables(tool.GUIDE.read_text())
