"""Spans: what a rank did from when to when in an instrumented run. Breakdowns and timelines are made of them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Literal

# What a stretch of time is for. `step` spans hold all others of their track; `blocked` is the training thread waiting
# for communication, and `communication` the transfer itself, on whatever thread it runs. `launch` is a host that hands
# work to a GPU, or a chief to its workers; what becomes of it there is in the other spans.
Kind = Literal["step", "input", "forward", "backward", "optimizer", "communication", "blocked", "launch"]
MAIN = "training"


@dataclass
class Span:
    """One stretch of one track, in nanoseconds of a clock that all processes of the run share."""

    kind: Kind
    name: str
    start: int
    end: int = 0
    track: str = MAIN
    # For communication: bytes handed over, and what makes it the same transfer on every rank that takes part.
    bytes: int = 0
    match: str = ""
    # Whether the end is that of the transfer; otherwise it is when someone looked.
    exact: bool = True
    # Where one process drives several workers: whose it is.
    worker: int | None = None


@dataclass
class SpanRecorder:
    """The spans of one process."""

    spans: list[Span] = field(default_factory=list)
    # Functions that add their spans when all steps are made.
    at_end: list[Callable[[], None]] = field(default_factory=list)
    # Whether enough was seen: what comes later is not kept.
    closed: bool = False

    def complete(self) -> list[Span]:
        """All spans, once the steps are made."""
        for finish in self.at_end:
            finish()
        self.at_end.clear()
        return self.spans

    @contextmanager
    def span(self, kind: Kind, name: str = "") -> Iterator[Span]:
        """Records a span from here to the end of the context."""
        span = self.add(Span(kind, name or kind, perf_counter_ns()))
        try:
            yield span
        finally:
            span.end = perf_counter_ns()

    def add(self, span: Span) -> Span:
        """Records a span whose end is set elsewhere."""
        if not self.closed:
            self.spans.append(span)
        return span
