"""Parts of a script's steps, learnt from what it calls: the outermost call counts."""

import threading

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

import torch

from paceline.frameworks.torch.instrumentation.scripts import ScriptPhases
from paceline.spans import SpanRecorder


def kinds(recorder: SpanRecorder) -> list[str]:
    return [span.kind for span in recorder.spans]


def test_calls_within_a_call_are_part_of_it() -> None:
    recorder = SpanRecorder()
    phases = ScriptPhases(recorder)
    inner = phases.recorded("forward", lambda: None)
    outer = phases.recorded("backward", inner)
    outer()
    inner()
    assert kinds(recorder) == ["backward", "forward"]
    assert all(span.end >= span.start for span in recorder.spans)


def test_forward_passes_without_gradients_and_on_other_threads_are_none() -> None:
    recorder = SpanRecorder()
    forward = ScriptPhases(recorder).recorded("forward", lambda: None)
    with torch.no_grad():
        forward()
    other = threading.Thread(target=forward)
    other.start()
    other.join()
    assert not recorder.spans


def test_an_optimizer_that_is_handed_both_passes_has_what_follows_them() -> None:
    recorder, optimizer = SpanRecorder(), object()
    phases = ScriptPhases(recorder)
    phases.before_update(optimizer, (), {})
    phases.recorded("forward", lambda: None)()
    phases.recorded("backward", lambda: None)()
    phases.after_update(optimizer, (), {})
    update, _, backward = recorder.spans
    assert kinds(recorder) == ["optimizer", "forward", "backward"]
    assert backward.end <= update.start <= update.end


def test_an_optimizer_within_another_or_within_a_backward_pass_is_part_of_it() -> None:
    recorder, outer, inner = SpanRecorder(), object(), object()
    phases = ScriptPhases(recorder)
    phases.before_update(outer, (), {})
    phases.before_update(inner, (), {})
    phases.after_update(inner, (), {})
    phases.after_update(outer, (), {})
    assert kinds(recorder) == ["optimizer"]

    def update() -> None:
        phases.before_update(inner, (), {})
        phases.after_update(inner, (), {})

    phases.recorded("backward", update)()
    assert kinds(recorder) == ["optimizer", "backward"]


def test_an_update_that_raised_leaves_the_next_one_whole() -> None:
    recorder, optimizer = SpanRecorder(), object()
    phases = ScriptPhases(recorder)
    phases.before_update(optimizer, (), {})
    phases.before_update(optimizer, (), {})
    phases.after_update(optimizer, (), {})
    assert [span.end > 0 for span in recorder.spans] == [False, True]


def test_nothing_is_kept_once_enough_was_seen() -> None:
    recorder = SpanRecorder()
    phases = ScriptPhases(recorder)
    recorder.closed = True
    assert phases.recorded("forward", lambda: 5)() == 5
    phases.before_update(phases, (), {})
    phases.after_update(phases, (), {})
    assert not recorder.spans
