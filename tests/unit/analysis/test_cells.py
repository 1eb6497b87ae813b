"""Rows as cells for people."""

from paceline.analysis.cells import row_name
from paceline.analysis.quality import all_columns, quality_columns, used_columns
from paceline.analysis.rows import summarise


def test_a_cell_has_text_to_read_and_a_value_to_sort_by(make_record):
    one, two = summarise([make_record(1000.0), make_record(1500.0, workers=2)])
    found = {column.heading: column.cell(two) for column in all_columns([two])}
    assert (found["samples/s, last epoch"].text, found["samples/s, last epoch"].value) == ("1,500", 1500.0)
    assert found["speed-up"].text == "1.50x"
    assert found["efficiency"].text == "75 %"
    assert found["accuracy"].text == "90.0 %"
    assert (found["spread"].text, found["spread"].value) == ("", None)
    assert row_name(one, []) == "fake x1"


def test_columns_that_no_row_fills_are_left_out(make_record):
    rows = summarise([make_record(1000.0)])
    shown = [column.heading for column in used_columns(rows)]
    assert "samples/s, last epoch" in shown
    assert not {"spread", "energy per epoch", "start-up"} & set(shown)


def headings(*records):
    return [column.heading for column in quality_columns(summarise(records))]


def with_last_epoch(record, **values):
    *before, last = record.epochs
    return record.model_copy(update={"epochs": (*before, last.model_copy(update=values))})


def test_metrics_of_the_models_file_stand_in_place_of_accuracy(make_record):
    record = with_last_epoch(make_record(1000.0), test_metrics={"f1": 0.75, "perplexity": None})
    (row,) = summarise([record])
    assert headings(record) == ["f1"]
    assert [column.cell(row).text for column in quality_columns([row])] == ["0.75"]


def test_a_metric_is_the_median_over_repeats(make_record):
    records = [
        with_last_epoch(make_record(1000.0, repeat=repeat), test_metrics={"f1": value})
        for repeat, value in enumerate((0.5, 0.9, 0.6))
    ]
    assert summarise(records)[0].test_metrics == {"f1": 0.6}


def test_without_accuracy_or_metric_the_test_loss_is_shown(make_record):
    assert headings(make_record(1000.0)) == ["accuracy"]
    assert headings(with_last_epoch(make_record(1000.0), test_accuracy=None, test_loss=1.5)) == ["test loss"]
    assert headings(with_last_epoch(make_record(1000.0), test_accuracy=None, test_loss=None)) == ["accuracy"]
