"""A profile of two ranks whose truth is written down by hand: microseconds on the GPU, launches on the host."""

from typing import Any

import pytest

from paceline.breakdown import PARTS, break_down
from paceline.frameworks.gpu_spans import add_kernel_spans
from paceline.spans import Span, SpanRecorder

US = 1_000
OFFSET = 5_000_000
SUMMED = {"Collective name": "allreduce", "Process Group Ranks": "[0, 1]", "dtype": "Float", "In msg nelems": 256}


def launch(number: int, at: float) -> dict[str, Any]:
    return {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": at, "dur": 1, "args": {"correlation": number}}


def kernel(number: int, at: float, lasts: float, name: str = "gemm", stream: int = 7, **told: Any) -> dict[str, Any]:
    args = {"correlation": number, "stream": stream, **told}
    return {"cat": "kernel", "name": name, "ts": at, "dur": lasts, "args": args}


def span(kind: Any, start: float, end: float) -> Span:
    return Span(kind, kind, OFFSET + round(start * US), OFFSET + round(end * US))


def one_step(begin: float, number: int, transfer: tuple[float, float]) -> tuple[list[Span], list[dict[str, Any]]]:
    """100 us: the host launches everything within 20, the GPU works from 10 to 95 with a gap."""
    host = [
        span("step", begin, begin + 100), span("forward", begin, begin + 5), span("backward", begin + 5, begin + 15),
        span("optimizer", begin + 15, begin + 20),
    ]  # fmt: skip
    start, end = transfer
    events = [
        launch(number, begin + 1), kernel(number, begin + 10, 20),
        launch(number + 1, begin + 6), kernel(number + 1, begin + 30, 30),
        launch(number + 2, begin + 7), kernel(number + 2, begin + start, end - start, "ncclDevKernel_AllReduce", 13,
                                              **SUMMED),
        launch(number + 3, begin + 16), kernel(number + 3, begin + 85, 10),
    ]  # fmt: skip
    return host, events


def tape_of(transfers: list[tuple[float, float]]) -> SpanRecorder:
    recorder, events = SpanRecorder(), []
    for number, transfer in enumerate(transfers):
        host, seen = one_step(number * 200, number * 10, transfer)
        recorder.spans += host
        events += seen
    add_kernel_spans(recorder, events, OFFSET)
    return recorder


@pytest.fixture
def parts() -> list[Any]:
    # The first rank comes to the transfer at 50 and the other at 65; it ends at 80 for both.
    return break_down({0: tape_of([(50, 80)] * 5).spans, 1: tape_of([(65, 80)] * 5).spans})


def test_a_kernel_counts_for_the_pass_that_launched_it(parts: list[Any]) -> None:
    for part in parts:
        assert part.forward == pytest.approx(20e-6)
        assert part.backward == pytest.approx(30e-6)
        assert part.optimizer == pytest.approx(10e-6)


def test_until_the_last_rank_comes_it_is_waiting_and_then_transfer(parts: list[Any]) -> None:
    first, last = parts
    # From 50 to 60 the first rank still computes; from 60 to 65 it waits; from 65 to 80 it sends.
    assert first.waiting == pytest.approx(5e-6)
    assert first.exposed == pytest.approx(15e-6)
    assert last.waiting == 0
    assert last.exposed == pytest.approx(15e-6)


def test_a_gpu_that_has_nothing_to_do_is_other(parts: list[Any]) -> None:
    first, last = parts
    assert first.other == pytest.approx(20e-6)  # 0 to 10, 80 to 85, 95 to 100
    assert last.other == pytest.approx(25e-6)
    for part in parts:
        assert sum(getattr(part, name) for name in PARTS) == pytest.approx(part.step)


def test_a_transfer_behind_computation_is_overlapped() -> None:
    hidden, other = break_down({0: tape_of([(32, 58)] * 5).spans, 1: tape_of([(32, 58)] * 5).spans})
    for part in (hidden, other):
        assert part.exposed == part.waiting == 0
        assert part.overlapped == pytest.approx(26e-6)


def test_bytes_are_what_was_handed_over(parts: list[Any]) -> None:
    assert parts[0].sent_bytes == 256 * 4


def test_the_host_is_left_as_launches_on_its_own_track() -> None:
    spans = tape_of([(50, 80)]).spans
    assert {one.kind for one in spans if one.track == "training"} == {"step", "launch", "blocked"}
    assert {one.track for one in spans if one.kind == "communication"} == {"GPU stream 13"}


def test_a_kernel_that_nobody_launched_is_left_out() -> None:
    recorder = SpanRecorder([span("step", 0, 100), span("forward", 0, 5)])
    add_kernel_spans(recorder, [kernel(1, 10, 20), launch(2, 50), kernel(2, 60, 5)], OFFSET)
    assert [one.kind for one in recorder.spans] == ["step", "launch"]


def test_of_sends_and_receives_waiting_is_not_told_apart() -> None:
    def of(rank: int, start: float) -> list[Span]:
        recorder = SpanRecorder([span("step", begin, begin + 100) for begin in range(0, 1000, 200)])
        told = {"Collective name": "recv", "Process Group Ranks": "[0, 1]", "Rank": rank}
        kernels = [kernel(n, n * 200 + start, 90 - start, "ncclDevKernel_SendRecv", **told) for n in range(5)]
        add_kernel_spans(recorder, kernels, OFFSET)
        return recorder.spans

    early, late = break_down({0: of(0, 10), 1: of(1, 60)})
    assert early.waiting == late.waiting == 0
    assert early.exposed == pytest.approx(80e-6)
