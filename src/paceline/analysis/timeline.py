"""The spans of an instrumented run as a timeline for Perfetto and Chrome: a process per rank, a thread per track."""

from collections.abc import Iterable
from typing import Any

from paceline.record import Record, TimelineSpan

# The trace event format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
COMPLETE, METADATA = "X", "M"


def chrome_timeline(record: Record) -> dict[str, Any]:
    """All stored spans of an instrumented run; times are in microseconds, as the format demands."""
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
    """The spans by thread. Two spans share a thread only if they do not overlap or one lies within the other."""
    by_track: dict[str, list[list[TimelineSpan]]] = {}
    for span in sorted(spans, key=lambda span: (span.start, -span.duration)):
        lanes = by_track.setdefault(span.track, [])
        lane = next((lane for lane in lanes if _fits(lane, span)), None)
        if lane is None:
            lanes.append([span])
        else:
            lane.append(span)
    return [
        (track if number == 0 else f"{track} {number + 1}", lane)
        for track, lanes in by_track.items()
        for number, lane in enumerate(lanes)
    ]


def _fits(lane: list[TimelineSpan], span: TimelineSpan) -> bool:
    """Whether every span of the lane that is still open when this span starts also ends after it."""
    end = span.start + span.duration
    return all(other.start + other.duration <= span.start or other.start + other.duration >= end for other in lane)
