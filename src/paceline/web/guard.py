"""Decides which requests are answered. Every request passes here first.

Every request must carry the token in a cookie, which browsers do not send along from other sites: whoever else has an
account on the machine can reach the port, but not what is behind it. Where the server listens on the machine itself,
only the machine's own names are answered, so that a foreign page cannot reach in by pointing a name of its own here
(DNS rebinding). Requests that change something must come from this application's own pages.
"""

import re
import secrets
from html import escape
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

NAME_AND_PORT = re.compile(r"[\w.-]+(:\d*)?|\[[\w.:]+\](:\d*)?", re.ASCII)
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
SAFE_METHODS = frozenset({"GET", "HEAD"})
COOKIE = "paceline_token"
WITHOUT_TOKEN = (
    "this needs the token of this server, and the browser has none or one of an earlier start: "
    "open the whole link that paceline serve printed in the terminal"
)
# The drawing library, which is fetched by a frame that has no cookies, and the icon: nothing of the user's.
OPEN_PATH = "/figures/vega.js"
OPEN_PATHS = frozenset({OPEN_PATH, "/favicon.ico", "/static/icon.svg"})
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "frame-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    # Not `no-referrer`, with which browsers would hide the origin of our own forms.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Guard:
    """Middleware that refuses requests before the application sees them."""

    def __init__(self, app: ASGIApp, token: str, any_name: bool = False) -> None:
        self._app, self._token, self._any_name = app, token, any_name

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuses the request or passes it on; every answer gets the security headers."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        answer = self._refusal(Request(scope))
        await (answer or self._app)(scope, receive, send_with_headers)

    def _refusal(self, request: Request) -> Response | None:
        if reason := wrong_place(request.method, request.headers, self._any_name):
            return PlainTextResponse(reason + "\n", status_code=403)
        name = cookie_name(request.scope)
        if request.method in SAFE_METHODS and _equal(request.query_params.get("token", ""), self._token):
            query = request.scope["query_string"].decode("latin-1")
            answer = _way_on(without_token(request.scope["path"], query), request.headers)
            answer.set_cookie(name, self._token, httponly=True, samesite="strict")
            return answer
        # Of the request line, not `request.url`: into that, some versions of Starlette paste the header Host unread.
        if _equal(request.cookies.get(name, ""), self._token) or request.scope["path"] in OPEN_PATHS:
            return None
        return PlainTextResponse(WITHOUT_TOKEN + "\n", status_code=403)


def cookie_name(scope: Scope) -> str:
    """The name of the cookie: browsers keep cookies for a machine, and two servers on it have two ports."""
    _, port = scope.get("server") or ("", None)
    return f"{COOKIE}_{port}"


def _way_on(address: str, headers: Headers) -> Response:
    """Leads to the address without the token, so that neither the page nor the history shows it.

    Browsers send a strict cookie only where the page before was of the same site. A redirect of a link in a page of
    another site still counts as that site's; a page of our own that leads on does not.
    """
    if headers.get("sec-fetch-site", "none") in ("none", "same-origin"):
        return RedirectResponse(address, status_code=303)
    link = escape(address)
    return HTMLResponse(
        f'<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url={link}">'
        f'<title>Paceline</title><p><a href="{link}">Paceline</a></p>'
    )


def without_token(path: str, query: str) -> str:
    """The same address without the token; always one of this server, never of another host as `//name` would be."""
    pairs = [pair for pair in parse_qsl(query) if pair[0] != "token"]
    return "/" + quote(path.lstrip("/\\")) + ("?" + urlencode(pairs) if pairs else "")


def wrong_place(method: str, headers: Headers, any_name: bool) -> str | None:
    """The reason to refuse a request because of its host or origin, or None."""
    host = headers.get("host", "")
    if not any_name and _hostname(host) not in LOOPBACK:
        return f"{host or 'no name'} is not a name of this machine; use localhost"
    if method in SAFE_METHODS:
        return None
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    if (origin is not None and origin.partition("://")[2] != host) or site not in (None, "same-origin", "none"):
        return "another site asked for this; only this application's own pages may change anything"
    return None


def _hostname(host: str) -> str:
    """The name without its port; empty where there is anything else than a name and a port."""
    if not NAME_AND_PORT.fullmatch(host):
        return ""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _equal(first: str, second: str) -> bool:
    return secrets.compare_digest(first.encode(), second.encode())
