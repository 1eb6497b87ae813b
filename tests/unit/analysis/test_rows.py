"""Rows: medians over repeats, speed-up and efficiency against one worker."""

import pytest

from paceline.analysis.rows import summarise
from paceline.record import Status


def test_a_row_is_the_median_of_its_repeats_with_their_range(make_record):
    (row,) = summarise([make_record(rate, repeat) for repeat, rate in enumerate((900.0, 1000.0, 1300.0))])
    assert row.runs == 3
    assert row.samples_per_second == pytest.approx(1000)
    assert (row.samples_per_second_low, row.samples_per_second_high) == (pytest.approx(900), pytest.approx(1300))
    assert row.spread == pytest.approx(0.4)
    assert row.first_epoch_samples_per_second == pytest.approx(500)
    assert row.epoch_seconds == pytest.approx(1.0)
    assert row.cpu_seconds_per_step == pytest.approx(0.5)


def test_one_run_has_no_spread(make_record):
    (row,) = summarise([make_record()])
    assert row.spread is None


def test_speed_up_is_against_the_same_strategy_on_one_worker(make_record):
    one, two = summarise([make_record(1000.0), make_record(1500.0, workers=2)])
    assert (one.speedup, one.efficiency) == (1.0, 1.0)
    assert two.speedup == pytest.approx(1.5)
    assert two.efficiency == pytest.approx(0.75)
    assert two.baseline == "fake"


def test_without_its_own_baseline_a_strategy_is_held_against_its_frameworks_single_one(make_record):
    single = make_record(1000.0, strategy="torch-single")
    rows = summarise([single, make_record(1800.0, strategy="torch-ddp", workers=2)])
    assert rows[1].speedup == pytest.approx(1.8)
    assert rows[1].baseline == "torch-single"


def test_a_run_of_another_batch_is_no_baseline(make_record):
    rows = summarise([make_record(1000.0, global_batch=200), make_record(1500.0, workers=2)])
    assert {row.spec.workers: row.speedup for row in rows} == {1: 1.0, 2: None}


def test_weak_scaling_has_a_baseline_of_the_same_local_batch(make_record):
    rows = summarise([make_record(1000.0, local_batch=50), make_record(1800.0, local_batch=50, workers=2)])
    assert rows[1].efficiency == pytest.approx(0.9)
    assert rows[1].spec.scaling == "weak"


def test_an_oversubscribed_run_has_a_speed_up_but_no_efficiency_unless_asked(make_record):
    records = [make_record(1000.0), make_record(900.0, workers=4, findings=("oversubscribed",))]
    oversubscribed = summarise(records)[1]
    assert oversubscribed.oversubscribed
    assert oversubscribed.speedup == pytest.approx(0.9)
    assert oversubscribed.efficiency is None
    assert summarise(records, include_oversubscribed=True)[1].efficiency == pytest.approx(0.225)


def test_a_configuration_that_never_ended_well_keeps_its_status_and_reason(make_record):
    (row,) = summarise([make_record(None, status=Status.OUT_OF_MEMORY, reason="too large")])
    assert not row.measured
    assert (row.status, row.reason) == (Status.OUT_OF_MEMORY, "too large")


def test_one_good_repeat_is_enough_for_a_number(make_record):
    (row,) = summarise([make_record(1000.0, 0), make_record(None, 1, reason="bad luck")])
    assert row.status is Status.OK
    assert row.runs == 1
