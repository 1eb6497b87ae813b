"""The link between two machines, measured by a short and bounded transfer between their agents."""

import contextlib
import secrets
import socket
import threading
import time
from statistics import median

from paceline.runs.agent.messages import LinkMeasured, Listening, MeasureLink

# Long enough for TCP to reach its speed on any link, short enough for a table of many machines.
TRANSFER_SECONDS, MOST_TRANSFER_BYTES = 0.5, 256 << 20
ROUND_TRIPS = 20
PATIENCE_SECONDS = 5.0
# A listener that nobody comes to goes away.
LISTENING_SECONDS = 60.0
CHUNK = bytes(1 << 16)
WORD_BYTES = 16


def listen_for_links(address: str) -> Listening:
    """Takes in bytes at a port of that address, from connections that begin with the right word, for a while."""
    listener, word = socket.create_server((address, 0)), secrets.token_hex(WORD_BYTES // 2)
    threading.Thread(target=_serve, args=(listener, word.encode()), daemon=True, name="link").start()
    return Listening(port=listener.getsockname()[1], word=word)


def _serve(listener: socket.socket, word: bytes) -> None:
    until = time.monotonic() + LISTENING_SECONDS
    with listener:
        while (left := until - time.monotonic()) > 0:
            listener.settimeout(left)
            with contextlib.suppress(OSError):
                connection, _ = listener.accept()
                with connection:
                    connection.settimeout(PATIENCE_SECONDS)
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    _answer(connection, word)


def _answer(connection: socket.socket, word: bytes) -> None:
    """Returns single bytes as they come, then counts what follows them and says how much it was."""
    if not secrets.compare_digest(connection.recv(len(word), socket.MSG_WAITALL), word):
        return
    for _ in range(ROUND_TRIPS):
        connection.sendall(connection.recv(1))
    taken, buffer = 0, bytearray(len(CHUNK))
    while (count := connection.recv_into(buffer)) > 0:
        taken += count
    connection.sendall(taken.to_bytes(8, "big"))


def measure_link(orders: MeasureLink, own_address: str) -> LinkMeasured:
    """Sends to a machine that listens, and waits until it says that all has come."""
    try:
        with socket.create_connection(
            (orders.address, orders.port), PATIENCE_SECONDS, source_address=(own_address, 0)
        ) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sendall(orders.word.encode())
            trips = [_round_trip(connection) for _ in range(ROUND_TRIPS)]
            began, sent = time.perf_counter(), 0
            while time.perf_counter() - began < TRANSFER_SECONDS and sent < MOST_TRANSFER_BYTES:
                connection.sendall(CHUNK)
                sent += len(CHUNK)
            connection.shutdown(socket.SHUT_WR)
            taken = int.from_bytes(connection.recv(8, socket.MSG_WAITALL), "big")
            seconds = time.perf_counter() - began
    except OSError as error:
        return LinkMeasured(reason=str(error.strerror or error))
    if taken != sent:
        return LinkMeasured(reason=f"{taken} of {sent} bytes arrived")
    return LinkMeasured(bytes_per_second=sent / seconds, round_trip_seconds=median(trips))


def _round_trip(connection: socket.socket) -> float:
    began = time.perf_counter()
    connection.sendall(b".")
    if connection.recv(1) != b".":
        raise OSError("the other machine closed the connection")
    return time.perf_counter() - began
