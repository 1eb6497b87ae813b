"""What TensorFlow's profiler tells of two devices, written down by hand."""

from typing import Any

import pytest

from paceline.breakdown import PARTS, break_down
from paceline.frameworks.xla_spans import STEP, add_operation_spans
from paceline.spans import Span, SpanRecorder
from paceline.strategies.tensorflow.dtensor.profile import Event, executed, operations_of

US = 1_000
# Threads: Python's, one of each device, two that run operations, one that sends.
PYTHON, FIRST, SECOND, ONE, OTHER, SENDING = range(6)
SUM = "gradient_tape/mul/Sum/DTensorAllReduceOp_1"
CALL = "tf.StatefulPartitionedCall/"
BYTES = {SUM: 64}


def did(thread: int, name: str, start: float, end: float, /, **notes: Any) -> Event:
    return Event(thread, name, round(start * US), round(end * US), notes)


def operation(thread: int, name: str, start: float, end: float) -> Event:
    return did(thread, f"{CALL}{name}:Mul", start, end)


def sum_of(thread: int, number: int, start: float, end: float, group: int = 7) -> list[Event]:
    """A collective: asked for in the run's thread, sent by another, ended there."""
    name = CALL + SUM
    asked = did(thread, "ExecutorState::ProcessAsync::Start", start, start + 1, name=name, _p=number)
    kernel = did(thread, "CollectiveOpV2Kernel::Run", start, start + 1, name=name, _p=number + 100)
    closure = did(SENDING, "CollectiveExecutor::RunClosure", start + 1, start + 2, _c=number + 100)
    joined = did(SENDING, "CollectiveExecutor::CompleteParams", start + 1, start + 2, group_key=group)
    return [asked, kernel, closure, joined, did(SENDING, "ExecutorState::ProcessAsync::Done", end, end + 1, _c=number)]


def stretch(thread: int, start: float, end: float, run: int) -> Event:
    return did(thread, "ExecutorState::Process", start, end, _c=run)


def step(begin: float, number: int, late: float) -> list[Event]:
    """100 us, of which the second device computes `late` longer before the sum."""
    runs = [1000 + 10 * number, 1001 + 10 * number]
    asked = [
        did(thread, "FunctionRun", begin + 1, begin + 2, _p=run)
        for thread, run in zip((FIRST, SECOND), runs, strict=True)
    ]
    work = [
        event
        for thread, run, came in ((ONE, runs[0], 50.0), (OTHER, runs[1], 50.0 + late))
        for event in (
            stretch(thread, begin + 10, begin + came + 2, run),
            operation(thread, "paceline_input/Gather", begin + 10, begin + 15),
            operation(thread, "einsum/Einsum", begin + 15, begin + 25),
            operation(thread, "gradient_tape/mul/Sum", begin + 25, begin + came),
            *sum_of(thread, run + 5000, begin + came, begin + 60 + late),
            stretch(thread, begin + 60 + late, begin + 70 + late, run),
            operation(thread, "paceline_update/Sub", begin + 60 + late, begin + 70 + late),
        )
    ]
    return [did(PYTHON, STEP, begin, begin + 100), *asked, *work]


def broken_down(events: list[Event], ahead: int = 0) -> list[Any]:
    recorder = SpanRecorder(
        [Span("step", STEP, one.start + ahead, one.end + ahead) for one in events if one.name == STEP]
    )
    seen = executed(events, ahead)
    add_operation_spans(recorder, seen, operations_of({one.name for one in seen}, BYTES), [0, 1])
    spans: dict[int, list[Span]] = {}
    for span in recorder.spans:
        assert span.worker is not None
        spans.setdefault(span.worker, []).append(span)
    return break_down(spans)


def test_the_late_device_makes_the_other_wait_and_not_the_transfer_longer() -> None:
    events = [event for number in range(6) for event in step(200.0 * number, number, late=20)]
    for part, own in zip(
        broken_down(events, ahead=7 * US), ({"backward": 25, "waiting": 20}, {"backward": 45}), strict=True
    ):
        expected = {"input": 5, "forward": 10, "exposed": 10, "optimizer": 10, "step": 100, "waiting": 0, **own}
        assert {name: getattr(part, name) * 1e6 for name in expected} == pytest.approx(expected)
        assert sum(getattr(part, name) for name in PARTS) == pytest.approx(part.step)
        assert part.sent_bytes == 64


def test_what_runs_within_a_stretch_of_another_device_belongs_to_its_own() -> None:
    inner = [stretch(ONE, 30, 40, 2), operation(ONE, "b", 31, 39)]
    outer = [stretch(ONE, 10, 60, 1), operation(ONE, "a", 11, 20), *inner, operation(ONE, "c", 45, 50)]
    asked = [did(FIRST, "FunctionRun", 1, 2, _p=1), did(SECOND, "FunctionRun", 1.5, 2, _p=2)]
    beside = [operation(ONE, "nobody's", 70, 80), did(PYTHON, "FunctionRun", 150, 151, _p=3)]
    found = executed([did(PYTHON, STEP, 0, 100), *asked, *outer, *beside], 0)
    assert sorted((one.name, one.device) for one in found) == [("a", 0), ("b", 1), ("c", 0)]


def test_of_operations_that_a_device_runs_at_once_each_instant_counts_once() -> None:
    events = [did(PYTHON, STEP, 0, 100), did(FIRST, "FunctionRun", 1, 2, _p=1)]
    events += [stretch(ONE, 10, 40, 1), operation(ONE, "long", 10, 40)]
    events += [stretch(OTHER, 20, 60, 1), operation(OTHER, "hidden", 20, 30), operation(OTHER, "after", 35, 60)]
    recorder = SpanRecorder([])
    add_operation_spans(recorder, executed(events, 0), {}, [0])
    found = [(span.name, span.start // US, span.end // US) for span in recorder.spans]
    assert found == [("long", 10, 40), ("after", 40, 60)]


def test_devices_of_two_groups_have_two_transfers() -> None:
    events = [did(PYTHON, STEP, 0, 100)]
    for thread, asking, run, group in ((ONE, FIRST, 1, 7), (OTHER, SECOND, 2, 8)):
        events += [did(asking, "FunctionRun", run, run + 1, _p=run), stretch(thread, 10, 30, run)]
        events += sum_of(thread, 50 + run, 10 + 5 * run, 40, group)
    names = {one.name for one in executed(events, 0)}
    assert len(names) == 2
    assert {one.size_bytes for one in operations_of(names, BYTES).values()} == {64}
