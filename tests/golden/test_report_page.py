"""The report page, and that text of users can never become markup."""

import io
import re
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console

from golden.conftest import ENVIRONMENT
from paceline.cli import show
from paceline.record import Finding, Record
from paceline.report.page import render

HOSTILE = "<script>alert('x')</script><b>&amp;"
MARKUP = "[red]text[/red]"
SVG = re.compile(r"<svg.*?</svg>", re.DOTALL)
TEXT = "{http://www.w3.org/2000/svg}text"


def words_of(drawing: str) -> str:
    """A drawing's words in order: where they stand depends on the fonts of the machine."""
    found = ["".join(node.itertext()) for node in ElementTree.fromstring(drawing).iter(TEXT)]
    return "[figure: " + " | ".join(word for word in found if word) + "]"


def test_the_page_is_as_stored(
    printed: Callable[..., str], same_as_stored: Callable[[str, str], None], results_file: Path, tmp_path: Path
) -> None:
    said = printed("report", "--db", results_file, "--out", "page.html")
    assert said == "report: page.html\n"
    page = (tmp_path / "page.html").read_text()
    assert SVG.search(page)
    same_as_stored(SVG.sub(lambda match: words_of(match[0]), page), "report.html")


def test_the_page_needs_nothing_from_elsewhere(records: list[Record]) -> None:
    page = render(records)
    outside = re.findall(
        r"""(?:src|href)\s*=\s*["']?(?!#|data:)[^"'\s>]+|@import|url\((?!#|["']?(?:#|data:))[^)]*""", page
    )
    assert outside == []
    assert "<script" not in page


def test_a_page_without_runs_says_so() -> None:
    assert "No runs yet." in render([])


def hostile(record: Record) -> Record:
    """The record with hostile text wherever a user or a worker can put text."""
    return record.model_copy(
        update={
            "study": HOSTILE,
            "spec": record.spec.model_copy(update={"workload": f"{HOSTILE}.py:build", "dataset": HOSTILE}),
            "reason": record.reason and HOSTILE,
            "findings": (Finding(code=HOSTILE, text=HOSTILE, hint=HOSTILE),),
            "environment": {**ENVIRONMENT, "host": HOSTILE, "cpu": HOSTILE},
        }
    )


def test_text_of_users_is_escaped_everywhere_on_the_page(records: list[Record]) -> None:
    page = render([hostile(record) for record in records])
    assert "<script" not in page
    assert "<b>" not in page
    assert page.count("&lt;script&gt;") > 10
    for drawing in SVG.findall(page):
        assert HOSTILE in words_of(drawing)


def test_text_that_looks_like_terminal_markup_is_printed_as_it_is(
    records: list[Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    console = Console(width=200, file=io.StringIO())
    marked = [
        record.model_copy(
            update={
                "spec": record.spec.model_copy(update={"workload": MARKUP}),
                "reason": record.reason and MARKUP,
                "findings": (Finding(code="a_code", text=MARKUP, hint=MARKUP),),
            }
        )
        for record in records
    ]
    monkeypatch.setattr(show, "output", lambda: console)
    show.print_results(marked, show.summarise(marked))
    lines = console.file.getvalue().splitlines()
    assert f"  {MARKUP}" in lines
    assert f"{MARKUP} on mnist-5k · strong scaling, global batch 256 · 2 epochs" in lines
    assert any(line.startswith("failed fake") and line.endswith(MARKUP) for line in lines)
