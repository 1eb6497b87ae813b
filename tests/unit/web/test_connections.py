"""Connections that only cost (no request, half of one, an answer that nobody takes) go, and others are answered."""

import socket
import threading
from collections.abc import Iterator

import pytest
import uvicorn

from paceline.web import Connection, Site, connections, make_app

PATIENCE_SECONDS = 60.0
ASKING = b"GET /favicon.ico HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture
def port(site: Site) -> Iterator[int]:
    """The port of a server that runs in a thread."""
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(make_app(site), http=Connection, ws="none", log_level="error"))
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    yield int(listening.getsockname()[1])
    server.should_exit = True
    thread.join(PATIENCE_SECONDS)
    listening.close()


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that waits no longer than a moment."""
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 0.1)


def connect(port: int, sent: bytes = b"") -> socket.socket:
    channel = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS)
    channel.sendall(sent)
    return channel


def everything(channel: socket.socket) -> bytes:
    """What comes until the server ends the connection."""
    said = b""
    try:
        while part := channel.recv(1 << 16):
            said += part
    except ConnectionResetError:
        pass
    return said


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: local"], ids=["nothing", "half a request"])
def test_who_asks_for_nothing_in_time_is_cut(port: int, hurried: None, sent: bytes) -> None:
    with connect(port, sent) as channel:
        assert everything(channel) == b""


def test_a_body_that_does_not_come_in_time_is_cut(
    port: int, hurried: None, site: Site, capfd: pytest.CaptureFixture[str]
) -> None:
    cookie = f"Cookie: paceline_token_{port}={site.token}\r\n".encode()
    head = b"POST /start HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n" + cookie
    with connect(port, head + b"\r\nsecret=") as channel:
        assert everything(channel) == b""
    assert "Traceback" not in capfd.readouterr().err


def test_a_connection_that_was_refused_cannot_send_on_for_ever(port: int, hurried: None) -> None:
    with connect(port, b"POST /start HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nsecret=") as channel:
        assert everything(channel).startswith(b"HTTP/1.1 403")


def test_an_answer_that_nobody_takes_is_not_kept(port: int, hurried: None, monkeypatch: pytest.MonkeyPatch) -> None:
    # More than the kernel's buffers hold.
    monkeypatch.setattr("paceline.web.pages.figures.vega_script", lambda: bytes(1 << 24))
    with connect(port, b"GET /figures/vega.js HTTP/1.1\r\nHost: localhost\r\n\r\n" * 2) as channel:
        assert wait_for_reset(channel)


def wait_for_reset(channel: socket.socket) -> bool:
    """Whether the server ends a connection from which nothing is read."""
    for _ in range(int(PATIENCE_SECONDS / 0.05)):
        try:
            channel.sendall(b" ")
        except (BrokenPipeError, ConnectionResetError):
            return True
        threading.Event().wait(0.05)
    return False


def test_of_many_that_come_at_once_as_many_go_as_are_too_many(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MOST_WAITING", 3)
    idle = [connect(port) for _ in range(40)]
    for channel in idle[:37]:
        assert everything(channel) == b""
    with connect(port, ASKING + b"Connection: close\r\n\r\n") as channel:
        assert everything(channel).startswith(b"HTTP/1.1 200")
    for channel in idle:
        channel.close()


def test_of_too_many_that_wait_the_longest_waiting_goes_and_a_request_is_answered(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MOST_WAITING", 3)
    idle = []
    for _ in range(5):
        idle.append(connect(port))
        with connect(port, ASKING + b"Connection: close\r\n\r\n") as channel:
            assert everything(channel).startswith(b"HTTP/1.1 200")
    assert everything(idle[0]) == b""
    idle[-1].sendall(ASKING + b"Connection: close\r\n\r\n")
    assert everything(idle[-1]).startswith(b"HTTP/1.1 200")
    for channel in idle:
        channel.close()
