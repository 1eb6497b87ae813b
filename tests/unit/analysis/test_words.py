"""Labels, titles and the sentence that answers."""

from paceline.analysis.answer import headline
from paceline.analysis.frame import flat_rows, to_frame
from paceline.analysis.labels import group_by_setting, series_name, setting_title, varying_fields, varying_within
from paceline.analysis.rows import summarise


def test_a_field_that_varies_becomes_part_of_the_name(make_record):
    rows = summarise([make_record(memory_format="contiguous"), make_record()])
    varying = varying_fields(rows)
    assert varying == ["memory_format"]
    # The usual one goes without saying.
    assert {series_name(row, varying) for row in rows} == {"fake memory_format=contiguous", "fake"}


def test_what_is_the_same_in_a_group_but_not_elsewhere_is_in_its_title(make_record):
    rows = summarise([
        make_record(), make_record(local_batch=64, precision="tf32", execution="graph"),
        make_record(local_batch=64, precision="tf32"),
    ])  # fmt: skip
    titled = group_by_setting(rows)
    assert [title.rpartition(" · ")[2] for title in titled] == ["2 epochs", "precision=tf32"]
    varying = varying_within(titled.values())
    names = [sorted(series_name(row, varying) for row in own) for own in titled.values()]
    assert names == [["fake"], ["fake", "fake execution=graph"]]


def test_a_knob_that_varies_is_named_without_its_table(make_record):
    rows = summarise([make_record(knobs={"step_ms": 5.0}), make_record()])
    assert {series_name(row, varying_fields(rows)) for row in rows} == {"fake step_ms=5.0", "fake"}


def test_the_title_tells_workload_data_scaling_batch_and_length(make_record):
    record = make_record(dataset_copies=4, train_samples=2000)
    assert (
        setting_title(record.spec)
        == "mnist-small on mnist-5k x4 (first 2,000) · strong scaling, global batch 100 · 2 epochs"
    )


def test_strong_and_weak_scaling_are_apart(make_record):
    rows = summarise([make_record(), make_record(local_batch=100)])
    assert len(group_by_setting(rows)) == 2


def test_the_sentence_names_the_fastest_and_its_gain(make_record):
    rows = summarise([make_record(1000.0), make_record(1500.0, workers=2)])
    assert headline(rows) == (
        "Fastest here: fake with 2 workers, 1,500 samples/s, 1.50 times one worker (75 % of ideal); not sure, 1 run of "
        "each cannot tell chance from effect."
    )


def test_one_worker_that_wins_is_said_plainly(make_record):
    rows = summarise([make_record(1000.0), make_record(700.0, workers=2)])
    assert headline(rows).startswith(
        "Fastest here: fake with 1 worker, 1,000 samples/s; more workers were no faster (at most 700 samples/s); "
    )


def test_nothing_measured_is_no_sentence(make_record):
    assert headline(summarise([make_record(None)])) is None


def test_flat_rows_share_their_columns_and_a_frame_has_them_all(make_record):
    rows = summarise([make_record(knobs={"step_ms": 5.0}), make_record(workers=2)])
    lines = flat_rows(rows)
    assert lines[0].keys() == lines[1].keys()
    frame = to_frame(flat_rows(rows))
    assert frame.height == 2
    assert {"strategy", "workers", "samples_per_second", "speedup", "efficiency", "knobs.step_ms"} <= set(frame.columns)
