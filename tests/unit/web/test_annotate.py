"""Tags and notes in the pages: written from them, shown, filtered and grouped by."""

import re

import pytest
from starlette.testclient import TestClient

from paceline.web import Site
from unit.web.conftest import HOSTILE


def key_of(site: Site, workers: int) -> str:
    return next(record.key for record in site.results.snapshot().records if record.spec.workers == workers)


def tag(client: TestClient, site: Site, *workers: int, word: str = "good", **more: str) -> None:
    fields = {"secret": site.secret, "run": [key_of(site, count) for count in workers], "tag": word, **more}
    assert client.post("/tags", data=fields).status_code in (204, 303)


def test_a_tag_is_shown_in_the_table_and_leads_to_all_that_have_it(client: TestClient, site: Site) -> None:
    tag(client, site, 2, word="good & fast")
    assert '<a class="tag" href="/results?tag=good%20%26%20fast">good &amp; fast</a>' in client.get("/results").text
    text = client.get("/results?tag=good%20%26%20fast").text
    assert "1 of 3 configurations" in text
    assert key_of(site, 2) in text and key_of(site, 1) not in text
    assert "0 of 3 configurations" in client.get("/results?tag=other").text


def test_a_tag_is_taken_off_again(client: TestClient, site: Site) -> None:
    tag(client, site, 1, 2)
    assert "2 of 3 configurations" in client.get("/results?tag=good").text
    tag(client, site, 1, remove="1")
    assert "1 of 3 configurations" in client.get("/results?tag=good").text


def test_figures_and_downloads_are_of_those_with_the_tag(client: TestClient, site: Site) -> None:
    tag(client, site, 1)
    assert len(client.get("/results/paceline.csv?tag=good").text.splitlines()) == 2


def test_a_note_is_shown_with_its_configuration_and_in_the_table(client: TestClient, site: Site) -> None:
    key = key_of(site, 2)
    answer = client.post("/notes", data={"secret": site.secret, "run": key, "note": f"warm room {HOSTILE}"})
    assert (answer.status_code, answer.headers["location"]) == (303, f"/configurations/{key}")
    for page in (f"/configurations/{key}", "/results"):
        text = client.get(page).text
        assert "warm room &lt;script&gt;" in text and "<script>alert" not in text


@pytest.mark.parametrize(
    ("group", "titles"),
    [
        ("tag", ["good", "no tag"]),
        ("workers", ["1 worker", "2 workers", "3 workers"]),
        ("strategy", ["fake"]),
        ("study", ["trial"]),
        ("workload", ["mnist-small"]),
        ("nothing known", []),
        ("", []),
    ],
)
def test_results_are_grouped(client: TestClient, site: Site, group: str, titles: list[str]) -> None:
    tag(client, site, 1)
    text = client.get("/results", params={"group": group}).text
    shown = re.findall(r'<h2 class="group">(?:\w+): ([^<]+)</h2>', text)
    assert [title for title in shown if "script" not in title] == titles


@pytest.mark.parametrize("address", ["/tags", "/notes"])
def test_what_names_no_configuration_is_refused(client: TestClient, site: Site, address: str) -> None:
    for keys in ([], ["none"], [key_of(site, 1), "none"]):
        answer = client.post(address, data={"secret": site.secret, "run": keys, "tag": "good", "note": "text"})
        assert answer.status_code == 400
        assert "this names no configuration of the results; load the page again and tick one" in answer.text
    assert site.results.snapshot().annotations == {}


@pytest.mark.parametrize("address", ["/tags", "/notes"])
def test_other_sites_cannot_write(client: TestClient, site: Site, address: str) -> None:
    fields = {"run": key_of(site, 1), "tag": "bad", "note": "bad"}
    assert client.post(address, data={**fields, "secret": "guess"}).status_code == 403
    other = {"origin": "http://evil.example"}
    assert client.post(address, data={**fields, "secret": site.secret}, headers=other).status_code == 403
    assert site.results.snapshot().annotations == {}
