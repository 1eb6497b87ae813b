"""Who is answered: names of this machine only, own pages only, and with a token only those who have it."""

from pathlib import Path

import pytest
from starlette.testclient import TestClient

from paceline.web import Site, make_app
from paceline.web.guard import COOKIE, without_token

TOKEN = "a-token-of-this-test"


@pytest.mark.parametrize("host", ["localhost:8337", "127.0.0.1:1", "[::1]:8337", "localhost", "LOCALHOST"])
def test_names_of_this_machine_are_answered(client: TestClient, host: str) -> None:
    assert client.get("/", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example:8337", "", "[::2]", "[bad"]
)
def test_another_name_for_this_machine_is_refused_so_that_a_foreign_page_cannot_read(
    client: TestClient, host: str
) -> None:
    answer = client.get("/results", headers={"host": host})
    assert answer.status_code == 403
    assert "is not a name of this machine; use localhost" in answer.text


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://[bad"},
        {"origin": "http://localhost:9999"},
        {"origin": "http://localhost:8337.evil.example"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
@pytest.mark.parametrize("address", ["/start", "/start/plan", "/start/command", "/stop/1"])
def test_another_site_cannot_change_anything_even_with_the_secret(
    client: TestClient, site: Site, address: str, headers: dict[str, str]
) -> None:
    answer = client.post(address, data={"secret": site.secret, "strategy": "fake"}, headers=headers)
    assert answer.status_code == 403
    assert "another site asked for this" in answer.text
    assert site.jobs.all == []


@pytest.mark.parametrize("secret", ["", "guess", None])
def test_a_form_without_the_secret_of_this_run_changes_nothing(
    client: TestClient, site: Site, secret: str | None
) -> None:
    fields = {"strategy": "fake"} if secret is None else {"strategy": "fake", "secret": secret}
    answer = client.post("/start", data=fields, headers={"origin": "http://localhost:8337"})
    assert answer.status_code == 403
    assert "this form is not of this application as it runs now; load its page again" in answer.text
    assert site.jobs.all == []


def test_nothing_is_started_by_looking(client: TestClient, site: Site) -> None:
    for path in ("/start?strategy=fake", "/start/plan?strategy=fake", "/stop/1"):
        client.get(path)
    assert site.jobs.all == []


def test_a_form_that_is_too_long_is_refused(client: TestClient, site: Site) -> None:
    answer = client.post("/start", data={"secret": site.secret, "knob": "x" * (1 << 19)})
    assert answer.status_code == 413


def test_every_answer_keeps_scripts_and_frames_of_others_out(client: TestClient) -> None:
    for path in ("/", "/results", "/static/app.js", "/nowhere"):
        headers = client.get(path).headers
        assert "script-src 'self';" in headers["content-security-policy"]
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cross-origin-resource-policy"] == "same-origin"


def test_a_figure_to_explore_is_alone_in_its_frame(client: TestClient) -> None:
    policy = client.get("/figures/scaling/explore").headers["content-security-policy"]
    assert policy.startswith("sandbox allow-scripts;")
    assert "connect-src" not in policy and "default-src 'none'" in policy


@pytest.fixture
def guarded(db: Path) -> TestClient:
    app = make_app(Site(db, token=TOKEN))
    return TestClient(app, base_url="http://machine.example:8337", follow_redirects=False)


def test_with_a_token_nothing_is_shown_without_it(guarded: TestClient) -> None:
    for path in ("/", "/results", "/figures/scaling.svg", "/static/app.js", "/events", "/?token=wrong"):
        answer = guarded.get(path)
        assert answer.status_code == 401
        assert "needs the token that paceline serve printed" in answer.text
    assert guarded.post("/start", data={}).status_code == 401


def test_the_token_of_the_address_becomes_a_cookie_that_other_sites_cannot_send(guarded: TestClient) -> None:
    answer = guarded.get(f"/results?workers=2&token={TOKEN}")
    assert (answer.status_code, answer.headers["location"]) == (303, "/results?workers=2")
    cookie = answer.headers["set-cookie"].lower()
    assert cookie.startswith(f"{COOKIE}={TOKEN};") and "httponly" in cookie and "samesite=strict" in cookie
    assert guarded.get("/results").status_code == 200


def test_the_way_on_after_the_token_never_leads_to_another_host() -> None:
    assert without_token("//evil.example/", "a=1&token=x") == "/evil.example/?a=1"
    assert without_token("/\\evil.example", "token=x") == "/evil.example"


def test_with_a_token_another_site_still_cannot_change_anything(guarded: TestClient) -> None:
    guarded.cookies.set(COOKIE, TOKEN)
    assert guarded.post("/start", data={}, headers={"origin": "http://evil.example"}).status_code == 403
