"""Stamps of several machines on one clock, and the refusal to compare what clocks cannot tell apart."""

import pytest

from paceline.contract.context import Place, Process
from paceline.runs.one_clock import clock_finding, on_one_clock
from paceline.runs.wire import ClockOffset, EpochResult, Measurements, ProcessStart, RankError, RankResult
from paceline.spans import Span

PROCESSES = [Process(rank, 2, "worker", rank, (0,), place=Place(machine=rank, name=f"m{rank}")) for rank in range(2)]
CLOCKS = [ClockOffset(), ClockOffset(offset=1_000, error=5)]


def result(ahead: int) -> RankResult:
    epoch = EpochResult(
        epoch=0, stamps=[10 + ahead, 20 + ahead], ended=21 + ahead, cpu_seconds=0.0, losses=[1.0], evaluation=None
    )
    return RankResult(
        start=ProcessStart(started=1 + ahead, imported=2 + ahead, opened=3 + ahead),
        measured=Measurements(epochs=[epoch], spans=[Span("step", "step 1", 10 + ahead, 20 + ahead)]),
    )


def test_every_stamp_of_a_machine_is_moved_by_its_offset_once() -> None:
    first, second = on_one_clock([result(0), result(1_000)], PROCESSES, CLOCKS, job_clock=False)
    assert first == second == result(0)


def test_clocks_are_those_of_the_machines_that_are_used() -> None:
    places = [Process(0, 1, "worker", 0, (0,), place=Place(machine=3, name="m3"))]
    assert on_one_clock([result(1_000)], places, [CLOCKS[1]], job_clock=False) == [result(0)]


def test_the_moment_of_an_error_is_moved_too() -> None:
    error = RankError(kind="failed", type="E", text="", failed_at=1_500)
    assert on_one_clock([None, error], PROCESSES, CLOCKS, job_clock=False)[1].failed_at == 500


def test_pretended_time_stays_as_it_is_and_only_the_start_is_moved() -> None:
    moved = on_one_clock([result(0), result(1_000)], PROCESSES, CLOCKS, job_clock=True)[1]
    assert moved.start == result(0).start
    assert moved.measured == result(1_000).measured


def test_one_machine_has_nothing_to_move() -> None:
    reports = [result(0), None]
    assert on_one_clock(reports, PROCESSES, [], job_clock=False) == reports


@pytest.mark.parametrize(("error_ns", "apart"), [(40_000, False), (60_000, True)])
def test_ranks_are_compared_where_clocks_are_known_to_a_twentieth_of_a_step(error_ns: int, apart: bool) -> None:
    finding = clock_finding([ClockOffset(), ClockOffset(error=error_ns)], [0.001, 0.001])
    assert (finding is not None) == apart
    if finding is not None:
        assert finding.code == "clocks_apart"
        assert "known to 0.06 ms and a step takes 1 ms: where the time of each rank went is left out" in finding.text
