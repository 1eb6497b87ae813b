"""A mirror: a real HTTP server on this machine that can be told to misbehave."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest


class Mirror:
    """Serves `files`; `refuse`, `cut_after`, `ranges` and the like say how well. `asked` has each request's range."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.refuse: int | None = None
        self.cut_after: int | None = None
        self.ranges = True
        self.chunked = False
        self.nonsense = False
        self.asked: list[tuple[str, str | None]] = []
        mirror = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self.close_connection = True
                mirror.answer(self)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}/"

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        name, span = request.path.removeprefix("/"), request.headers.get("Range")
        self.asked.append((name, span))
        if self.nonsense:
            request.wfile.write(b"what is HTTP?\r\n\r\n")
            return
        if self.refuse or name not in self.files:
            self._refuse(request, self.refuse or 404)
            return
        body = self.files[name]
        start = int(span.removeprefix("bytes=").removesuffix("-")) if span and self.ranges else 0
        if span and self.ranges and start >= len(body):
            self._refuse(request, 416)
            return
        request.send_response(206 if span and self.ranges else 200)
        left = body[start:]
        sent = left if self.cut_after is None else left[: self.cut_after]
        if self.chunked:
            request.send_header("Transfer-Encoding", "chunked")
            request.end_headers()
            request.wfile.write(b"%x\r\n" % len(left) + sent + (b"\r\n0\r\n\r\n" if sent == left else b""))
        else:
            request.send_header("Content-Length", str(len(left)))
            request.end_headers()
            request.wfile.write(sent)

    @staticmethod
    def _refuse(request: BaseHTTPRequestHandler, code: int) -> None:
        request.send_response(code)
        request.send_header("Content-Length", "0")
        request.end_headers()


def _running() -> Iterator[Mirror]:
    mirror = Mirror()
    thread = threading.Thread(target=mirror.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield mirror
    mirror.server.shutdown()
    thread.join()
    mirror.server.server_close()


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture
def mirror() -> Iterator[Mirror]:
    yield from _running()


@pytest.fixture
def second_mirror() -> Iterator[Mirror]:
    yield from _running()
