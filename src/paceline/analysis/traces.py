"""A run's spans as a trace that Perfetto and Chrome open: one process per rank, one thread per track."""

from collections.abc import Iterable
from typing import Any

from paceline.record import Record, TimelineSpan

# The trace event format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
COMPLETE, METADATA = "X", "M"


def to_trace(record: Record) -> dict[str, Any]:
    """All kept spans of an instrumented run; times in microseconds, as the format wants them."""
    events: list[dict[str, Any]] = []
    roles = {rank.rank: rank.role for rank in record.ranks}
    # A process that drives several workers is one rank, and its spans are those of its workers.
    for rank in sorted({*roles, *(span.rank for span in record.timeline)}):
        events.append(_name("process_name", rank, 0, f"rank {rank} ({roles.get(rank, 'worker')})"))
        lanes = _lanes(span for span in record.timeline if span.rank == rank)
        for thread, (name, spans) in enumerate(lanes):
            events.append(_name("thread_name", rank, thread, name))
            events += [_event(span, thread) for span in spans]
    spec = record.spec
    about = {"strategy": spec.strategy, "workload": spec.workload, "workers": spec.workers, "key": record.key}
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": about}


def _name(kind: str, rank: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": METADATA, "name": kind, "pid": rank, "tid": thread, "args": {"name": name}}


def _event(span: TimelineSpan, thread: int) -> dict[str, Any]:
    arguments = {"bytes": span.bytes} if span.bytes else {}
    return {
        "ph": COMPLETE, "name": span.name, "cat": span.kind, "ts": span.start, "dur": span.duration,
        "pid": span.rank, "tid": thread, "args": arguments,
    }  # fmt: skip


def _lanes(spans: Iterable[TimelineSpan]) -> list[tuple[str, list[TimelineSpan]]]:
    """Spans of a track that overlap without one holding the other cannot share a thread; they get further ones."""
    by_track: dict[str, list[list[TimelineSpan]]] = {}
    for span in sorted(spans, key=lambda one: (one.start, -one.duration)):
        tracks = by_track.setdefault(span.track, [])
        for lane in tracks:
            if _fits(lane, span):
                lane.append(span)
                break
        else:
            tracks.append([span])
    return [
        (track if number == 0 else f"{track} {number + 1}", lane)
        for track, lanes in by_track.items()
        for number, lane in enumerate(lanes)
    ]


def _fits(lane: list[TimelineSpan], span: TimelineSpan) -> bool:
    """Whether every span of the lane that is still open when this one starts also ends after it."""
    end = span.start + span.duration
    return all(one.start + one.duration <= span.start or one.start + one.duration >= end for one in lane)
