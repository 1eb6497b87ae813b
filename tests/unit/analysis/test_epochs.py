"""Epochs one by one, over repeats."""

from paceline.analysis.rows import summarise
from paceline.analysis.statistics import Band, band_or_none


def test_each_epoch_has_its_median_and_range(make_record):
    (row,) = summarise([make_record(rate, repeat) for repeat, rate in enumerate((1000.0, 2000.0, 4000.0))])
    first, second = row.epochs
    assert (first.number, second.number) == (1, 2)
    assert second.samples_per_second == Band(2000.0, 1000.0, 4000.0)
    assert second.seconds == Band(0.5, 0.25, 1.0)


def test_elapsed_time_adds_up_over_epochs(make_record):
    (row,) = summarise([make_record(1000.0)])
    assert [epoch.elapsed_seconds.median for epoch in row.epochs] == [2.0, 3.0]


def test_what_no_run_knows_is_absent(make_record):
    (row,) = summarise([make_record()])
    assert row.epochs[0].joules is None
    assert row.epochs[0].test_accuracy == Band(0.9, 0.9, 0.9)


def test_a_row_without_good_runs_has_no_epochs(make_record):
    (row,) = summarise([make_record(rate=None)])
    assert row.epochs == ()


def test_nothing_has_no_band():
    assert band_or_none([]) is None
