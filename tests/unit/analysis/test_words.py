"""Labels, titles and the sentence that answers."""

from paceline.analysis.frame import flat_rows, to_frame
from paceline.analysis.headline import headline
from paceline.analysis.labels import groups, series_name, setting, varying_fields
from paceline.analysis.rows import summarise


def test_a_field_that_varies_becomes_part_of_the_name(make_record):
    rows = summarise([make_record(memory_format="contiguous"), make_record()])
    varying = varying_fields(rows)
    assert varying == ["memory_format"]
    assert {series_name(row, varying) for row in rows} == {
        "fake memory_format=contiguous",
        "fake memory_format=channels_last",
    }


def test_a_knob_that_varies_is_named_without_its_table(make_record):
    rows = summarise([make_record(knobs={"step_ms": 5.0}), make_record()])
    assert {series_name(row, varying_fields(rows)) for row in rows} == {"fake step_ms=5.0", "fake"}


def test_the_title_tells_workload_data_scaling_batch_and_length(make_record):
    record = make_record(dataset_copies=4, train_samples=2000)
    assert (
        setting(record.spec) == "mnist-small on mnist-5k x4 (first 2,000) · strong scaling, global batch 100 · 2 epochs"
    )


def test_strong_and_weak_scaling_are_apart(make_record):
    rows = summarise([make_record(), make_record(local_batch=100)])
    assert len(groups(rows)) == 2


def test_the_sentence_names_the_fastest_and_its_gain(make_record):
    rows = summarise([make_record(1000.0), make_record(1500.0, workers=2)])
    assert headline(rows) == (
        "Fastest here: fake with 2 workers, 1,500 samples/s, 1.50 times one worker (75 % of ideal)."
    )


def test_one_worker_that_wins_is_said_plainly(make_record):
    rows = summarise([make_record(1000.0), make_record(700.0, workers=2)])
    assert headline(rows) == "Fastest here: fake with 1 worker, 1,000 samples/s; more workers do not pay here."


def test_overlapping_repeats_are_called_equal(make_record):
    rows = summarise(
        [make_record(rate, repeat) for repeat, rate in enumerate((1000.0, 1400.0))]
        + [make_record(rate, repeat, workers=2) for repeat, rate in enumerate((1300.0, 1500.0))]
    )
    assert "overlap with those of fake x1, so take them as equal" in str(headline(rows))


def test_nothing_measured_is_no_sentence(make_record):
    assert headline(summarise([make_record(None)])) is None


def test_flat_rows_share_their_columns_and_a_frame_has_them_all(make_record):
    rows = summarise([make_record(knobs={"step_ms": 5.0}), make_record(workers=2)])
    lines = flat_rows(rows)
    assert lines[0].keys() == lines[1].keys()
    frame = to_frame(flat_rows(rows))
    assert frame.height == 2
    assert {"strategy", "workers", "samples_per_second", "speedup", "efficiency", "knobs.step_ms"} <= set(frame.columns)
