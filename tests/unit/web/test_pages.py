"""What the pages say, and that nothing a user wrote becomes part of them."""

import html
import json
import re
from pathlib import Path

import polars
import pytest
from starlette.testclient import TestClient

from paceline.figures import figures
from paceline.web import Site
from unit.web.conftest import HOSTILE, visiting

PAGES = ("/", "/results", "/figures", "/compare", "/start", "/advisor")


@pytest.mark.parametrize("address", PAGES)
def test_every_page_of_the_navigation_is_there_and_says_where_one_is(client: TestClient, address: str) -> None:
    answer = client.get(address)
    assert answer.status_code == 200
    assert f'<a href="{address}" aria-current="page">' in answer.text


@pytest.mark.parametrize("address", PAGES)
def test_an_empty_file_is_no_error_and_leads_to_the_form(tmp_path: Path, address: str) -> None:
    with visiting(Site(tmp_path / "none.db")) as client:
        answer = client.get(address)
    assert answer.status_code == 200
    assert 'href="/start"' in answer.text


def test_hostile_names_reasons_and_logs_are_text(client: TestClient, site: Site) -> None:
    bad = next(record for record in site.results.snapshot().records if not record.ok)
    hostile_query = f"?workload={HOSTILE}&study={HOSTILE}"
    pages = [*PAGES, f"/configurations/{bad.key}", f"/results{hostile_query}", f"/figures/{HOSTILE}.svg",
             f"/start?study={HOSTILE}&model={HOSTILE}", f"/compare?run={HOSTILE}"]  # fmt: skip
    for path in pages:
        text = client.get(path).text
        assert "<script>alert" not in text, path
    assert "&lt;script&gt;alert(1)" in client.get("/results").text
    assert "&lt;script&gt;alert(1)" in client.get(f"/configurations/{bad.key}").text


def test_a_study_has_its_answer_on_the_first_page(client: TestClient) -> None:
    text = client.get("/").text
    assert "Fastest here: fake with 2 workers, 1,601 samples/s, 1.60 times one worker" in text
    assert "1 did not end well" in text


def test_results_are_cut_by_workers_and_what_is_left_is_counted(client: TestClient) -> None:
    text = client.get("/results?workers=2").text
    assert "1 of 3 configurations" in text
    assert "1,601" in text and "1,001" not in text
    assert "No results match these filters." in client.get("/results?strategy=torch-ddp").text


def test_what_is_left_can_be_downloaded(client: TestClient) -> None:
    frame = polars.read_csv(client.get("/results/paceline.csv?workers=1").content)
    assert frame["samples_per_second"].to_list() == [1001.0]
    values = json.loads(client.get("/results/paceline.json?workers=2").text)
    assert len(values["records"]) == 3
    assert client.get("/results/paceline.parquet").content.startswith(b"PAR1")
    assert client.get("/results/paceline.exe").status_code == 404
    report = client.get("/results/report?workers=2")
    assert "Paceline" in report.text and "attachment" in report.headers["content-disposition"]


def test_every_figure_that_applies_is_shown_and_is_an_image(client: TestClient, site: Site) -> None:
    text = client.get("/figures").text
    for name in figures():
        answer = client.get(f"/figures/{name}.svg")
        assert (f'src="/figures/{name}.svg' in text) == (answer.status_code == 200)
    assert client.get("/figures/scaling.svg").headers["content-type"] == "image/svg+xml"
    assert client.get("/figures/scaling.png").content.startswith(b"\x89PNG")
    assert json.loads(client.get("/figures/scaling.json").text)["$schema"]


def test_a_figure_of_what_cannot_answer_it_is_not_there(client: TestClient) -> None:
    for path in ("/figures/scaling.svg?workers=3", "/figures/nothing.svg", "/figures/scaling.exe"):
        assert client.get(path).status_code == 404


def test_two_configurations_stand_side_by_side_with_a_verdict(client: TestClient, site: Site) -> None:
    keys = sorted({(record.spec.workers, record.key) for record in site.results.snapshot().records if record.ok})
    text = client.get(f"/compare?run={keys[1][1]}&run={keys[0][1]}").text
    assert "By samples/s: fake x2 is 1.60 times fake x1, likely (p = 0.1)" in text
    assert '<tr class="differs"><td>workers</td><td>2</td><td>1</td></tr>' in text
    assert f"/figures/scaling.svg?run={keys[1][1]}&amp;run={keys[0][1]}" in text


def test_every_figure_that_a_page_shows_of_some_configurations_is_there(client: TestClient, site: Site) -> None:
    two = next(record.key for record in site.results.snapshot().records if record.spec.workers == 2)
    one = next(record.key for record in site.results.snapshot().records if record.spec.workers == 1)
    for page in (f"/configurations/{two}", f"/compare?run={two}&run={one}"):
        shown = re.findall(r'<img src="([^"]+)"', client.get(page).text)
        assert shown
        for address in shown:
            assert client.get(html.unescape(address)).status_code == 200, address


def test_more_than_two_or_unknown_configurations_are_refused_in_a_sentence(client: TestClient) -> None:
    answer = client.get("/compare?run=a&run=b&run=c")
    assert answer.status_code == 400
    assert "3 configurations were chosen to be put side by side; choose two" in answer.text
    assert "there is no configuration &#39;a&#39; in the results; choose another" in client.get("/compare?run=a").text


def test_a_configuration_shows_its_repeats_epochs_and_settings(client: TestClient, site: Site) -> None:
    record = site.results.snapshot().records[0]
    text = client.get(f"/configurations/{record.key}").text
    assert text.count("<h2>Repeat ") == 3
    assert "<dt>optimizer lr</dt><dd>0.001</dd>" in text
    assert client.get("/configurations/none").status_code == 404


def test_the_form_keeps_what_the_address_says_and_shows_the_command(client: TestClient, db: Path) -> None:
    text = client.get("/start?strategy=fake&workers=1,2&breakdown=on").text
    assert f"paceline run --strategy=fake --workers=1,2 --breakdown --db={db}" in text
    assert 'name="strategy" value="fake" checked' in text


def test_the_command_of_the_fields_is_told_as_they_change(client: TestClient, site: Site) -> None:
    fields = {"secret": site.secret, "study": "quick", "workers": "1..4"}
    assert client.post("/start/command", data=fields).text == f"paceline run quick --workers=1..4 --db={site.db}"
    answer = client.post("/start", data={**fields, "study": "--fresh"})
    assert (answer.status_code, site.jobs.all) == (400, [])


def test_the_icon_is_found_by_the_name_that_browsers_guess(client: TestClient) -> None:
    assert client.get("/favicon.ico").headers["content-type"] == "image/svg+xml"


def test_a_page_that_is_not_there_says_so(client: TestClient) -> None:
    answer = client.get("/nowhere")
    assert answer.status_code == 404
    assert "There is no such page" in answer.text


def test_a_file_that_is_no_results_file_is_told_and_not_shown(tmp_path: Path) -> None:
    (tmp_path / "other.db").write_text("something else entirely")
    with visiting(Site(tmp_path / "other.db")) as client:
        answer = client.get("/results")
    assert answer.status_code == 400
    assert "is not a sound results file" in answer.text
