"""The report page: its parts, that it needs no network, and that text of users can never become markup."""

import base64
import io
import json
import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console

from golden.conftest import CROWDED, ENVIRONMENT
from paceline.analysis.findings import gather_findings
from paceline.analysis.rows import summarise
from paceline.cli import show
from paceline.errors import UserError
from paceline.record import Finding, Record
from paceline.report.page import render, write_figures

HOSTILE = "<script>alert('x')</script><b>&amp;"
MARKUP = "[red]text[/red]"
SVG = re.compile(r"<svg.*?</svg>", re.DOTALL)
SPECS = re.compile(r'(?<=<script id="specs" type="application/json">)(.*?)(?=</script>)', re.DOTALL)
LIBRARY = re.compile(r'<script id="library" type="module">.*?</script>', re.DOTALL)
DOWNLOAD = re.compile(r'download="([^"]+)" href="data:[\w/]+;base64,([^"]+)"')
TEXT = "{http://www.w3.org/2000/svg}text"


def words_of(drawing: str) -> str:
    """A drawing's words in order: where they stand depends on the fonts of the machine."""
    found = ["".join(node.itertext()) for node in ElementTree.fromstring(drawing).iter(TEXT)]
    return "[figure: " + " | ".join(word for word in found if word) + "]"


@dataclass
class Element:
    """A part of a page: its tag, its attributes, and the text and elements within it."""

    tag: str
    attributes: dict[str, str]
    inside: list["Element | str"] = field(default_factory=list)

    @property
    def text(self) -> str:
        """All words within it, with single spaces."""
        return " ".join("".join(part if isinstance(part, str) else f" {part.text} " for part in self.inside).split())

    def all(self, tag: str, **attributes: str) -> list["Element"]:
        """Elements within it of that tag and with these attributes, in the order of the page."""
        within = [part for part in self.inside if isinstance(part, Element)]
        return [
            found
            for part in within
            for found in ([part] if part.tag == tag and attributes.items() <= part.attributes.items() else [])
            + part.all(tag, **attributes)
        ]


class Reader(HTMLParser):
    """Reads a page and holds that every element is closed where it must be."""

    EMPTY = frozenset({"meta", "br", "img"})

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open = [Element("page", {})]
        self.feed(page)
        self.close()
        assert [element.tag for element in self.open] == ["page"]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs})
        self.open[-1].inside.append(element)
        if tag not in self.EMPTY:
            self.open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open[-1].inside.append(Element(tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop().tag == tag

    def handle_data(self, data: str) -> None:
        self.open[-1].inside.append(data)


def read(page: str) -> Element:
    return Reader(page).open[0]


@pytest.fixture(scope="module")
def text(records: list[Record]) -> str:
    """The page of two studies with runs that scale, are crowded, fail and are skipped."""
    return render(records)


@pytest.fixture(scope="module")
def page(text: str) -> Element:
    return read(text)


def test_the_command_writes_the_page_and_says_where(
    printed: Callable[..., str], results_file: Path, tmp_path: Path
) -> None:
    assert printed("report", "--db", results_file, "--out", "page.html") == "report: page.html\n"
    assert read((tmp_path / "page.html").read_text()).all("h1")[0].text == "Paceline report"


def test_the_page_says_whose_runs_it_shows(page: Element) -> None:
    assert page.all("title")[0].text == "Paceline report: faults, scaling"
    assert page.all("header")[0].text.startswith("Paceline report 10 runs of faults, scaling")


def test_the_page_has_its_sections_in_order_and_a_way_to_each(page: Element) -> None:
    sections = [heading.attributes.get("id") for heading in page.all("h2")]
    assert [name for name in sections if name] == ["ranking", "findings", "repeat"]
    assert page.all("h2")[-1].text == "Environment"
    named = {
        element.attributes["id"] for tag in ("h2", "h3") for element in page.all(tag) if "id" in element.attributes
    }
    ways = [link.attributes["href"] for link in page.all("nav")[0].all("a")]
    assert {way.removeprefix("#") for way in ways} == named


def test_the_answer_comes_first_with_a_line_for_each_setting(page: Element) -> None:
    first = next(part for part in page.all("main")[0].inside if isinstance(part, Element))
    assert first.attributes["class"] == "answer"
    assert first.text == "fake alone was measured, in 2 settings; 1 of 2 has too few runs to be sure."
    (table,) = page.all("table", **{"class": "verdicts"})
    assert [heading.text for heading in table.all("th")] == ["setting", "best", "by how much", "how sure"]
    lines = [[cell.text for cell in line.all("td")] for line in table.all("tbody")[0].all("tr")]
    assert [line[1:] for line in lines] == [
        ["fake x1", "–", "nothing else (1 run)"],
        ["fake x4", "71 % over fake x2", "likely (3 runs)"],
    ]


def test_a_page_of_one_setting_says_what_why_and_how_sure(records: list[Record]) -> None:
    alone = read(render([record for record in records if record.spec.global_batch == 256]))
    (first,) = alone.all("section", **{"class": "answer"})
    what, why, sure, setting = (paragraph.text for paragraph in first.all("p"))
    assert what.startswith("Fastest here: fake with 4 workers, 67,949 samples/s")
    assert why.startswith("Why: ")
    assert sure.startswith("How sure: likely, 71 % ahead of fake x2 in each of 3 runs (4 would make it sure)")
    assert "global batch 256" in setting
    assert not alone.all("table", **{"class": "verdicts"})


def test_the_ranking_has_a_row_for_each_configuration_and_values_to_sort_by(page: Element) -> None:
    (table,) = page.all("table", **{"class": "sortable"})
    headings = [heading.text for heading in table.all("th")]
    assert all(heading.all("button") for heading in table.all("th"))
    rows = table.all("tbody")[0].all("tr")
    cells = [dict(zip(headings, row.all("td"), strict=True)) for row in rows]
    assert [(row["strategy"].text, row["workers"].text) for row in cells] == [
        ("fake", "4*"), ("fake", "2"), ("fake", "1"), ("fake", "1"),
    ]  # fmt: skip
    assert [row.attributes.get("class") for row in rows] == ["best", None, None, "best"]
    for row in cells:
        rate = row["samples/s"]
        assert rate.text == f"{float(rate.attributes['data-value']):,.0f}"


def test_what_gave_no_result_is_listed_with_its_reason(page: Element, records: list[Record]) -> None:
    (failed,) = [details for details in page.all("details") if "no result" in details.all("summary")[0].text]
    listed = [entry.text for entry in failed.all("li")]
    reasons = [str(record.reason) for record in records if not record.ok]
    assert len(listed) == len(reasons) == 5
    assert all(any(reason in entry for entry in listed) for reason in reasons)


def test_every_figure_has_a_heading_a_drawing_and_the_data_to_make_it_anew(page: Element) -> None:
    names = [figure.attributes["data-name"] for figure in page.all("div", **{"class": "figure"})]
    assert names == ["ranking", "scaling", "efficiency", "energy", "memory", "first-epoch", "losses"]
    assert [heading.attributes["id"] for heading in page.all("h3")] == [f"figure-{name}" for name in names]
    for figure in page.all("div", **{"class": "figure"}):
        (still,) = figure.all("div", **{"class": "still"})
        assert len(still.all("svg")) == 1
        assert "fake" in still.text
    (data,) = page.all("script", id="specs")
    assert list(json.loads("".join(map(str, data.inside)))) == names


def test_every_finding_is_told_with_what_to_do_and_where_it_holds(page: Element) -> None:
    (findings,) = page.all("ul", **{"class": "findings"})
    found = {entry.all("span", **{"class": "code"})[0].text: entry for entry in findings.all("li")}
    assert set(found) == {"slow first epoch", "oversubscribed", "few repeats"}
    assert CROWDED.text in found["oversubscribed"].text
    assert CROWDED.hint in found["oversubscribed"].all("em")[0].text
    assert found["oversubscribed"].all("span", **{"class": "soft"})[0].text.startswith("fake x4")


def test_each_study_can_be_read_downloaded_and_run_again(page: Element, text: str) -> None:
    commands = [block.text for block in page.all("pre") if block.text.startswith("paceline run")]
    assert commands == ["paceline run scaling.toml", "paceline run faults.toml"]
    downloads = {name: base64.b64decode(body).decode() for name, body in DOWNLOAD.findall(text)}
    assert list(downloads) == ["scaling.toml", "faults.toml", "paceline-results.csv", "paceline-results.json"]
    shown = ["".join(map(str, details.all("pre")[0].inside)) for details in page.all("details") if details.all("pre")]
    for name, study in zip(("scaling.toml", "faults.toml"), shown, strict=True):
        assert tomllib.loads(study) == tomllib.loads(downloads[name])


def test_the_environment_is_on_the_page(page: Element) -> None:
    (listed,) = page.all("dl")
    names, values = ([entry.text for entry in listed.all(tag)] for tag in ("dt", "dd"))
    told = dict(zip(names, values, strict=True))
    assert (told["host"], told["cpu"], told["cores"]) == ("a-machine", "a processor", "2")
    assert told["frameworks"] == "torch 2.0.0"


def test_the_page_needs_nothing_from_elsewhere(text: str) -> None:
    page = LIBRARY.sub("", SPECS.sub("", text))
    outside = re.findall(
        r"""(?:src|href)\s*=\s*["']?(?!#|data:)[^"'\s>]+|@import|url\((?!#|["']?(?:#|data:))[^)]*""", page
    )
    assert outside == []
    assert "default-src 'none'" in page


def test_the_page_is_small_enough_to_send(text: str) -> None:
    assert len(text.encode()) < 6_000_000


def test_the_numbers_are_in_the_page_as_csv_json_and_study(text: str) -> None:
    found = {name: base64.b64decode(body).decode() for name, body in DOWNLOAD.findall(text)}
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
    rows = summarise(marked)
    show.print_results(rows, gather_findings(marked, rows))
    lines = console.file.getvalue().splitlines()
    assert f"  {MARKUP}" in lines
    assert any(line.startswith(f"{MARKUP} on mnist-5k · strong scaling, global batch 256 · 2 epochs") for line in lines)
    assert any(line.startswith("failed fake") and line.endswith(MARKUP) for line in lines)
