"""Spans of the shares that the workers of `tf-ps` trained on, for the recorder of the chief.

A worker's step goes from the end of one share to the end of the next. It waits until the chief has handed the next one
out; the way of that order to the worker is no part of the training.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from paceline.spans import Kind, Span, SpanRecorder

# What a worker does with a share, one after the other.
STAGES = ("input", "fetch", "forward", "backward", "push")
_COMPUTING: dict[str, Kind] = {"input": "input", "forward": "forward", "backward": "backward"}
_TRACK = "communication"


@dataclass(frozen=True)
class Share:
    """One share, in nanoseconds of the recorder's clock: when it was handed out, its start and each stage's end."""

    rank: int
    handed_out: int
    stamps: tuple[int, ...]


def add_share_spans(recorder: SpanRecorder, shares: Iterable[Share], sizes: dict[str, int]) -> None:
    """Steps of every worker, with the bytes of each transfer; those of the chief become launches."""
    recorder.spans[:] = [replace(span, kind="launch") if span.kind == "step" else span for span in recorder.spans]
    free: dict[int, int] = {}
    for number, share in enumerate(sorted(shares, key=lambda share: (share.rank, share.stamps))):
        since = free.get(share.rank, share.stamps[0])
        spans = [*_waiting(share, number, since), *_stages(share, number, sizes)]
        step = Span("step", "share", since, share.stamps[-1])
        recorder.spans += [replace(span, worker=share.rank) for span in (step, *spans)]
        free[share.rank] = share.stamps[-1]


def _waiting(share: Share, number: int, since: int) -> Iterator[Span]:
    """Nothing to do since then, until there was a share; its way to the worker is no transfer worth the name."""
    if share.handed_out > since:
        match = f"share {number}"
        yield Span("blocked", "share", since, share.handed_out, match=match)
        yield Span("communication", "share", share.handed_out, share.stamps[0], _TRACK, match=match, exact=False)


def _stages(share: Share, number: int, sizes: dict[str, int]) -> Iterator[Span]:
    for stage, (start, end) in zip(STAGES, pairwise(share.stamps), strict=True):
        if stage in _COMPUTING:
            yield Span(_COMPUTING[stage], stage, start, end)
        else:
            match = f"{stage} {number}"
            yield Span("blocked", stage, start, end, match=match)
            yield Span("communication", stage, start, end, _TRACK, bytes=sizes[stage], match=match)
