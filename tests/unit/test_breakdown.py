"""A breakdown of spans written by hand: every nanosecond of a step is accounted for once."""

import pytest

from paceline.breakdown import PARTS, break_down
from paceline.spans import Span

MILLISECOND = 1_000_000


def spans_of(*stretches, step=(0, 100), times=5):
    """The same step several times over: (kind, start, end[, match]) in milliseconds."""
    found = []
    for number in range(times):
        offset = number * 1000
        begin, end = (offset + edge for edge in step)
        found.append(Span("step", "step", begin * MILLISECOND, end * MILLISECOND))
        for kind, start, stop, *match in stretches:
            track = "communication" if kind == "communication" else "training"
            name = f"{match[0]} {number}" if match else ""
            found.append(
                Span(kind, kind, (offset + start) * MILLISECOND, (offset + stop) * MILLISECOND, track, match=name)
            )
    return found


def in_milliseconds(rank):
    return {name: round(getattr(rank, name) * 1e3, 6) for name in (*PARTS, "step", "communication", "overlapped")}


def test_a_breakdown_without_communication_is_its_phases_and_the_rest():
    (rank,) = break_down(
        {0: spans_of(("input", 0, 5), ("forward", 5, 35), ("backward", 35, 85), ("optimizer", 86, 96))}
    )
    found = in_milliseconds(rank)
    assert (found["input"], found["forward"], found["backward"], found["optimizer"]) == (5, 30, 50, 10)
    assert (found["other"], found["exposed"], found["waiting"], found["communication"]) == (5, 0, 0, 0)


def test_a_breakdown_tells_waiting_for_the_late_rank_from_transfer():
    early = spans_of(("backward", 0, 80), ("communication", 40, 80, "r"), ("blocked", 40, 80, "r"))
    late = spans_of(("backward", 0, 80), ("communication", 70, 80, "r"), ("blocked", 70, 80, "r"))
    first, last = map(in_milliseconds, break_down({0: early, 1: late}))
    assert (first["waiting"], first["exposed"], first["backward"]) == (30, 10, 40)
    assert (last["waiting"], last["exposed"], last["backward"]) == (0, 10, 70)


def test_a_breakdown_counts_transfer_behind_computation_as_overlapped():
    (rank,) = break_down({0: spans_of(("backward", 0, 90), ("communication", 10, 60, "r"), ("blocked", 55, 60, "r"))})
    found = in_milliseconds(rank)
    assert (found["communication"], found["exposed"], found["overlapped"]) == (50, 5, 45)


def test_a_breakdown_sees_a_wait_hidden_inside_the_backward_pass():
    # Two transfers and no wait to be seen: the thread stands still from the last start until both have ended.
    (rank,) = break_down(
        {0: spans_of(("backward", 0, 90), ("communication", 30, 50, "a"), ("communication", 60, 85, "b"))}
    )
    found = in_milliseconds(rank)
    assert (found["exposed"], found["backward"], found["overlapped"]) == (25, 65, 20)


def test_the_parts_of_a_breakdown_add_up_to_the_step():
    stretches = (
        ("input", 0, 4), ("forward", 4, 30), ("blocked", 10, 12, "x"), ("communication", 8, 12, "x"),
        ("backward", 30, 80), ("communication", 50, 84, "y"), ("blocked", 80, 84, "y"), ("optimizer", 84, 99),
    )  # fmt: skip
    for rank in break_down({0: spans_of(*stretches), 1: spans_of(*stretches)}):
        found = in_milliseconds(rank)
        assert sum(found[part] for part in PARTS) == pytest.approx(found["step"])


def test_a_breakdown_tells_between_which_lengths_nine_of_ten_steps_lie():
    lengths = [100] * 3 + [100 + number for number in range(41)]
    steps = [
        Span("step", "step", at * 1000 * MILLISECOND, (at * 1000 + length) * MILLISECOND)
        for at, length in enumerate(lengths)
    ]
    (rank,) = break_down({0: steps})
    assert (rank.step_low, rank.step_high) == pytest.approx((0.102, 0.138))


def test_a_breakdown_leaves_out_warm_up_and_ranks_without_steps():
    slow_start = spans_of(("forward", 0, 90), times=3)
    steady = [
        Span(span.kind, span.name, span.start + 10**12, span.end + 10**12)
        for span in spans_of(("forward", 0, 20), step=(0, 30))
    ]
    (rank,) = break_down({0: slow_start + steady, 1: []})
    assert (rank.steps, rank.step) == (5, pytest.approx(0.030))
