"""Frames between a launcher and an agent: a length, a signature where there is a key, and a message as JSON.

A key is needed where the engine's own channel does not say who is at the other end; see `dial_back.py`. Each frame is
then signed together with its number and its direction, so that none can be made up, repeated or turned around.
"""

import contextlib
import hashlib
import hmac
import os
import select
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from time import perf_counter_ns

from pydantic import BaseModel

# The longest message: reports of a long run with all its steps.
MOST_FRAME_BYTES = 1 << 30
CHUNK_BYTES = 1 << 18
# A beat that is late by several periods is no silence yet.
BEATS_OF_A_LEASE = 10
SIGNATURE_BYTES = hashlib.sha256().digest_size
_LENGTH, _NUMBER = struct.Struct(">I"), struct.Struct(">Q")
LAUNCHER, AGENT = b"L", b"A"


class ChannelClosedError(Exception):
    """The other side has ended, or what came is no frame of it."""


class SilenceError(Exception):
    """Nothing came from the other side for as long as its lease lasts."""


@dataclass
class Channel:
    """One end of a connection; threads may send at the same time, one thread receives."""

    read_fd: int
    write_fd: int
    # Who sends at this end; the other one receives what is signed so.
    side: bytes = LAUNCHER
    key: bytes | None = None
    most_frame_bytes: int = MOST_FRAME_BYTES
    _sending: threading.Lock = field(default_factory=threading.Lock)
    _sent: int = 0
    _received: int = 0
    _buffer: bytearray = field(default_factory=bytearray)

    def send(self, message: BaseModel) -> None:
        """Sends a message whole; raises `ChannelClosedError` where nobody listens any more."""
        body = message.model_dump_json().encode()
        with self._sending:
            signature = self._signature(self.side, self._sent, body)
            self._sent += 1
            self._write(_LENGTH.pack(len(body)) + signature + body)

    def receive(self, silence_seconds: float | None = None) -> bytes:
        """The next message; raises `SilenceError` where not a byte came for so long."""
        other = AGENT if self.side == LAUNCHER else LAUNCHER
        (length,) = _LENGTH.unpack(self._take(_LENGTH.size, silence_seconds))
        if length > self.most_frame_bytes:
            raise ChannelClosedError(f"a frame of {length} bytes is longer than any message")
        signature = self._take(SIGNATURE_BYTES if self.key else 0, silence_seconds)
        body = self._take(length, silence_seconds)
        if not hmac.compare_digest(signature, self._signature(other, self._received, body)):
            raise ChannelClosedError("a frame is not signed with the secret of this study")
        self._received += 1
        return body

    def skip_past(self, mark: bytes, silence_seconds: float) -> bytes:
        """Passes over what a login shell printed before the mark, and returns it."""
        while mark not in self._buffer:
            self._fill(silence_seconds)
        before, _, rest = bytes(self._buffer).partition(mark)
        self._buffer = bytearray(rest)
        return before

    def unread(self) -> bytes:
        """What came and was no frame."""
        return bytes(self._buffer)

    def close(self) -> None:
        """Closes this end."""
        for fd in {self.read_fd, self.write_fd}:
            with contextlib.suppress(OSError):
                os.close(fd)

    def _signature(self, side: bytes, number: int, body: bytes) -> bytes:
        if self.key is None:
            return b""
        return hmac.digest(self.key, side + _NUMBER.pack(number) + body, "sha256")

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self.write_fd, rest) :]
        except OSError as error:
            raise ChannelClosedError(str(error.strerror)) from None

    def _take(self, count: int, silence_seconds: float | None) -> bytes:
        while len(self._buffer) < count:
            self._fill(silence_seconds)
        piece = bytes(self._buffer[:count])
        del self._buffer[:count]
        return piece

    def _fill(self, silence_seconds: float | None) -> None:
        try:
            if not select.select([self.read_fd], [], [], silence_seconds)[0]:
                raise SilenceError
            chunk = os.read(self.read_fd, CHUNK_BYTES)
        except (OSError, ValueError) as error:
            raise ChannelClosedError(str(error)) from None
        if not chunk:
            raise ChannelClosedError("the connection ended")
        self._buffer += chunk


@contextlib.contextmanager
def beating(beat: Callable[[], None], seconds: float) -> Iterator[None]:
    """Beats now and then, from a thread of its own, so that the other side knows that this one is there."""
    over = threading.Event()

    def go_on_beating() -> None:
        with contextlib.suppress(ChannelClosedError):
            while not over.wait(seconds):
                beat()

    thread = threading.Thread(target=go_on_beating, daemon=True, name="beats")
    thread.start()
    try:
        yield
    finally:
        over.set()


def stamp() -> int:
    """Nanoseconds of this machine's clock, the one that runs stamp their steps with."""
    return perf_counter_ns()
