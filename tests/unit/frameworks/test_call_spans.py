"""What is put on the recorder of a step that is taken apart."""

from time import sleep

import pytest

from paceline.breakdown import break_down
from paceline.frameworks.call_spans import InstrumentedTransfers, forward_share, instrumented_passes
from paceline.spans import SpanRecorder


def test_the_breakdown_divides_both_passes_as_they_were_to_each_other() -> None:
    recorder = SpanRecorder()
    with instrumented_passes(recorder, 0.25):
        sleep(0.01)
    forward, backward = recorder.spans
    assert (forward.kind, backward.kind, forward.end) == ("forward", "backward", backward.start)
    assert forward.end - forward.start == pytest.approx((backward.end - forward.start) / 4, abs=1)


def test_a_forward_pass_is_never_more_than_both_passes() -> None:
    assert forward_share(lambda: sleep(0.004), lambda: sleep(0.001)) == 1
    assert 0 < forward_share(lambda: sleep(0.001), lambda: sleep(0.004)) < 1


def test_the_breakdown_matches_the_same_transfer_of_two_processes() -> None:
    recorders = {0: SpanRecorder(), 1: SpanRecorder()}
    transfers = {rank: InstrumentedTransfers(recorder) for rank, recorder in recorders.items()}
    for number in range(5):
        with recorders[0].span("step"), transfers[0]("sum", 8):
            sleep(0.001)
            with recorders[1].span("step", str(number)), transfers[1]("sum", 8):
                sleep(0.001)
    first, second = break_down({rank: recorder.spans for rank, recorder in recorders.items()})
    assert first.waiting >= 0.001
    assert second.waiting == 0
    assert first.sent_bytes == second.sent_bytes == 8
    assert first.exposed == first.communication > 0
