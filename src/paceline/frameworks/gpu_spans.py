"""Spans of the kernels that a GPU ran, from what a profiler saw, in place of the host's own times.

The host only launches kernels, so its times say little. A kernel belongs to the pass in which the host launched it.
Those of NCCL are communication: one starts when its rank has come to the transfer and ends with it. While one runs and
no other kernel does, the rank stands still for it.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from paceline.breakdown import Interval, union, without
from paceline.spans import MAIN, Span, SpanRecorder

NANOSECONDS_PER_MICROSECOND = 1_000
PHASES = ("input", "forward", "backward", "optimizer")
GPU_EVENTS = ("kernel", "gpu_memcpy", "gpu_memset")
NCCL = "nccl"
ONE_WAY = ("send", "recv", "coalesced")
# Bytes of an element, by the names that PyTorch writes into its profile.
SIZES = {"Float": 4, "Half": 2, "BFloat16": 2, "Double": 8, "Long": 8, "Int": 4, "Byte": 1, "Char": 1, "Bool": 1}

Event = dict[str, Any]


def add_kernel_spans(recorder: SpanRecorder, events: Sequence[Event], offset: int) -> None:
    """Adds a span for each kernel; the host's own spans of passes become launches."""
    host = sorted((span for span in recorder.spans if span.kind in PHASES), key=lambda span: span.start)
    launched = {
        event["args"]["correlation"]: _start(event, offset)
        for event in events
        if event.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in event.get("args", {})
    }
    kernels = [event for event in events if event.get("cat") in GPU_EVENTS]
    computing = [_computation(event, host, launched, offset) for event in kernels if not is_transfer(event)]
    transfers = _transfers([event for event in kernels if is_transfer(event)], offset)
    busy = [span for span in computing if span is not None]
    rest = [replace(span, kind="launch") if span.kind in PHASES else span for span in recorder.spans]
    recorder.spans[:] = [*rest, *busy, *transfers, *blocked_spans(transfers, busy)]


def is_transfer(event: Event) -> bool:
    """Whether a kernel is one of NCCL's."""
    return NCCL in str(event["name"]).lower()


def _start(event: Event, offset: int) -> int:
    return offset + round(float(event["ts"]) * NANOSECONDS_PER_MICROSECOND)


def _end(event: Event, offset: int) -> int:
    return _start(event, offset) + round(float(event["dur"]) * NANOSECONDS_PER_MICROSECOND)


def _computation(event: Event, host: Sequence[Span], launched: dict[int, int], offset: int) -> Span | None:
    """A kernel as part of the pass that launched it; of one that none did, nothing is known."""
    moment = launched.get(event.get("args", {}).get("correlation", -1))
    place = bisect_right([span.start for span in host], moment) - 1 if moment is not None else -1
    if moment is None or place < 0:
        return None
    # Passes may lie within each other (a wait within a backward pass): the innermost is the latest that is still open.
    open_then = [span for span in host[: place + 1] if span.end >= moment]
    if not open_then:
        return None
    return Span(open_then[-1].kind, str(event["name"]), _start(event, offset), _end(event, offset), track=_track(event))


def _track(event: Event) -> str:
    return f"GPU stream {event.get('args', {}).get('stream', 0)}"


def _transfers(events: Sequence[Event], offset: int) -> list[Span]:
    """NCCL's kernels. The n-th of a kind in a group of ranks is the same transfer on each of them."""
    counts, spans = Counter[str](), []
    for event in sorted(events, key=lambda event: float(event["ts"])):
        details = event.get("args", {})
        name = str(details.get("Collective name", event["name"]))
        group = str(details.get("Process Group Ranks", ""))
        one_way = any(word in name.lower() for word in ONE_WAY)
        # Of a send or receive the other side is not known, so waiting and transfer stay one.
        match = f"{name} {group} {details.get('Rank', '') if one_way else ''}"
        elements = max(int(details.get("In msg nelems", 0) or 0), int(details.get("Out msg nelems", 0) or 0))
        size = elements * SIZES.get(str(details.get("dtype", "")), 1)
        spans.append(
            Span(
                "communication", name, _start(event, offset), _end(event, offset), track=_track(event), bytes=size,
                match=f"{match} {counts[match]}",
            )
        )  # fmt: skip
        counts[match] += 1
    return spans


def blocked_spans(transfers: Sequence[Span], computing: Iterable[Span]) -> list[Span]:
    """Spans in which a transfer ran and nothing was computed."""
    busy = union((span.start, span.end) for span in computing)
    spans = []
    for transfer in transfers:
        alone: list[Interval] = without([(transfer.start, transfer.end)], busy)
        spans += [Span("blocked", transfer.name, start, end, track=MAIN, match=transfer.match) for start, end in alone]
    return spans
