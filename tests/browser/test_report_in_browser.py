"""The report in a real browser: figures come alive, tables sort, phones and printers get a readable page."""

from pathlib import Path
from typing import Any

import pytest

from browser.conftest import Browser
from paceline.report import write_report
from unit.figures import example_records

PHONE, DESKTOP = 390, 1280
HOSTILE = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>.py:build'
RATES = "[...document.querySelectorAll('table.sortable tbody tr')].map(row => row.cells[{column}].textContent)"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a small study with everything in it."""
    records = example_records.built_in("quick", instrumented=True)
    return write_report(records, tmp_path_factory.mktemp("report") / "report.html")


@pytest.fixture(scope="module")
def grid_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a study with many settings."""
    return write_report(example_records.built_in("scaling"), tmp_path_factory.mktemp("report") / "grid.html")


def all_alive(browser: Browser) -> int:
    """Scrolls through the page until every figure is interactive; gives their number."""
    figures: int = browser.evaluate("document.querySelectorAll('.figure').length")
    for place in range(figures):
        browser.evaluate(f"document.querySelectorAll('.figure')[{place}].scrollIntoView({{behavior: 'instant'}})")
        browser.wait_for(f"!!document.querySelectorAll('.figure')[{place}].querySelector('.still.gone')")
    return figures


@pytest.mark.parametrize("width", [PHONE, DESKTOP])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_every_figure_comes_alive_without_an_error(browser: Browser, page: Path, width: int, dark: bool) -> None:
    browser.open(page, width=width, dark=dark)
    assert all_alive(browser) >= 8
    assert browser.evaluate("document.querySelectorAll('.live svg').length") >= 8
    assert browser.errors == []


@pytest.mark.parametrize("width", [PHONE, DESKTOP])
def test_the_page_is_no_wider_than_the_screen_and_figures_fit(browser: Browser, page: Path, width: int) -> None:
    browser.open(page, width=width)
    all_alive(browser)
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    edges = "[...document.querySelectorAll('.live svg')].map(svg => svg.getBoundingClientRect().right)"
    assert max(browser.evaluate(edges)) <= width


def test_the_answer_is_on_the_first_screen_of_a_phone(browser: Browser, page: Path) -> None:
    browser.open(page, width=PHONE, height=844)
    assert browser.evaluate("document.querySelectorAll('.answer p').length") == 4
    assert browser.evaluate("document.querySelector('.answer').getBoundingClientRect().bottom") <= 844


def test_a_click_on_a_heading_sorts_the_ranking_and_another_turns_it(browser: Browser, page: Path) -> None:
    browser.open(page)
    heads = browser.evaluate("[...document.querySelectorAll('table.sortable th')].map(head => head.textContent)")
    column = heads.index("samples/s")

    def click() -> list[float]:
        browser.evaluate(f"document.querySelectorAll('table.sortable th button')[{column}].click()")
        return [float(text.replace(",", "")) for text in browser.evaluate(RATES.format(column=column))]

    assert click() == sorted(click(), reverse=True)
    assert browser.evaluate(f"document.querySelectorAll('table.sortable th')[{column}].ariaSort") == "ascending"


def test_words_sort_by_the_alphabet(browser: Browser, page: Path) -> None:
    browser.open(page)
    for _ in range(2):
        browser.evaluate("document.querySelectorAll('table.sortable th button')[1].click()")
    names = browser.evaluate(RATES.format(column=1))
    assert names == sorted(names)


def test_a_setting_is_chosen_from_a_list_and_the_figure_follows(browser: Browser, grid_page: Path) -> None:
    browser.open(grid_page)
    browser.evaluate("document.querySelector('[data-name=ranking]').scrollIntoView({behavior: 'instant'})")
    browser.wait_for("!!document.querySelector('[data-name=ranking] select')")
    words = "document.querySelector('[data-name=ranking] .live svg').textContent"
    before: Any = browser.evaluate(words)
    choose = "const list = document.querySelector('[data-name=ranking] select'); list.selectedIndex = 0; "
    browser.evaluate(
        f"(() => {{ {choose} list.dispatchEvent(new Event('input')); list.dispatchEvent(new Event('change')); }})()"
    )
    after = browser.wait_for(f"{words} !== {before!r} && {words}")
    assert "mnist-small" in after
    assert browser.errors == []


def test_text_of_users_never_becomes_markup(browser: Browser, tmp_path: Path) -> None:
    records = [
        record.model_copy(update={"spec": record.spec.model_copy(update={"workload": HOSTILE}), "study": HOSTILE})
        for record in example_records.built_in("quick")
    ]
    browser.open(write_report(records, tmp_path / "hostile.html"))
    all_alive(browser)
    assert browser.evaluate("window.hacked === undefined")
    assert HOSTILE in browser.evaluate("document.body.textContent")
    browser.errors.clear()


def test_it_prints(browser: Browser, page: Path) -> None:
    browser.open(page)
    printed = browser.pdf()
    assert printed.startswith(b"%PDF")
    assert len(printed) > 50_000
