"""The web application in real Chromium, at desktop and phone width: load, filter, start, watch, look."""

import json
import os
import re
import subprocess
import sysconfig
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from browser.conftest import PATIENCE_SECONDS, POLL_SECONDS, Browser, NoAnswerError
from paceline.api import run
from paceline.study import Study

SCRIPT = Path(sysconfig.get_path("scripts")) / "paceline"
PAGES = ("/", "/results", "/figures", "/compare", "/start", "/advisor")
SIZES = {"desktop": (1280, 900), "phone": (390, 844)}
STUDY = Study(
    name="before",
    repeats=3,
    fixed={"strategy": "fake", "global_batch": 100, "epochs": 2, "train_samples": 500, "knobs": {"jitter": 0.1}},
    factors={"workers": [1, 2], "workload": ["mnist-small", "mlp"]},
)
IMAGES_DRAWN = "document.images.length > 0 && [...document.images].every((i) => i.complete && i.naturalWidth > 100)"
LOAD_IMAGES = "document.querySelectorAll('img').forEach((image) => { image.loading = 'eager'; })"


# What can be clicked and is seen, and is smaller than a finger needs; links within a sentence are as high as its line.
SMALL_TARGETS = """[...document.querySelectorAll("a, button, summary, select, input, textarea")].filter((element) => {
    if (element.closest("p.soft:not(.links), .skip")) return false;
    const target = element.type === "checkbox" ? element.closest("label") : element;
    const box = target.getBoundingClientRect();
    return box.width > 1 && (box.height < 24 || box.width < 24);
}).map((element) => `${element.tagName} ${element.className} ${element.name || element.textContent} `
    + `${element.getBoundingClientRect().width} x ${element.getBoundingClientRect().height}`)"""


WIDE_TABLES_SAY_SO = """[...document.querySelectorAll(".scroll")].every((place) =>
    (place.scrollWidth > place.clientWidth + 1) === !place.previousElementSibling.hidden)"""


@pytest.fixture(scope="module")
def link(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The link that `paceline serve` printed, over results of the `fake` strategy."""
    folder = tmp_path_factory.mktemp("served")
    run(STUDY, folder / "results.db")
    said = folder / "said"
    with said.open("w") as out:
        words = [SCRIPT, "serve", "--db", "results.db", "--port", "0"]
        process = subprocess.Popen(
            words, cwd=folder, stdout=out, stderr=subprocess.STDOUT, env={**os.environ, "COLUMNS": "200"}
        )
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (found := re.search(r"http://\S+?:\d+/\?token=\S+", said.read_text())):
        assert time.monotonic() < deadline and process.poll() is None, said.read_text()
        time.sleep(POLL_SECONDS)
    yield found[0]
    process.terminate()
    assert process.wait(timeout=PATIENCE_SECONDS) == 0
    assert "Traceback" not in said.read_text()


@dataclass
class Tab:
    """The browser as a person uses it."""

    browser: Browser
    address: str
    name: str

    def visit(self, path: str, address: str | None = None) -> None:
        """Goes there and waits until the page is loaded."""
        url = (address or self.address) + path
        # The page that is left is marked, as it may have the same address.
        self.evaluate("window.left = true")
        self.browser.call("Page.navigate", url=url)
        self.wait_for(f"!window.left && location.href === {json.dumps(url)} && document.readyState === 'complete'")

    def evaluate(self, expression: str) -> Any:
        return self.browser.evaluate(expression)

    def wait_for(self, expression: str) -> None:
        """Also while one page gives way to the next, when for a moment there is nothing to ask."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not self._holds(expression):
            assert time.monotonic() < deadline, f"waited in vain for {expression}; the page: {self.text()}"
            time.sleep(POLL_SECONDS)

    def _holds(self, expression: str) -> bool:
        try:
            return bool(self.evaluate(f"Boolean({expression})"))
        except NoAnswerError:
            return False

    def click(self, selector: str) -> None:
        """A real click in the middle of an element, which must be there and must not be covered."""
        self.wait_for(f"document.querySelector({json.dumps(selector)})")
        x, y, hit = self.evaluate(
            f"""(() => {{
                const element = document.querySelector({json.dumps(selector)});
                element.scrollIntoView({{block: "center", behavior: "instant"}});
                const box = element.getBoundingClientRect();
                const [x, y] = [box.x + box.width / 2, box.y + box.height / 2];
                const top = document.elementFromPoint(x, y);
                return [x, y, element.contains(top) || (top !== null && top.contains(element))];
            }})()"""
        )
        assert hit, f"{selector} is covered by something else"
        for kind in ("mousePressed", "mouseReleased"):
            self.browser.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def write(self, selector: str, text: str) -> None:
        """Types into a field."""
        self.click(selector)
        self.browser.call("Input.insertText", text=text)

    def text(self) -> str:
        """What can be read on the page."""
        return str(self.evaluate("document.body.innerText"))

    def dark(self, wanted: bool) -> None:
        """Whether the person prefers dark pages."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if wanted else "light"}
        self.browser.call("Emulation.setEmulatedMedia", features=[scheme])


@pytest.fixture(params=SIZES)
def tab(request: pytest.FixtureRequest, browser: Browser, link: str) -> Iterator[Tab]:
    """At desktop and at phone width, after the link was opened; the console must stay empty."""
    width, height = SIZES[request.param]
    browser.errors.clear()
    browser.call(
        "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
    )
    opened = Tab(browser, link.partition("/?")[0], request.param)
    browser.call("Page.navigate", url=link)
    # The token is not in the address any more.
    opened.wait_for(f"location.href === {json.dumps(opened.address + '/')} && document.readyState === 'complete'")
    yield opened
    browser.evaluate("1")  # whatever the console still has to say is heard before the answer
    assert browser.errors == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_every_page_loads_within_the_width_of_the_screen(tab: Tab, dark: bool) -> None:
    tab.dark(dark)
    for page in PAGES:
        tab.visit(page)
        assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth"), page
        background, ink = tab.evaluate("(s => [s.backgroundColor, s.color])(getComputedStyle(document.body))")
        assert (background == "rgb(255, 255, 255)") != dark
        assert background != ink
        assert tab.evaluate(SMALL_TARGETS) == [], page
        tab.wait_for(WIDE_TABLES_SAY_SO)


def test_results_are_filtered_without_leaving_the_page_and_the_address_keeps_it(tab: Tab) -> None:
    tab.visit("/results?study=before")
    assert "4 of " in tab.text()
    tab.click("[data-filters] details:has([name=workload]) summary")
    tab.click("input[name=workload][value=mlp]")
    tab.wait_for("document.body.innerText.includes('2 of ')")
    assert "mnist-small on" not in tab.text()
    assert tab.evaluate("location.search") == "?study=before&workload=mlp"
    tab.visit("/results?study=before&workload=mlp")
    assert "2 of " in tab.text()


def test_a_table_is_sorted_by_its_headings(tab: Tab) -> None:
    tab.visit("/results?study=before&workload=mlp")
    rates = "[...document.querySelectorAll('tbody tr')].map((row) => Number(row.cells[3].dataset.value))"
    tab.click("thead th:nth-child(4) button")
    fastest_first = tab.evaluate(rates)
    assert len(fastest_first) == 2 and fastest_first == sorted(fastest_first, reverse=True)
    tab.click("thead th:nth-child(4) button")
    assert tab.evaluate(rates) == fastest_first[::-1]


def test_two_configurations_are_ticked_and_stand_side_by_side(tab: Tab) -> None:
    tab.visit("/results?study=before&workload=mlp")
    assert tab.evaluate("document.querySelector('.compare-bar button').disabled")
    tab.click("tbody tr:nth-child(1) input")
    tab.click("tbody tr:nth-child(2) input")
    tab.click(".compare-bar button")
    tab.wait_for("location.pathname === '/compare' && document.readyState === 'complete'")
    assert "By samples/s: fake x2 is 1." in tab.text()
    tab.evaluate(LOAD_IMAGES)
    tab.wait_for(IMAGES_DRAWN)


def test_a_figure_is_looked_at_and_explored(tab: Tab) -> None:
    tab.visit("/figures?study=before&workload=mlp")
    tab.evaluate(LOAD_IMAGES)
    tab.wait_for(IMAGES_DRAWN)
    # On a phone it is drawn anew, so that its words are not shrunk.
    drawn, shown = tab.evaluate("(image => [image.naturalWidth, image.width])(document.querySelector('#scaling img'))")
    assert (drawn < SIZES["phone"][0]) == (tab.name == "phone")
    assert shown >= 0.9 * drawn
    tab.click("#scaling [data-explore]")
    # The frame tells its height once Vega has drawn in it.
    tab.wait_for("document.querySelector('#scaling iframe').dataset.drawn")


def test_a_study_is_started_watched_and_found_among_the_results(tab: Tab) -> None:
    samples = {"desktop": "300", "phone": "400"}[tab.name]
    tab.visit("/start")
    tab.evaluate("document.querySelector('select[name=study]').value = ''")
    tab.click(".family:has([value=fake]) summary")
    tab.click("input[name=strategy][value=fake]")
    tab.write("input[name=workers]", "1,2")
    tab.write("input[name=global_batch]", "100")
    tab.click("form > details summary")
    tab.write("input[name=train_samples]", samples)
    wanted = f"paceline run --train-samples={samples} --strategy=fake --workers=1,2 --global-batch=100 --db=results.db"
    tab.wait_for(f"document.querySelector('[data-command]').textContent === {json.dumps(wanted)}")
    # The plan has followed the fields.
    tab.wait_for("document.querySelector('[data-planned]').innerText.includes('2 runs to make')")
    assert tab.evaluate("document.querySelectorAll('[data-planned] tbody tr').length") == 2
    tab.click("button.primary")
    tab.wait_for("location.pathname === '/' && document.querySelector('.job:first-child.done')")
    assert tab.evaluate("document.querySelectorAll('.job:first-child li b.ok').length") == 2
    tab.click(".job:first-child .links a")
    tab.wait_for("location.pathname === '/results' && document.readyState === 'complete'")
    assert f"first {samples}" in tab.text()


def test_ticked_configurations_are_tagged_and_found_by_their_tag(tab: Tab) -> None:
    tab.visit("/results?study=before&workload=mlp")
    tab.click("tbody tr:nth-child(2) input")
    tab.write(".tagging input", tab.name)
    tab.click("[data-tag=add]")
    tab.wait_for(f"[...document.querySelectorAll('tbody .tag')].some((tag) => tag.innerText === '{tab.name}')")
    tab.visit(f"/results?tag={tab.name}")
    assert "1 of " in tab.text()


def test_a_link_in_a_page_of_another_site_opens_the_application(tab: Tab, link: str, tmp_path: Path) -> None:
    page = tmp_path / "elsewhere.html"
    page.write_text(f'<a href="{link}">there</a>')
    tab.browser.call("Page.navigate", url=page.as_uri())
    # The page before asks for news until it is gone, and would be refused without a cookie.
    tab.wait_for("location.protocol === 'file:' && document.readyState === 'complete'")
    tab.browser.call("Network.clearBrowserCookies")
    tab.click("a")
    tab.wait_for(f"location.href === {json.dumps(tab.address + '/')} && document.title === 'Studies · Paceline'")


def test_a_long_study_is_stopped_by_its_button(tab: Tab) -> None:
    tab.visit("/start?strategy=fake&workers=1&steps=20000&knob=real_time%3Dtrue")
    tab.click("button.primary")
    tab.wait_for("document.querySelector('.job.running').innerText.includes('samples/s')")
    tab.wait_for("document.querySelector('.job.running .left')?.innerText.includes('left')")
    curves = "[...document.querySelectorAll('.job.running [data-curve]')].map((curve) => curve.dataset.curve)"
    tab.wait_for(f"{curves}.length === 4")
    assert tab.evaluate(curves) == ["loss", "samples/s", "cores in use", "memory"]
    line = "document.querySelector('.job.running [data-curve=loss] polyline').getAttribute('points')"
    tab.evaluate("window.stop = document.querySelector('.job.running .line button')")
    tab.wait_for(f"{line} !== {json.dumps(tab.evaluate(line))}")
    # News in the midst of a click must not put another button in its place.
    assert tab.evaluate("window.stop === document.querySelector('.job.running .line button')")
    tab.click(".job.running button")
    tab.wait_for("document.querySelector('.job:first-child.stopped')")


def test_the_advisor_runs_the_best_here_and_ranks_again(tab: Tab) -> None:
    tab.visit("/advisor?strategy=fake&workers=1,2")
    tab.click("[formaction='/advisor/measure']")
    tab.wait_for("location.pathname === '/' && document.querySelector('.job:first-child.done')")
    tab.click(".job:first-child .links a")
    tab.wait_for("location.pathname === '/advisor' && document.body.innerText.includes('Ranked for')")
    assert "How sure: likely, " in tab.text()
    assert "the best" in tab.evaluate("document.querySelector('table.advice tbody tr').innerText")


def test_wrong_input_is_shown_where_the_study_would_be(tab: Tab) -> None:
    tab.visit("/start?strategy=fake&workers=4&global_batch=30")
    tab.click("button.primary")
    tab.wait_for("document.querySelector('.job:first-child.refused')")
    assert "global_batch 30 does not divide over 4 workers; use a multiple of 4" in tab.text()


def test_a_page_of_another_site_can_start_nothing(tab: Tab) -> None:
    tab.visit("/")
    before = tab.evaluate("document.querySelectorAll('.job').length")
    secret = tab.evaluate("document.body.dataset.secret")
    # The same machine under another name is another site to the browser.
    tab.visit("/static/icon.svg", tab.address.replace("127.0.0.1", "localhost"))
    tab.evaluate(
        f"""fetch({json.dumps(tab.address + "/start")}, {{method: "POST", mode: "no-cors",
            body: new URLSearchParams({{secret: {json.dumps(secret)}, strategy: "fake"}})}}).catch(() => "blocked")"""
    )
    tab.browser.evaluate("1")
    tab.browser.errors.clear()  # the browser complains of what was refused, as it should
    tab.visit("/")
    assert tab.evaluate("document.querySelectorAll('.job').length") == before
