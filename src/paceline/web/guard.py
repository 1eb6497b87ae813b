"""Decides which requests are answered. Every request passes here first.

Without a token only names of this machine are answered, so that a foreign page cannot reach in by pointing its own name
here (DNS rebinding). Requests that change something must come from this application's own pages. With a token, every
request must carry it in a cookie, which browsers do not send along from other sites.
"""

import secrets
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
SAFE_METHODS = frozenset({"GET", "HEAD"})
COOKIE = "paceline_token"
# The drawing library, which holds nothing of the user's and is fetched by a frame that has no cookies.
OPEN_PATH = "/figures/vega.js"
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

    def __init__(self, app: ASGIApp, token: str | None = None) -> None:
        self._app, self._token = app, token

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
        if reason := wrong_place(request.method, request.headers, any_name=self._token is not None):
            return PlainTextResponse(reason + "\n", status_code=403)
        return self._without_token(request) if self._token is not None else None

    def _without_token(self, request: Request) -> Response | None:
        assert self._token is not None
        if _equal(request.cookies.get(COOKIE, ""), self._token) or request.url.path == OPEN_PATH:
            return None
        if request.method in SAFE_METHODS and _equal(request.query_params.get("token", ""), self._token):
            answer = RedirectResponse(without_token(request.url.path, request.url.query), status_code=303)
            answer.set_cookie(COOKIE, self._token, httponly=True, samesite="strict")
            return answer
        words = "this address needs the token that paceline serve printed: open the whole address from the terminal\n"
        return PlainTextResponse(words, status_code=401)


def without_token(path: str, query: str) -> str:
    """The same address without the token; always one of this server, never of another host as `//name` would be."""
    pairs = [pair for pair in parse_qsl(query) if pair[0] != "token"]
    return "/" + path.lstrip("/\\") + ("?" + urlencode(pairs) if pairs else "")


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
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _equal(first: str, second: str) -> bool:
    return secrets.compare_digest(first.encode(), second.encode())
