"""From where on it pays, by what was measured."""

from paceline.analysis.rows import summarise
from paceline.analysis.thresholds import thresholds


def said(make_record, *runs):
    return thresholds(summarise([make_record(rate, **fields) for rate, fields in runs]))


def test_it_pays_from_a_number_of_workers_on(make_record):
    runs = [(1000.0, {"workers": 1}), (900.0, {"workers": 2}), (1500.0, {"workers": 4})]
    assert said(make_record, *runs) == [
        "fake pays from 4 workers on: 2 workers 0.90x, 4 workers 1.50x the speed of one worker."
    ]


def test_it_pays_from_a_batch_on(make_record):
    runs = [
        (rate, {"workers": workers, "global_batch": batch})
        for batch, rates in ((64, (1000.0, 700.0)), (256, (1000.0, 1300.0)))
        for workers, rate in zip((1, 2), rates, strict=True)
    ]
    (sentence,) = said(make_record, *runs)
    assert sentence.startswith("fake (2 workers) pays from a global batch of 256 on: a global batch of 64 0.70x")


def test_it_pays_from_a_size_of_model_on(make_record):
    runs = [
        (rate, {"workers": workers, "workload": workload})
        for workload, rates in (("mnist-large", (100.0, 180.0)), ("mnist-small", (1000.0, 800.0)))
        for workers, rate in zip((1, 2), rates, strict=True)
    ]
    (sentence,) = said(make_record, *runs)
    assert sentence == (
        "fake (2 workers) pays from mnist-large (4,104,202 parameters) on: mnist-small (402,442 parameters) 0.80x, "
        "mnist-large (4,104,202 parameters) 1.80x the speed of one worker."
    )


def test_what_never_pays_is_said_plainly(make_record):
    runs = [(1000.0, {"workers": 1}), (900.0, {"workers": 2}), (800.0, {"workers": 4})]
    assert said(make_record, *runs)[0].startswith("fake pays at none of what was measured: 2 workers 0.90x")


def test_what_pays_in_the_middle_only_is_told_with_both(make_record):
    runs = [(1000.0, {"workers": 1}), (1500.0, {"workers": 2}), (800.0, {"workers": 4})]
    assert said(make_record, *runs)[0].startswith("fake pays with 2 workers, not with 4 workers")


def test_a_single_measurement_is_no_threshold(make_record):
    assert said(make_record, (1000.0, {"workers": 1}), (1500.0, {"workers": 2})) == []
