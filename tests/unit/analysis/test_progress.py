"""How much of a speed-up is progress: the noise scale of a setting, and what a sample of a larger batch is worth."""

import pytest

from paceline.analysis.explanation import explain
from paceline.analysis.rows import summarise
from paceline.record import GradientNoise


def noisy(record, scale=100.0):
    """The record with a noise scale in its last epoch."""
    batch = record.spec.samples_per_step
    noise = GradientNoise(
        small_batch=batch // 2, big_batch=batch, small_square=2.0, big_square=1.0, steps=9, scale=scale
    )
    *before, last = record.epochs
    spec = record.spec.model_copy(update={"noise_scale": True})
    return record.model_copy(update={"epochs": (*before, last.model_copy(update={"noise": noise})), "spec": spec})


def weak(make_record, rate, workers, **fields):
    return make_record(rate, strategy="torch-ddp", local_batch=100, workers=workers, **fields)


def test_progress_is_the_speed_up_times_what_a_sample_is_worth(make_record):
    one, four = summarise([weak(make_record, 1000.0, 1), noisy(weak(make_record, 3100.0, 4))])
    assert four.speedup == pytest.approx(3.1)
    # (100 + 100) / (100 + 400) of a sample.
    assert four.progress_speedup == pytest.approx(3.1 * 0.4)
    assert one.noise_scale == four.noise_scale == 100.0
    assert one.progress_speedup == pytest.approx(1.0)


def test_explanations_say_both(make_record):
    rows = summarise([weak(make_record, 1000.0, 1), noisy(weak(make_record, 3100.0, 4))])
    assert "progress" not in " ".join(explain(rows[0], rows))
    said = " ".join(explain(rows[1], rows))
    assert "4 workers are 3.10 times as fast in samples/s and 1.24 times in progress" in said
    assert "noise scale of about 100 samples, one of a batch of 400 is worth 40 % of one of a batch of 100" in said


def test_with_the_same_batch_all_speed_is_progress_and_nothing_is_said(make_record):
    rows = summarise([
        make_record(1000.0, strategy="torch-ddp"),
        noisy(make_record(1800.0, strategy="torch-ddp", workers=2)),
    ])  # fmt: skip
    assert rows[1].progress_speedup == pytest.approx(rows[1].speedup)
    assert "progress" not in " ".join(explain(rows[1], rows))


def test_runs_of_another_model_lend_no_noise_scale(make_record):
    rows = summarise([
        noisy(weak(make_record, 3100.0, 4)), weak(make_record, 10.0, 1, workload="mnist-large"),
    ])  # fmt: skip
    assert {row.spec.workload: row.noise_scale for row in rows}["mnist-large"] is None


def test_where_no_noise_is_known_nothing_is_said_of_progress(make_record):
    rows = summarise([weak(make_record, 1000.0, 1), weak(make_record, 3100.0, 4)])
    assert rows[1].progress_speedup is None
    assert "progress" not in " ".join(explain(rows[1], rows))
