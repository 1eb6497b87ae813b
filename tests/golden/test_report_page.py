"""The report page, and that text of users can never become markup."""

import base64
import io
import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console

from golden.conftest import ENVIRONMENT
from paceline.cli import show
from paceline.errors import UserError
from paceline.record import Finding, Record
from paceline.report.page import render, write_figures

HOSTILE = "<script>alert('x')</script><b>&amp;"
MARKUP = "[red]text[/red]"
SVG = re.compile(r"<svg.*?</svg>", re.DOTALL)
SPECS = re.compile(r'(?<=<script id="specs" type="application/json">)(.*?)(?=</script>)', re.DOTALL)
LIBRARY = re.compile(r'<script id="library" type="module">.*?</script>', re.DOTALL)
# Looks and behaviour, which are files of their own and tested in a browser.
OWN = re.compile(r"(?<=<style>).*?(?=</style>)|(?<=<script type=\"module\">).*?(?=</script>)", re.DOTALL)
EMBEDDED = re.compile(r"data:([\w/]+);base64,([\w+/=]+)")
DOWNLOAD = re.compile(r'download="([^"]+)" href="data:[\w/]+;base64,([^"]+)"')
TEXT = "{http://www.w3.org/2000/svg}text"


def words_of(drawing: str) -> str:
    """A drawing's words in order: where they stand depends on the fonts of the machine."""
    found = ["".join(node.itertext()) for node in ElementTree.fromstring(drawing).iter(TEXT)]
    return "[figure: " + " | ".join(word for word in found if word) + "]"


def without_drawings(page: str) -> str:
    """The page with words in place of drawings, and without what the browser draws them with."""
    page = SVG.sub(lambda match: words_of(match[0]), page)
    page = SPECS.sub(lambda match: f"[data of {', '.join(json.loads(match[1]))}]", page)
    page = OWN.sub("", LIBRARY.sub("[library]", page))
    return EMBEDDED.sub(lambda match: f"data:{match[1]}[{len(base64.b64decode(match[2])) > 0}]", page)


def test_the_page_is_as_stored(
    printed: Callable[..., str], same_as_stored: Callable[[str, str], None], results_file: Path, tmp_path: Path
) -> None:
    said = printed("report", "--db", results_file, "--out", "page.html")
    assert said == "report: page.html\n"
    page = (tmp_path / "page.html").read_text()
    assert SVG.search(page)
    same_as_stored(without_drawings(page), "report.html")


def test_the_page_needs_nothing_from_elsewhere(records: list[Record]) -> None:
    page = LIBRARY.sub("", SPECS.sub("", render(records)))
    outside = re.findall(
        r"""(?:src|href)\s*=\s*["']?(?!#|data:)[^"'\s>]+|@import|url\((?!#|["']?(?:#|data:))[^)]*""", page
    )
    assert outside == []
    assert "default-src 'none'" in page


def test_the_page_is_small_enough_to_send(records: list[Record]) -> None:
    assert len(render(records).encode()) < 6_000_000


def test_the_numbers_are_in_the_page_as_csv_json_and_study(records: list[Record]) -> None:
    found = {name: base64.b64decode(body).decode() for name, body in DOWNLOAD.findall(render(records))}
    assert found["paceline-results.csv"].startswith("workload,dataset,")
    assert json.loads(found["paceline-results.json"])["rows"]
    assert tomllib.loads(found["scaling.toml"])["factors"]["workers"] == [1, 2, 4]


def test_every_figure_that_applies_can_be_written_as_files(
    printed: Callable[..., str], results_file: Path, tmp_path: Path
) -> None:
    said = printed("report", "--db", results_file, "--study", "scaling", "--figures", "pictures")
    kinds = {path.suffix for path in (tmp_path / "pictures").iterdir()}
    names = {path.stem for path in (tmp_path / "pictures").iterdir()}
    assert kinds == {".svg", ".png", ".csv"}
    assert {"ranking", "scaling", "efficiency"} <= names
    assert f"figures: {3 * len(names)} files in pictures" in said


def test_figures_that_cannot_be_written_are_a_mistake_in_words(records: list[Record], tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(UserError, match=r"the figures cannot be written to .*taken: .*; choose another folder with"):
        write_figures(records, tmp_path / "taken")


def test_a_page_without_runs_says_so() -> None:
    assert "No runs yet." in render([])


def test_a_page_of_failures_says_so_and_why(records: list[Record]) -> None:
    page = render([record for record in records if not record.ok])
    assert "No run gave a result; what happened to each is said below." in page
    assert "this run was told to fail" in page


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
    page = LIBRARY.sub("", render([hostile(record) for record in records]))
    ours = ['<script id="specs" type="application/json">', '<script type="module">']
    assert re.findall("<script[^>]*>", page) == ours
    assert "<b>" not in page
    assert HOSTILE in str(json.loads(SPECS.findall(page)[0]))
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
    assert any(line.startswith(f"{MARKUP} on mnist-5k · strong scaling, global batch 256 · 2 epochs") for line in lines)
    assert any(line.startswith("failed fake") and line.endswith(MARKUP) for line in lines)
