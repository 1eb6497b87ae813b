"""A program of a few lines and two devices that ran it at times written down by hand."""

import pytest

from paceline.breakdown import PARTS, break_down
from paceline.frameworks.xla_spans import Executed, add_operation_spans, operations_of
from paceline.spans import Span, SpanRecorder

PROGRAM = """
HloModule jit__one_step
ENTRY %main (p: f32[4,8]) -> f32[8] {
  %p = f32[4,8]{1,0} parameter(0)
  %gather.1 = f32[4,8]{1,0} gather(%p), metadata={op_name="jit(_one_step)/paceline_input/gather"}
  %dot.2 = f32[4,8]{1,0} dot(%gather.1), metadata={op_name="jit(_one_step)/jvp(dense)/dot_general"}
  %all-reduce.3 = f32[4,8]{1,0} all-reduce(%dot.2), metadata={op_name="jit(_one_step)/jvp(dense)/dot_general"}
  %fusion.4 = bf16[16]{0} fusion(%all-reduce.3), metadata={op_name="jit(_one_step)/transpose(jvp(dense))/mul"}
  %pair.5 = (f32[2]{0}, s32[3]{0}) all-reduce(%fusion.4, %fusion.4)
  ROOT %add.6 = f32[8]{0} add(%fusion.4), metadata={op_name="jit(_one_step)/paceline_update/add"}
}
"""
US = 1_000


def ran(name: str, device: int, start: float, end: float) -> Executed:
    return Executed(name, device, round(start * US), round(end * US))


def step(begin: float, late: float) -> list[Executed]:
    """A step of 100 us; the second device comes to the transfer `late` after the first."""
    first = [ran("gather.1", 0, begin, begin + 5), ran("dot.2", 0, begin + 5, begin + 25)]
    second = [ran("gather.1", 1, begin, begin + 5), ran("dot.2", 1, begin + 5, begin + 25 + late)]
    both = [
        one
        for device, came in ((0, 25.0), (1, 25.0 + late))
        for one in (
            ran("all-reduce.3", device, begin + came, begin + 35 + late),
            ran("fusion.4", device, begin + 35 + late, begin + 65 + late),
            ran("add.6", device, begin + 65 + late, begin + 70 + late),
        )
    ]
    return [*first, *second, *both]


def broken_down(late: float) -> list:
    recorder = SpanRecorder(
        [Span("step", "step", round(begin * US), round((begin + 100) * US)) for begin in range(0, 1000, 200)]
    )
    executed = [one for begin in range(0, 1000, 200) for one in step(begin, late)]
    add_operation_spans(recorder, executed, operations_of(PROGRAM), [0, 1])
    spans: dict[int, list[Span]] = {}
    for span in recorder.spans:
        assert span.worker is not None
        spans.setdefault(span.worker, []).append(span)
    return break_down(spans)


def test_the_program_tells_the_pass_of_each_operation() -> None:
    found = {name: one.kind for name, one in operations_of(PROGRAM).items()}
    assert found == {
        "p": "forward", "gather.1": "input", "dot.2": "forward", "all-reduce.3": "communication",
        "fusion.4": "backward", "pair.5": "communication", "add.6": "optimizer",
    }  # fmt: skip


def test_the_program_tells_the_bytes_of_each_operation() -> None:
    found = {name: one.size_bytes for name, one in operations_of(PROGRAM).items()}
    assert found["all-reduce.3"] == 4 * 8 * 4
    assert found["fusion.4"] == 16 * 2
    assert found["pair.5"] == 2 * 4 + 3 * 4


def test_every_device_is_a_worker_with_the_parts_of_its_step() -> None:
    first, second = broken_down(late=0)
    assert (first.rank, second.rank) == (0, 1)
    for part in (first, second):
        exact = {"input": 5, "forward": 20, "exposed": 10, "backward": 30, "optimizer": 5, "waiting": 0, "other": 30}
        assert {name: getattr(part, name) * 1e6 for name in exact} == pytest.approx(exact)
        assert part.sent_bytes == 4 * 8 * 4
        assert sum(getattr(part, name) for name in PARTS) == pytest.approx(part.step)


def test_the_delay_of_one_device_is_waiting_in_the_other_and_not_transfer() -> None:
    first, second = broken_down(late=8)
    assert first.waiting * 1e6 == pytest.approx(8)
    assert first.exposed * 1e6 == pytest.approx(10)
    assert second.waiting == 0
    assert second.forward * 1e6 == pytest.approx(28)


def test_operations_that_only_hold_others_count_for_nothing() -> None:
    recorder = SpanRecorder([Span("step", "step", 0, 100 * US)])
    add_operation_spans(recorder, [ran("while.7", 0, 0, 90), ran("dot.2", 0, 10, 20)], operations_of(PROGRAM), [0])
    assert [span.name for span in recorder.spans if span.kind != "step"] == ["dot.2"]


def test_operations_that_a_device_runs_at_once_count_once() -> None:
    recorder = SpanRecorder([Span("step", "step", 0, round(100 * US))] * 5)
    at_once = [Executed("dot.2", 0, 0, round(60 * US)), Executed("fusion.4", 0, round(20 * US), round(100 * US))]
    add_operation_spans(
        recorder, [*at_once, Executed("add.6", 0, round(30 * US), round(50 * US))], operations_of(PROGRAM), [0]
    )
    (part,) = break_down({0: recorder.spans})
    exact = {"forward": 60, "backward": 40, "optimizer": 0, "other": 0}
    assert {name: getattr(part, name) * 1e6 for name in exact} == pytest.approx(exact)
