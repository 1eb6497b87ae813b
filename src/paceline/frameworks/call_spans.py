"""Spans of a step that is taken apart into calls, each of which ends before the next one starts.

Forward and backward pass are one compiled function; its time is divided as a forward pass alone and both together were
to each other at set-up. During a transfer, from asking to its result, the training thread stands still.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter_ns
from typing import Any

from paceline.spans import Span, SpanRecorder

SHARE_ROUNDS = 7


def forward_share(forward: Callable[[], Any], both: Callable[[], Any]) -> float:
    """The forward pass's part of both passes, by the shortest of several calls: others on the machine only add."""
    for call in (forward, both):  # the first call of each compiles
        call()
    pairs = [(_nanoseconds(forward), _nanoseconds(both)) for _ in range(SHARE_ROUNDS)]
    return min(1.0, min(alone for alone, _ in pairs) / min(together for _, together in pairs))


def _nanoseconds(call: Callable[[], Any]) -> int:
    began = perf_counter_ns()
    call()
    return perf_counter_ns() - began


@contextmanager
def instrumented_passes(recorder: SpanRecorder, share: float) -> Iterator[None]:
    """Forward and backward pass, one after the other."""
    began = perf_counter_ns()
    yield
    ended = perf_counter_ns()
    border = began + round(share * (ended - began))
    recorder.add(Span("forward", "forward", began, border))
    recorder.add(Span("backward", "backward", border, ended))


class InstrumentedTransfers:
    """Transfers of all processes together, which every process makes in the same order."""

    def __init__(self, recorder: SpanRecorder) -> None:
        self._recorder, self._count = recorder, 0

    @contextmanager
    def __call__(self, name: str, size_bytes: int) -> Iterator[None]:
        """One that is over at the end of the context."""
        match = f"{name} {self._count}"
        self._count += 1
        began = perf_counter_ns()
        yield
        ended = perf_counter_ns()
        self._recorder.add(Span("blocked", name, began, ended, match=match))
        self._recorder.add(
            Span("communication", name, began, ended, track="communication", bytes=size_bytes, match=match)
        )
