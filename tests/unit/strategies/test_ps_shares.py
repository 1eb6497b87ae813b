"""Times that workers told of their shares, as spans and as the breakdown that they come to."""

import pytest

from paceline.breakdown import WARM_UP_STEPS, break_down
from paceline.spans import Span, SpanRecorder
from paceline.strategies.tensorflow.ps.shares import Share, add_share_spans

MILLISECOND = 1_000_000
# Of each share: milliseconds until it starts, then of input, fetch, forward, backward and push.
STAGES = (5, 1, 4, 10, 20, 6)


def stamped(start, stages=STAGES):
    moments = [start]
    for stage in stages:
        moments.append(moments[-1] + stage)
    return tuple(moment * MILLISECOND for moment in moments[1:])


def told(shares, rank=1):
    """Shares one after the other, each handed out so many milliseconds after the end of the one before."""
    found, free = [], 0
    for later in shares:
        stamps = stamped(free + max(0, later))
        found.append(Share(rank, (free + later) * MILLISECOND, stamps))
        free = stamps[-1] // MILLISECOND
    return found


def broken_down(shares):
    recorder = SpanRecorder([Span("step", "step 1", 0, 40)])
    add_share_spans(recorder, shares, {"fetch": 100, "push": 80})
    spans = {}
    for span in recorder.spans:
        spans.setdefault(0 if span.worker is None else span.worker, []).append(span)
    return spans, break_down(spans)


def test_a_share_is_a_step_whose_stages_add_up():
    _, (part,) = broken_down(told([-30] * (WARM_UP_STEPS + 4)))
    expected = {"step": 46, "input": 1, "exposed": 10, "forward": 10, "backward": 20, "other": 5, "waiting": 0}
    assert {name: getattr(part, name) * 1e3 for name in expected} == pytest.approx(expected)
    assert (part.rank, part.sent_bytes, part.overlapped) == (1, 180, 0)


def test_until_the_next_share_is_handed_out_a_worker_waits():
    _, (part,) = broken_down(told([7] * (WARM_UP_STEPS + 4)))
    expected = {"step": 53, "exposed": 10, "other": 5, "waiting": 7}
    assert {name: getattr(part, name) * 1e3 for name in expected} == pytest.approx(expected)
    assert part.overlapped == 0


def test_workers_are_taken_apart_one_by_one_and_the_chief_only_hands_out():
    shares = [*told([-30] * 5, rank=2), *told([7] * 6, rank=1)]
    spans, parts = broken_down(shares)
    assert [(part.rank, part.steps) for part in parts] == [(1, 6 - WARM_UP_STEPS), (2, 5 - WARM_UP_STEPS)]
    assert [span.kind for span in spans[0]] == ["launch"]
