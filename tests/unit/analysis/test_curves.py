"""Loss curves: how far runs part that should be the same training."""

import pytest

from paceline.analysis.curves import MOST_POINTS, agreement, curve
from paceline.analysis.rows import summarise


def with_losses(record, losses):
    return record.model_copy(update={"losses": tuple(losses)})


def test_agreement_is_the_largest_relative_difference_from_one_worker(make_record):
    records = [
        with_losses(make_record(strategy="torch-single"), (2.0, 1.0)),
        with_losses(make_record(strategy="torch-ddp", workers=2), (2.0, 1.01)),
        with_losses(make_record(strategy="torch-downpour", workers=2), (5.0, 5.0)),
    ]
    found = agreement(summarise(records))
    assert found is not None
    assert (found.reference, found.compared, found.steps) == ("torch-single x1", 1, 2)
    assert found.largest == pytest.approx(0.01)


def test_one_run_agrees_with_nobody(make_record):
    assert agreement(summarise([with_losses(make_record(strategy="torch-single"), (2.0,))])) is None


def test_a_long_curve_is_averaged_to_what_a_picture_shows():
    points = curve([float(step) for step in range(1000)])
    assert len(points) == MOST_POINTS
    assert points[0] == (3.0, 2.0)


def test_steps_without_a_loss_are_left_out():
    assert curve([1.0, None, 3.0]) == [(1.0, 1.0), (3.0, 3.0)]


def test_runs_with_different_global_batches_are_not_compared_step_by_step(make_record):
    fields = {"losses": (1.0, 0.5)}
    one, two = (make_record(local_batch=50, workers=workers).model_copy(update=fields) for workers in (1, 2))
    assert agreement(summarise([one, two])) is None


def test_runs_whose_data_came_in_an_order_of_its_own_are_not_compared(make_record):
    streams = [make_record(findings=("order_of_its_own",), workers=workers) for workers in (1, 2)]
    rows = summarise([with_losses(stream, (1.0, float(place))) for place, stream in enumerate(streams)])
    assert all(row.own_order for row in rows)
    assert agreement(rows) is None
