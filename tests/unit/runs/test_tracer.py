"""Replies of the process that traces, among what a model writes into the descriptors that it finds."""

import os
import time
from collections.abc import Iterator

import pytest

from paceline.runs.tracer import PIECE_BYTES, Tracer

MARK, PATIENCE_SECONDS = "0123456789abcdef", 60.0


@pytest.fixture
def ends() -> Iterator[tuple[Tracer, int]]:
    """A tracer without a process, and the end of its pipe that a process would write to."""
    tracer = Tracer.__new__(Tracer)
    tracer._replies, writing = os.pipe()
    tracer._mark = MARK
    yield tracer, writing
    for descriptor in (tracer._replies, writing):
        os.close(descriptor)


@pytest.mark.parametrize(
    "parts",
    [
        [MARK.encode() + b"{}\n"],
        [b"null\n", MARK.encode() + b"{}\n"],
        [b"null\n\x00\xff{}" + MARK[:7].encode(), MARK[7:].encode() + b"{", b"}\n"],
        [b"x" * (PIECE_BYTES - 4096), b"\n" * 4000, MARK.encode() + b"{}\n"],
    ],
    ids=["nothing", "a line", "no line", "much"],
)
def test_a_reply_is_what_follows_the_mark(ends: tuple[Tracer, int], parts: list[bytes]) -> None:
    tracer, writing = ends
    for part in parts:
        os.write(writing, part)
    assert tracer._line(time.monotonic() + PATIENCE_SECONDS) == b"{}\n"


def test_what_has_no_mark_is_no_reply(ends: tuple[Tracer, int]) -> None:
    tracer, writing = ends
    os.write(writing, b"null\n{}\n")
    with pytest.raises(TimeoutError):
        tracer._line(time.monotonic())
