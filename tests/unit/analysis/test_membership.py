"""What departures and arrivals cost, from progress made by hand."""

from typing import Any

import pytest

from paceline.analysis.membership import summarise_membership
from paceline.record import MemberChange, Progress, Rank, Record, Status
from paceline.spec import RunSpec

CHANGES = (MemberChange(kind="leave", step=10, seconds=10.5), MemberChange(kind="join", step=20, seconds=30.0))


def record(progress: list[Progress], status: Status = Status.OK, steps: int = 40, **details: Any) -> Record:
    spec = RunSpec(
        strategy="torch-ddp", workers=2, global_batch=8, steps=steps, membership="leave:10,join:20", checkpoint_every=4
    )
    rank = Rank(rank=0, role="worker", cores=(0,), cpu_seconds=1.0, peak_memory_bytes=1, details=details)
    return Record(
        study="s", spec=spec, repeat=0, status=status, started_at="", wall_seconds=1.0, changes=CHANGES,
        progress=tuple(progress), ranks=(rank,),
    )  # fmt: skip


def point(seconds: float, step: int, by: tuple[int, ...], part: int = 0, samples: int = 8) -> Progress:
    return Progress(seconds=seconds, step=step, part=part, samples=samples, loss=1 / step, trained_by=by)


def restarted() -> list[Progress]:
    """A step a second; gone back to step 8 after 5 s at the departure, and to step 24 after 3 s at the arrival."""
    before = [point(step, step, (0, 1)) for step in range(1, 11)]
    alone = [point(15.5 + step - 9, step, (0,)) for step in range(9, 26)]
    both = [point(34.5 + step - 25, step, (0, 1)) for step in range(25, 41)]
    return before + alone + both


def test_what_is_made_again_and_how_long_it_stood_still_are_told_apart() -> None:
    leave, join = summarise_membership([record(restarted())]).changes  # type: ignore[union-attr]
    # Steps 9 and 10 were made before; nothing new came between 10.0 and 17.5 s, where a second is usual.
    assert leave.samples_again == 16
    assert leave.standstill_seconds == pytest.approx(6.5)
    assert leave.until_training_seconds is None
    # Step 25 was made at 31.5 s and again at 34.5 s; step 26 is new.
    assert join.samples_again == 8
    assert join.standstill_seconds == pytest.approx(35.5 - 31.5 - 1.0)
    # The first step of both that is new.
    assert join.until_training_seconds == pytest.approx(35.5 - 30.0)
    assert leave.went_on and join.went_on
    assert leave.samples_left_out == join.samples_left_out == 0
    assert (leave.samples_per_second_before, join.samples_per_second_after) == (8.0, 8.0)


def test_samples_that_nobody_takes_over_are_left_out() -> None:
    first = [point(step, step, (0,), part=0, samples=4) for step in range(1, 41)]
    second = [point(step, step, (1,), part=1, samples=4) for step in (*range(1, 10), *range(35, 41))]
    progress = sorted(first + second, key=lambda each: each.seconds)
    leave, join = summarise_membership([record(progress)]).changes  # type: ignore[union-attr]
    assert leave.samples_left_out == 4 * (34 - 9)
    assert join.samples_left_out == leave.samples_again == 0
    assert leave.standstill_seconds < 1.5
    assert join.until_training_seconds == pytest.approx(5.0)


def test_samples_that_a_strategy_knows_to_be_made_again_are_added() -> None:
    leave, join = summarise_membership([record(restarted(), samples_again=4)]).changes  # type: ignore[union-attr]
    assert (leave.samples_again, join.samples_again) == (20, 8)


def test_a_run_that_stopped_at_a_departure_did_not_go_on() -> None:
    ended = record(restarted()[:10], Status.FAILED).model_copy(update={"changes": CHANGES[:1]})
    (leave,) = summarise_membership([ended]).changes  # type: ignore[union-attr]
    assert not leave.went_on
    assert leave.samples_per_second_after is None


def test_runs_without_changes_have_no_such_summary() -> None:
    assert summarise_membership([record(restarted()).model_copy(update={"changes": ()})]) is None


def test_rates_are_those_of_new_samples() -> None:
    rates = summarise_membership([record(restarted())]).rates  # type: ignore[union-attr]
    assert sum(rate for _, rate in rates) * (rates[1][0] - rates[0][0]) == pytest.approx(8 * 38, rel=0.05)
    assert {rate for at, rate in rates if 11 < at < 15} == {0.0}
