"""Record: what a run left."""

import json

import pytest
from pydantic import ValidationError

from paceline.record import FINAL, Epoch, Finding, Rank, Record, Startup, Status, TimelineSpan


def epoch(number, seconds=2.0):
    return Epoch(number=number, seconds=seconds, steps=4, samples=1024, cpu_seconds=3.0, train_loss=1.5)


def test_a_record_survives_its_own_json(make_record):
    record = make_record(
        epochs=(epoch(1), epoch(2)),
        startup=Startup(launch_seconds=0.1, import_seconds=1.0, build_seconds=0.2, first_step_seconds=0.3),
        ranks=(Rank(rank=0, role="worker", cores=(0, 1), cpu_seconds=2.0, peak_memory_bytes=1000),),
        losses=(2.5, None),
        step_seconds={0: (0.5, 0.25), 1: (0.5, 0.125)},
        findings=(Finding(code="slow", text="it was slow", hint="be patient"),),
    )
    assert Record.model_validate_json(record.model_dump_json()) == record


def test_results_files_call_the_timeline_a_trace(make_record):
    span = TimelineSpan(rank=0, track="training", kind="step", name="step 1", start=0, duration=9)
    record = make_record(timeline=(span,))
    stored = record.model_dump_json(by_alias=True)
    assert json.loads(stored)["trace"] == [span.model_dump()]
    assert Record.model_validate_json(stored) == record


def test_the_key_of_a_record_is_that_of_its_spec(make_record, make_spec):
    assert make_record().key == make_spec().key()


def test_only_a_run_that_finished_as_asked_is_ok(make_record):
    assert [status for status in Status if make_record(status=status).ok] == [Status.OK]


def test_skipped_and_interrupted_runs_are_tried_again_and_all_others_are_results():
    assert set(Status) - FINAL == {Status.SKIPPED, Status.INTERRUPTED}


def test_the_steady_epoch_is_the_last_one(make_record):
    assert make_record(epochs=(epoch(1), epoch(2))).steady.number == 2
    assert make_record(epochs=(epoch(1),)).steady.number == 1
    assert make_record().steady is None


def test_throughput_is_samples_of_all_workers_over_wall_clock():
    assert epoch(1, seconds=2.0).samples_per_second == 512.0


def test_start_up_is_the_sum_of_its_parts():
    startup = Startup(launch_seconds=0.25, import_seconds=1.0, build_seconds=0.5, first_step_seconds=2.0)
    assert startup.total_seconds == 3.75


def test_a_record_cannot_be_changed(make_record):
    with pytest.raises(ValidationError):
        make_record().status = Status.FAILED


def test_a_loss_that_is_not_finite_never_enters_a_record(make_record):
    with pytest.raises(ValidationError):
        make_record(losses=(float("nan"),))
