"""Values between a launcher and its processes: what travels arrives."""

import math

import pytest
from pydantic import ValidationError

from paceline.contract.job import Evaluation
from paceline.runs.meters.memory import Resident
from paceline.runs.wire import (
    EVENT,
    RANK_REPORT,
    EpochEvent,
    EpochResult,
    LossEvent,
    Measurements,
    ProcessStart,
    RankError,
    RankResult,
    StepEvent,
)
from paceline.spans import Span


def test_events_arrive_as_what_they_were():
    for event in (
        StepEvent(epoch=0, step=1, steps=2, samples_per_second=1 / 3),
        EpochEvent(epoch=1, steps=2, samples_per_second=1e9 / 7),
        LossEvent(epoch=1, steps=2, losses=(0.5, math.inf)),
    ):
        assert EVENT.validate_json(event.model_dump_json()) == event


def test_a_result_arrives_whole_with_numbers_that_are_not_finite():
    epoch = EpochResult(
        epoch=0, stamps=[2**60, 2**60 + 1], ended=2**60 + 2, cpu_seconds=0.5, losses=[1.5, math.inf],
        evaluation=Evaluation(10, 5.0, None, None), resident=Resident(1, 2),
    )  # fmt: skip
    measured = Measurements(
        epochs=[epoch], details={"staleness": {"mean": math.inf}}, spans=[Span("step", "step 1", 3, 4, worker=1)]
    )
    result = RankResult(start=ProcessStart(started=1, imported=2, opened=3), measured=measured)
    assert RANK_REPORT.validate_json(result.model_dump_json()) == result


def test_a_loss_that_is_not_a_number_stays_one():
    epoch = EpochResult(epoch=0, stamps=[1], ended=1, cpu_seconds=0.0, losses=[math.nan], evaluation=None)
    (loss,) = EpochResult.model_validate_json(epoch.model_dump_json()).losses or []
    assert math.isnan(loss)


def test_an_error_is_told_from_a_result():
    error = RankError(kind="out_of_memory", type="MemoryError", text="", failed_at=9)
    assert RANK_REPORT.validate_json(error.model_dump_json()) == error


def test_a_field_that_nobody_knows_is_refused():
    with pytest.raises(ValidationError):
        EVENT.validate_json('{"kind": "epoch", "epoch": 0, "steps": 1, "samples_per_second": 1.0, "mood": "good"}')
