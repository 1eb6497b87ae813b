"""Spans of all ranks ─► where each rank's time went, step by step: pure arithmetic on intervals.

A rank is blocked while its training thread stands still for a transfer. Of that, the time until the last rank has come
to the same transfer is waiting, and what is left is exposed communication. A transfer that runs while the rank computes
is overlapped; of a transfer whose end is not seen (sends and receives) only the exposed part is counted. Clocks are
those of one host, so starts can be compared across ranks.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor
from statistics import median

from paceline.spans import MAIN, Span

# In the order in which tables and figures show them; they add up to the step.
PARTS = ("input", "forward", "backward", "exposed", "waiting", "optimizer", "other")
_PHASES = ("input", "forward", "backward", "optimizer")
# Steps at the start that are left out: pools fill, buckets are regrouped.
WARM_UP_STEPS = 3
# A step this many times as long as the median was delayed by something outside the run.
STALL = 3.0
# Share of steps left out at either end of the range of steps.
OUTER_SHARE = 0.05
NANOSECONDS = 1e9
Interval = tuple[int, int]


@dataclass(frozen=True)
class RankBreakdown:
    """Mean seconds of a rank's steps. `communication` is all transfer, hidden or not: overlapped plus exposed."""

    rank: int
    step: float
    input: float
    forward: float
    backward: float
    exposed: float
    waiting: float
    optimizer: float
    other: float
    communication: float
    overlapped: float
    sent_bytes: float
    steps: int
    # 90 % of the steps lie between these; None in older records.
    step_low: float | None = None
    step_high: float | None = None


def break_down(spans: Mapping[int, Sequence[Span]]) -> list[RankBreakdown]:
    """The breakdown of each rank that made steps: the mean over its steps after warm-up."""
    arrivals = last_arrivals(spans)
    breakdowns = []
    for rank, rank_spans in spans.items():
        steps = [span for span in rank_spans if span.kind == "step"]
        steps = sorted(steps, key=lambda span: span.start)[WARM_UP_STEPS:]
        parts = [_step_parts(step, rank_spans, arrivals) for step in steps]
        if parts:
            # Means, because medians of single parts would not add up, and because some strategies send in some
            # steps only; without steps that something else delayed.
            longest = STALL * median(part["step"] for part in parts)
            undisturbed = [part for part in parts if part["step"] <= longest]
            means = {name: sum(part[name] for part in undisturbed) / len(undisturbed) for name in parts[0]}
            low, high = central_90_percent([part["step"] for part in undisturbed])
            breakdowns.append(RankBreakdown(rank=rank, steps=len(parts), step_low=low, step_high=high, **means))
    return breakdowns


def central_90_percent(values: Sequence[float]) -> tuple[float, float]:
    """The 5th and the 95th percentile: the nearest values below and above, without interpolation."""
    ordered = sorted(values)
    last = len(ordered) - 1
    return ordered[floor(OUTER_SHARE * last)], ordered[ceil((1 - OUTER_SHARE) * last)]


def last_arrivals(spans: Mapping[int, Sequence[Span]]) -> dict[str, int]:
    """The time at which the last rank reached each transfer."""
    arrivals: dict[str, int] = {}
    for rank_spans in spans.values():
        for span in rank_spans:
            if span.kind == "communication":
                arrivals[span.match] = max(arrivals.get(span.match, 0), span.start)
    return arrivals


def _step_parts(step: Span, rank_spans: Sequence[Span], arrivals: Mapping[str, int]) -> dict[str, float]:
    inside = [span for span in rank_spans if span.start < step.end and span.end > step.start and span is not step]
    phases = {kind: union(_clip(span, step) for span in inside if span.kind == kind) for kind in _PHASES}
    blocked = _blocked(inside, step)
    waiting = union((start, min(end, arrivals.get(match, start))) for start, end, match in blocked)
    standing = union((start, end) for start, end, _ in blocked)
    transfers = union(
        (max(span.start, step.start, arrivals.get(span.match, span.start)), min(span.end, step.end))
        for span in inside
        if span.kind == "communication" and span.exact
    )
    computing = {kind: _length(without(phase, standing)) for kind, phase in phases.items()}
    exposed = _length(standing) - _length(waiting)
    total = step.end - step.start
    communication = max(_length(transfers), exposed)
    other = total - sum(computing.values()) - _length(standing)
    sent = sum(span.bytes for span in inside if span.kind == "communication" and step.start <= span.start < step.end)
    nanoseconds = {
        **computing, "step": total, "exposed": exposed, "waiting": _length(waiting), "other": other,
        "communication": communication, "overlapped": communication - exposed,
    }  # fmt: skip
    return {**{name: value / NANOSECONDS for name, value in nanoseconds.items()}, "sent_bytes": float(sent)}


def _blocked(inside: Sequence[Span], step: Span) -> list[tuple[int, int, str]]:
    """The intervals in which the training thread was blocked, and by which transfer.

    Where a framework waits unseen (DDP within its backward pass), it waits from the start of the last transfer on.
    """
    intervals = [(*_clip(span, step), span.match) for span in inside if span.kind == "blocked"]
    matched = {match for _, _, match in intervals}
    for phase in (span for span in inside if span.kind == "backward" and span.track == MAIN):
        unseen = [
            span
            for span in inside
            if span.kind == "communication" and span.match not in matched and phase.start <= span.start < phase.end
        ]
        if unseen:
            last = max(unseen, key=lambda span: span.start)
            end = min(phase.end, max(span.end for span in unseen))
            if end > last.start:
                intervals.append((last.start, end, last.match))
    return [(start, end, match) for start, end, match in intervals if end > start]


def _clip(span: Span, within: Span) -> Interval:
    return max(span.start, within.start), min(span.end, within.end)


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The intervals merged, so that none overlap, in order."""
    joined: list[Interval] = []
    for start, end in sorted(pair for pair in intervals if pair[1] > pair[0]):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        else:
            joined.append((start, end))
    return joined


def without(stretches: Sequence[Interval], holes: Sequence[Interval]) -> list[Interval]:
    """The parts of the stretches that lie in none of the holes; neither may overlap among themselves."""
    pieces: list[Interval] = []
    for start, end in stretches:
        free = start
        for hole_start, hole_end in holes:
            if hole_end <= free or hole_start >= end:
                continue
            if hole_start > free:
                pieces.append((free, hole_start))
            free = max(free, hole_end)
        if end > free:
            pieces.append((free, end))
    return pieces


def _length(stretches: Sequence[Interval]) -> int:
    return sum(end - start for start, end in stretches)


def mean_parts(parts: Sequence[RankBreakdown]) -> dict[str, float]:
    """The mean of each part over the ranks."""
    return {name: sum(getattr(part, name) for part in parts) / len(parts) for name in PARTS} if parts else {}
