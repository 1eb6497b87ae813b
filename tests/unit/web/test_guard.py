"""Who is answered: only who has the token, under names of this machine, and for changes only its own pages."""

from pathlib import Path

import pytest
from starlette.datastructures import URL
from starlette.requests import Request
from starlette.testclient import TestClient

from paceline.web import Site, make_app
from paceline.web.guard import COOKIE, OPEN_PATHS, without_token

PORT = 8337

TOKEN = "a-token-of-this-test"


@pytest.mark.parametrize("host", ["localhost:8337", "127.0.0.1:1", "[::1]:8337", "localhost", "LOCALHOST"])
def test_names_of_this_machine_are_answered(client: TestClient, host: str) -> None:
    assert client.get("/", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example:8337", "", "[::2]", "[bad",
     "localhost/favicon.ico?", "localhost:8337#", "evil.example@localhost", "localhost:8337,evil.example"],
)  # fmt: skip
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
    """Somebody without the token, on another machine."""
    app = make_app(Site(db, token=TOKEN, any_name=True))
    return TestClient(app, base_url=f"http://machine.example:{PORT}", follow_redirects=False)


def test_nothing_is_shown_without_the_token_and_the_answer_says_where_it_is(guarded: TestClient) -> None:
    for path in ("/", "/results", "/figures/scaling.svg", "/static/app.js", "/events", "/?token=wrong", "/?token="):
        answer = guarded.get(path)
        assert answer.status_code == 403
        assert "open the whole link that paceline serve printed in the terminal" in answer.text
    assert guarded.post("/start", data={}).status_code == 403


def test_what_is_open_is_told_by_the_request_line_alone(guarded: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Starlette before 1.0 writes the header Host into the address unread: `x/favicon.ico?` would pass as the icon."""
    monkeypatch.setattr(Request, "url", URL(f"http://x{min(OPEN_PATHS)}?/results"))
    assert guarded.get("/results", headers={"host": f"x{min(OPEN_PATHS)}?"}).status_code == 403
    assert guarded.get("/favicon.ico").status_code == 200


def test_every_site_has_a_token_of_its_own_that_nobody_guesses(db: Path) -> None:
    first, second = Site(db).token, Site(db).token
    assert first != second and len(first) >= 32
    with TestClient(make_app(Site(db)), base_url=f"http://localhost:{PORT}") as stranger:
        assert stranger.get("/").status_code == 403
        stranger.cookies.set(f"{COOKIE}_{PORT}", first)
        assert stranger.get("/start").status_code == 403


def test_the_token_of_the_address_becomes_a_cookie_that_other_sites_cannot_send(guarded: TestClient) -> None:
    answer = guarded.get(f"/results?workers=2&token={TOKEN}")
    assert (answer.status_code, answer.headers["location"]) == (303, "/results?workers=2")
    cookie = answer.headers["set-cookie"].lower()
    assert cookie.startswith(f"{COOKIE}_{PORT}={TOKEN};") and "httponly" in cookie and "samesite=strict" in cookie
    assert guarded.get("/results").status_code == 200
    assert guarded.get(f"/?token={TOKEN}").status_code == 303, "the address is clean also for who has the cookie"


def test_a_link_in_another_sites_page_leads_on_by_a_page_of_our_own(guarded: TestClient) -> None:
    """A redirect would be that site's request, with which browsers send no strict cookie."""
    address = f"/results?workers=2&study=%22%3E%3Cscript%3E&token={TOKEN}"
    answer = guarded.get(address, headers={"sec-fetch-site": "cross-site"})
    assert answer.status_code == 200 and "set-cookie" in answer.headers
    assert 'content="0; url=/results?workers=2&amp;study=%22%3E%3Cscript%3E"' in answer.text
    assert TOKEN not in answer.text


def test_two_servers_of_one_machine_keep_a_cookie_each(db: Path) -> None:
    sites = {port: Site(db) for port in (PORT, PORT + 1)}
    browser = TestClient(make_app(sites[PORT]), base_url=f"http://localhost:{PORT}")
    other = TestClient(make_app(sites[PORT + 1]), base_url=f"http://localhost:{PORT + 1}", cookies=browser.cookies)
    browser.get("/", params={"token": sites[PORT].token})
    other.cookies = browser.cookies
    other.get("/", params={"token": sites[PORT + 1].token})
    assert (browser.get("/").status_code, other.get("/").status_code) == (200, 200)


def test_the_way_on_after_the_token_never_leads_to_another_host() -> None:
    assert without_token("//evil.example/", "a=1&token=x") == "/evil.example/?a=1"
    assert without_token("/\\evil.example", "token=x") == "/evil.example"
    assert without_token("/\t/evil.example", "token=x") == "/%09/evil.example"


def test_with_a_token_another_site_still_cannot_change_anything(guarded: TestClient) -> None:
    guarded.cookies.set(f"{COOKIE}_{PORT}", TOKEN)
    assert guarded.post("/start", data={}, headers={"origin": "http://evil.example"}).status_code == 403
