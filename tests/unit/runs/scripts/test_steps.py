"""Steps of a script as progress and as spans."""

import pytest

from paceline.callbacks.steps import Source, StepLog
from paceline.errors import UserError
from paceline.runs.scripts.steps import RECORDED_STEPS, InstrumentedSteps, ReportedSteps
from paceline.runs.wire import EpochEvent, StepEvent
from paceline.spans import Span, SpanRecorder
from paceline.spec import RunSpec


def take_step(log: StepLog, source: Source) -> None:
    if source not in log.epochs:
        log.begin_epoch(source)
    log.end_step(source, 4)


def test_progress_is_that_of_the_source_that_says_most() -> None:
    events: list[StepEvent | EpochEvent] = []
    reported = ReportedSteps(RunSpec(global_batch=8, steps=1, workers=2), events.append)
    log = StepLog(on_step=reported)
    for source in ("optimizer", "watch", "optimizer"):
        reported._next = reported._reported = 0
        take_step(log, source)  # type: ignore[arg-type]
    assert len(events) == 2


def test_steps_of_the_best_source_are_spans_that_leave_pauses_out() -> None:
    recorder = SpanRecorder()
    steps = InstrumentedSteps(recorder, lambda _source, _epoch, _number: None)
    log = StepLog(on_step=steps.on_step, on_batch=steps.on_batch)
    for _ in range(2):
        take_step(log, "optimizer")
        take_step(log, "watch")
    log.resume("watch")
    take_step(log, "watch")
    recorder.add(Span("forward", "forward", 1, 2))
    log.on_batch(3, 5)
    spans = steps.spans("watch", "train.py")
    assert [span.kind for span in spans] == ["forward", "input", "step", "step", "step"]
    assert spans[-1].start > spans[-2].end


def test_enough_steps_close_the_recorder() -> None:
    recorder = SpanRecorder(spans=[Span("backward", "backward", 1, 2)])
    steps = InstrumentedSteps(recorder, lambda _source, _epoch, _number: None)
    log = StepLog(on_step=steps.on_step)
    for _ in range(RECORDED_STEPS + 5):
        take_step(log, "step")
    assert recorder.closed
    assert sum(span.kind == "step" for span in steps.spans("step", "train.py")) == RECORDED_STEPS


def test_a_script_without_a_pass_of_pytorch_has_no_breakdown() -> None:
    steps = InstrumentedSteps(SpanRecorder(), lambda _source, _epoch, _number: None)
    with pytest.raises(UserError, match=r"no pass of PyTorch was seen in train\.py, so it has no breakdown"):
        steps.spans("step", "train.py")
