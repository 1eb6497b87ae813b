"""Requests that no page of ours sends: each is answered in a sentence, and nothing grows without bound."""

import json

import pytest
from starlette.testclient import TestClient

from paceline.errors import UserError
from paceline.web import Site
from paceline.web.events import MOST_STREAMS
from paceline.web.job import KEPT_LOG_LINES, LONGEST_LINE, Job
from paceline.web.jobs import MOST_ENDED, MOST_WAITING, Jobs

FORMS = ("/start", "/start/command", "/start/plan", "/advisor")


@pytest.mark.parametrize("address", FORMS)
@pytest.mark.parametrize("field", ["workers", "bad\x00name"])
def test_a_nul_in_a_field_is_refused_in_a_sentence(client: TestClient, site: Site, address: str, field: str) -> None:
    answer = client.post(address, data={"secret": site.secret, field: "1\x002"})
    assert answer.status_code == 400
    assert "has a control character, which no option takes; type it anew" in answer.text
    assert site.jobs.all == []


@pytest.mark.parametrize("address", FORMS)
def test_more_fields_than_a_form_has_are_refused_in_a_sentence(client: TestClient, site: Site, address: str) -> None:
    answer = client.post(address, data={"secret": site.secret, **{f"n{number}": "" for number in range(1500)}})
    assert answer.status_code == 413
    assert "the form has more than 1000 fields; fill in fewer" in answer.text


@pytest.mark.parametrize("number", ["9" * 5000, "1", "x", "-1", "%00", "٣"])
def test_a_study_that_there_is_not_cannot_be_stopped(client: TestClient, site: Site, number: str) -> None:
    assert client.post(f"/stop/{number}", data={"secret": site.secret}).status_code == 404


@pytest.mark.parametrize("address", ["/static/%00", "/figures/%00.svg", "/configurations/%00", "/results?study=%00"])
def test_a_nul_in_an_address_is_no_fault_of_the_server(client: TestClient, address: str) -> None:
    assert client.get(address).status_code in (200, 404)


def test_no_more_pages_follow_than_a_person_can_look_at(client: TestClient, site: Site) -> None:
    site.streams = MOST_STREAMS
    answer = client.get("/events")
    assert (answer.status_code, "pages follow already; close some" in answer.text) == (503, True)


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> Jobs:
    """A queue that starts nothing."""

    async def nothing(_jobs: Jobs) -> None:
        return

    monkeypatch.setattr(Jobs, "_work", nothing)
    monkeypatch.setattr("asyncio.create_task", lambda work: work.close())
    return Jobs()


def test_only_the_newest_ended_studies_are_kept_and_all_that_are_open(queue: Jobs) -> None:
    first = queue.start(["run", "quick"])
    for _ in range(2 * MOST_ENDED):
        queue.stop(queue.start(["run", "quick"]))
    assert len(queue.all) == MOST_ENDED + 1
    assert queue.all[0] is first and queue.all[-1].number == 2 * MOST_ENDED + 1


def test_a_queue_that_is_full_says_so(queue: Jobs) -> None:
    for _ in range(MOST_WAITING):
        queue.start(["run", "quick"])
    with pytest.raises(UserError, match=f"{MOST_WAITING} studies wait for their turn already; stop some"):
        queue.start(["run", "quick"])


def test_what_a_study_prints_is_kept_only_at_its_end_and_long_lines_are_cut() -> None:
    job = Job(1, ("run",), state="running")
    for number in range(500):
        job.read_line("x" * 100_000)
        job.read_line(json.dumps({"event": "log", "rank": 0, "text": f"{number} " + "y" * 100_000 + "\n"}))
    shown = job.snapshot()
    assert len(json.dumps(shown)) < 100_000
    assert len(shown["log"].splitlines()) == KEPT_LOG_LINES
    assert max(map(len, shown["log"].splitlines())) == LONGEST_LINE
    assert shown["log"].splitlines()[-1].startswith("[0] 499 ")
